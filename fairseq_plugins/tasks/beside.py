"""Add the options of decoding, and of training a drafter, to any of fairseq's tasks."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields, make_dataclass
from pathlib import Path
from typing import Any

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY, FairseqTask
from hydra.core.config_store import ConfigStore

from fairseq_plugins.errors import ConfigurationError, flag
from fairseq_plugins.tasks.drafter_training import TrainsDrafters
from fairseq_plugins.tasks.options import DecodingOptions, DrafterTrainingOptions
from fairseq_plugins.tasks.with_drafts import DecodesWithDrafts


@dataclass
class _TrainingOptions(DrafterTrainingOptions, DecodingOptions):
    """Options of training a drafter, and of decoding with it in validation."""


def trains_drafter(arguments: Sequence[str]) -> bool:
    """Return whether a command line has `--arch block_nat`, or one of its sizes."""
    return any(argument.removeprefix("--arch=").startswith("block_nat") for argument in arguments[1:])


def task_beside_decoder(arguments: Sequence[str]) -> str | None:
    """Return the task of a command line with `--decoder` or a drafter's training, or of a command of ours.

    None without a task.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    program = Path(arguments[0] if arguments else "").name
    parser.add_argument("--task", nargs="?", default="translation" if program.startswith("fairseq-") else None)
    parser.add_argument("--decoder", nargs="?", const="")
    known, _ = parser.parse_known_args(arguments[1:])
    decodes = known.decoder is not None or program.startswith("spec-dec-") or trains_drafter(arguments)
    return known.task if decodes and known.task in TASK_REGISTRY else None


def add_decoder(name: str, trains: bool = False) -> None:
    """Replace a task by a subclass with `--decoder` and its options; if it `trains` a drafter, with those too.

    Raises ConfigurationError for a task that has another option of the same name.
    """
    kind = TASK_REGISTRY[name]
    mixin, added = (TrainsDrafters, _TrainingOptions) if trains else (DecodesWithDrafts, DecodingOptions)
    if issubclass(kind, mixin):
        return
    parser = argparse.ArgumentParser(add_help=False)
    kind.add_args(parser)
    # Those that refer to others are declared by fairseq's commands.
    own = [flag(declared.name) for declared in fields(added) if not str(declared.default).startswith("${")]
    taken = sorted(parser._option_string_actions.keys() & {"--decoder", *own})
    if taken:
        problem = f"{{--task {name}}} has another option {taken[0]}"
        raise ConfigurationError("--decoder", None, problem, "use fairseq_plugins.wrap(task, decoder=...)")
    attributes = {"__module__": kind.__module__, "__doc__": kind.__doc__, "without_decoder": kind}
    combined = type(kind.__name__, (mixin, kind), attributes)
    if name in TASK_DATACLASS_REGISTRY:
        options = make_dataclass(f"{kind.__name__}Options", [], bases=(added, TASK_DATACLASS_REGISTRY[name]))
        TASK_DATACLASS_REGISTRY[name] = options
        setattr(combined, "__dataclass", options)  # noqa: B010
        node = options()
        node._name = name
        ConfigStore.instance().store(name=name, group="task", node=node, provider="fairseq")
    else:

        def add_args(_: type[FairseqTask], parser: Any) -> None:
            kind.add_args(parser)
            gen_parser_from_dataclass(parser, added())

        setattr(combined, "add_args", classmethod(add_args))  # noqa: B010
    TASK_REGISTRY[name] = combined
