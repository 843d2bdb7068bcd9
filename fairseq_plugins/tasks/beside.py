"""Add `--decoder` and its options to any of fairseq's tasks."""

import argparse
from collections.abc import Sequence
from dataclasses import fields, make_dataclass
from pathlib import Path
from typing import Any

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY, FairseqTask
from hydra.core.config_store import ConfigStore

from fairseq_plugins.decoding.method import flag
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.tasks.decoding import DecodesWithDrafts
from fairseq_plugins.tasks.options import DecodingOptions


def task_beside_decoder(arguments: Sequence[str]) -> str | None:
    """Return the task of a command line `arguments` with `--decoder`, or of a command of ours; None without a task."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    program = Path(arguments[0] if arguments else "").name
    parser.add_argument("--task", nargs="?", default="translation" if program.startswith("fairseq-") else None)
    parser.add_argument("--decoder", nargs="?", const="")
    known, _ = parser.parse_known_args(arguments[1:])
    decodes = known.decoder is not None or program.startswith("spec-dec-")
    return known.task if decodes and known.task in TASK_REGISTRY else None


def add_decoder(name: str) -> None:
    """Replace a task by a subclass with `--decoder` and its options.

    Raises ConfigurationError for a task that has another option of the same name.
    """
    kind = TASK_REGISTRY[name]
    if issubclass(kind, DecodesWithDrafts):
        return
    parser = argparse.ArgumentParser(add_help=False)
    kind.add_args(parser)
    taken = sorted(parser._option_string_actions.keys() & {"--decoder", *map(flag, _own_names())})
    if taken:
        raise ConfigurationError(
            f"--decoder: --task {name} has another option {taken[0]}; use fairseq_plugins.wrap(task, decoder=...)"
        )
    combined = type(kind.__name__, (DecodesWithDrafts, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})
    if name in TASK_DATACLASS_REGISTRY:
        options = make_dataclass(f"{kind.__name__}Options", [], bases=(DecodingOptions, TASK_DATACLASS_REGISTRY[name]))
        TASK_DATACLASS_REGISTRY[name] = options
        setattr(combined, "__dataclass", options)  # noqa: B010
        node = options()
        node._name = name
        ConfigStore.instance().store(name=name, group="task", node=node, provider="fairseq")
    else:
        setattr(combined, "add_args", classmethod(_adds_options_after(kind)))  # noqa: B010
    TASK_REGISTRY[name] = combined


def _adds_options_after(kind: type[FairseqTask]) -> Any:
    def add_args(_: type[FairseqTask], parser: Any) -> None:
        kind.add_args(parser)
        gen_parser_from_dataclass(parser, DecodingOptions())

    return add_args


def _own_names() -> list[str]:
    """Return the names of decoding options that fairseq's commands do not declare."""
    return [declared.name for declared in fields(DecodingOptions) if not str(declared.default).startswith("${")]
