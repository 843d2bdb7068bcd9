"""Parse command lines that extend fairseq-generate's; checks of options."""

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from fairseq import options, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf, gen_parser_from_dataclass
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import DictConfig

from fairseq_plugins.errors import ConfigurationError, on_command_line
from fairseq_plugins.process.output import say
from fairseq_plugins.shared.checksums import check_sums
from fairseq_plugins.shared.cli import CommandParser, advised
from fairseq_plugins.shared.fairseq_errors import wrong_option
from fairseq_plugins.shared.files import nearest_checkpoint, refuse_hugging_face

# Options of the task that only training reads.
TRAINING_OPTIONS = {
    "verifier_path",
    "blocks_per_sentence",
    "glancing_start",
    "glancing_end",
    "glancing_updates",
    "cpu_bf16",
}


def generation_parser(prog: str, description: str = "", example: str = "") -> CommandParser:
    """Return a parser of all options of fairseq-generate, to which a command adds its own."""
    shown = argparse.ArgumentParser(add_help=False)
    shown.add_argument("data", metavar="DATA", help="folder that fairseq-preprocess wrote")
    shown.add_argument("--path", required=True, metavar="VERIFIER.pt", help="checkpoint of the verifier")
    fairseqs = options.get_generation_parser(default_task="spec_dec")
    return CommandParser(prog, description, example, inherited=fairseqs, required=shown._actions)


def decoding_options() -> argparse._ArgumentGroup:
    """Return the decoding options of the task, with those of the methods, as a group of a parser."""
    group = argparse.ArgumentParser(add_help=False).add_argument_group("decoding")
    gen_parser_from_dataclass(group, TASK_DATACLASS_REGISTRY["spec_dec"]())
    others = TRAINING_OPTIONS | {declared.name for declared in fields(TASK_DATACLASS_REGISTRY["translation"])}
    group._group_actions[:] = [action for action in group._group_actions if action.dest not in others]
    for action in group._group_actions:
        if action.dest == "decoding_method":
            action.option_strings, action.metavar = ["--decoder"], "NAME"
    return group


def help_of_fairseqs_tools() -> None:
    """Print the plugin's decoding options before the --help of fairseq's tools.

    fairseq prints its help before it adds the options of the task, so it would not list them.
    """
    program = Path(sys.argv[0] if sys.argv else "").name
    if not program.startswith("fairseq-") or {"-h", "--help"}.isdisjoint(sys.argv):
        return
    formatter = argparse.HelpFormatter(program, width=110)
    formatter.start_section("--task spec_dec, decoding (docs/options.md)")
    formatter.add_arguments(decoding_options()._group_actions)
    formatter.end_section()
    print(formatter.format_help())


# fairseq's commands and what makes their parsers.
_FAIRSEQS = {
    "generate": options.get_generation_parser,
    "interactive": options.get_interactive_generation_parser,
    "train": options.get_training_parser,
    "validate": options.get_validation_parser,
}


def refuse_wrong_arguments_of_fairseqs_tools() -> None:
    """End one of fairseq's tools with one line for wrong arguments, where fairseq prints a usage of 200 lines."""
    make_parser = _parser_of_fairseqs_tool()
    if make_parser is None:
        return

    def error(message: str) -> NoReturn:
        say(f"error: {advised(message, parser).spelled(on_command_line)}")
        sys.exit(2)

    parser = make_parser()
    parser.error = error  # type: ignore[method-assign]
    try:
        parse_arguments(parser, sys.argv[1:])
    except (RuntimeError, KeyError) as failure:
        # fairseq's own, for a missing option, name nothing.
        missing = {"KeyError(None)": "--task", "RuntimeError()": "--arch"}.get(repr(failure))
        if missing is None:
            raise
        error(f"the following arguments are required: {missing}")


def _parser_of_fairseqs_tool() -> Callable[[], argparse.ArgumentParser] | None:
    program = Path(sys.argv[0] if sys.argv else "")
    name = program.stem.removeprefix("fairseq-")
    return _FAIRSEQS.get(name) if program.name == f"fairseq-{name}" or "fairseq_cli" in program.parts else None


def arguments_of_fairseqs_tool(only_given: bool = False) -> dict[str, Any]:
    """Return the options of this process, without defaults if `only_given`; none outside of fairseq's tools."""
    make_parser = _parser_of_fairseqs_tool()
    return {} if make_parser is None else vars(parse_arguments(make_parser(), sys.argv[1:], only_given))


def parse_arguments(
    parser: argparse.ArgumentParser, argv: Sequence[str], only_given: bool = False
) -> argparse.Namespace:
    """Parse the arguments of a `generation_parser`, with `--user-dir` and the options of the chosen task.

    Options with their default values are left out if `only_given`.
    """
    if "--help-all" in argv and isinstance(parser, CommandParser):
        print(parser.format_full_help(decoding_options()))
        parser.exit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hydra's, about how fairseq calls it
        return options.parse_args_and_arch(parser, input_args=list(argv), suppress_defaults=only_given)


def as_config(args: argparse.Namespace) -> DictConfig:
    """Return fairseq's whole configuration for parsed arguments; raise ConfigurationError for known wrong options."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hydra's, about how fairseq calls it
        try:
            return convert_namespace_to_omegaconf(args)
        except Exception as error:
            explained = wrong_option(error, vars(args))
            if explained is None:
                raise
            raise explained from error


def check_paths(cfg: DictConfig, blockwise_path: str | None = None) -> None:
    """Raise ConfigurationError for missing or damaged files, before anything is loaded."""
    if not cfg.common_eval.path:
        raise ConfigurationError("--path", None, "is missing", "give the checkpoint of the verifier")
    if not Path(str(cfg.task.data)).is_dir():
        raise ConfigurationError(None, cfg.task.data, "no such folder", "give one that fairseq-preprocess wrote")
    files = {
        "--path": cfg.common_eval.path,
        "--drafter-path": getattr(cfg.task, "drafter_path", None),
        "--blockwise-path": blockwise_path,
    }
    checkpoints = {option: utils.split_paths(paths) if paths else [] for option, paths in files.items()}
    for option, paths in checkpoints.items():
        for path in paths:
            refuse_hugging_face(path, option)
            nearest = nearest_checkpoint(path)
            if Path(path).is_dir():
                raise ConfigurationError(option, path, "is a folder", f"give a checkpoint{nearest}")
            if not Path(path).is_file():
                raise ConfigurationError(option, path, "no such file", f"give a checkpoint of fairseq-train{nearest}")
    check_sums([Path(path) for paths in checkpoints.values() for path in paths], Path(str(cfg.task.data)))
