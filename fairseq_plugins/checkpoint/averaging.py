"""Average the last checkpoints of a training run into one small file.

    spec-dec-average FOLDER --last 10 --output MODEL.pt

Following Vaswani et al. (2017, section 6.1) and Ott et al. (2018). The result holds no optimiser state and, by default,
half-precision weights; fairseq-generate and fairseq-train --restore-file --reset-optimizer read it as any other
checkpoint.
"""

import io
import re
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_plugins.checkpoint.loading import read_state
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.process.output import counted, ignore_hydras_warnings, say
from fairseq_plugins.shared.checksums import forget_sum
from fairseq_plugins.shared.cli import CommandParser, positive, run_command
from fairseq_plugins.shared.files import check_no_input, destination, nearest_checkpoint, write_atomically

_BY_UPDATE, _BY_EPOCH = re.compile(r"checkpoint_\d+_(\d+)\.pt"), re.compile(r"checkpoint(\d+)\.pt")


def last_checkpoints(folder: Path, count: int) -> list[Path]:
    """Return the last `count` checkpoints of a training run: by updates, or else by epochs.

    Raises ConfigurationError if there are fewer.
    """
    most = 0
    for pattern in (_BY_UPDATE, _BY_EPOCH):
        by_number = {}
        for file in folder.iterdir():
            match = pattern.fullmatch(file.name)
            if match is not None:
                by_number[int(match.group(1))] = file
        if len(by_number) >= count:
            return [by_number[number] for number in sorted(by_number)[-count:]]
        most = max(most, len(by_number))
    kept = "fairseq-train keeps them with --save-interval-updates and --keep-interval-updates, or one of each epoch"
    if most == 0:
        remedy = f"give files{nearest_checkpoint(str(folder))}; {kept}"
        raise ConfigurationError(None, folder, "has no numbered checkpoints", remedy)
    problem = f"has {counted(most, 'numbered checkpoint')}, not {count}"
    raise ConfigurationError(None, folder, problem, f"give {{--last {most}}}; {kept}")


def average(files: Sequence[Path]) -> dict[str, Any]:
    """Return the last of several checkpoints of one model with averaged weights, without optimiser state.

    Integer tensors are the last's. Tied weights stay one tensor, so that a file has them once. Raises
    ConfigurationError if a file cannot be read, weights differ in name or shape, or one is not a number.
    """
    total: dict[str, Tensor] = {}
    state: dict[str, Any] = {}
    for file in files:
        # `read_state` upgrades checkpoints of earlier versions of fairseq, which keep the epoch elsewhere.
        extra = read_state(str(file), "checkpoint")[0].get("extra_state") or {}
        state = torch.load(file, map_location="cpu")
        weights = state["model"]
        shapes = {name: value.shape for name, value in weights.items()}
        if total and shapes != {name: value.shape for name, value in total.items()}:
            problem = f"its weights differ in name or shape from {files[0]}'s"
            raise ConfigurationError(None, file, problem, "give one model's")
        for name, value in weights.items():
            if value.isnan().any():
                problem = f"its {name} is not a number: the training diverged"
                raise ConfigurationError(None, file, problem, "leave it out")
            if value.is_floating_point() and name in total:
                total[name] += value.double()
            else:
                total[name] = value.double() if value.is_floating_point() else value
    mean: dict[str, Tensor] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, value in state["model"].items():
        tied = first.setdefault((value.data_ptr(), value.shape, value.stride()), name)
        if tied != name:
            mean[name] = mean[tied]
        else:
            mean[name] = (total[name] / len(files)).float() if value.is_floating_point() else total[name]
    state["model"] = mean
    state["last_optimizer_state"] = None
    # Only entries that loading needs: others describe the run's data and machine.
    epoch = (extra.get("train_iterator") or {}).get("epoch", 1)
    state["extra_state"] = {"train_iterator": {"epoch": epoch}, "averaged": [file.name for file in files]}
    return state


def to_half(state: dict[str, Any]) -> dict[str, Any]:
    """Return the checkpoint with half-precision weights; raises ConfigurationError if one is too large."""
    once: dict[int, Tensor] = {}
    halves = {
        name: once.setdefault(id(value), value.half()) if value.is_floating_point() else value
        for name, value in state["model"].items()
    }
    for name, value in halves.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise ConfigurationError(name, None, "not all of it fits half precision", "add {--fp32}")
    return {**state, "model": halves}


def new_checkpoint(weights: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Return a checkpoint as fairseq's loader reads it, of weights without a training; `settings`: its args or cfg."""
    last = {"criterion_name": "CrossEntropyCriterion", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}
    state = {"optimizer_history": [last], "extra_state": {"train_iterator": {"epoch": 1}}, "model": weights}
    return {"args": None, "cfg": None, **state, **settings}


def write_checkpoint(path: Path, state: dict[str, Any], option: str) -> int:
    """Write a checkpoint atomically; return its size in bytes. `option` named the file, for errors."""
    content = io.BytesIO()
    torch.save(state, content)
    forget_sum(path)
    write_atomically(path, content.getvalue(), option)
    return content.tell()


def get_parser() -> CommandParser:
    """Return the parser of `spec-dec-average`."""
    example = "spec-dec-average checkpoints/drafter --last 10 --output drafter.pt"
    parser = CommandParser("spec-dec-average", (__doc__ or "").split("\n")[0], example)
    add = parser.add_argument
    add("inputs", nargs="+", metavar="FOLDER|FILE", help="a training folder with numbered checkpoints, or checkpoints")
    add("--last", type=positive, metavar="N", help="average the last N of a folder (default: 10)")
    add("--output", required=True, metavar="MODEL.pt", help="write the averaged checkpoint there")
    add("--fp32", action="store_true", help="save weights in single precision (default: half precision)")
    return parser


def run(argv: Sequence[str]) -> None:
    """Parse the arguments, average and write."""
    args = get_parser().parse_args(argv)
    destination(args.output, "--output")
    inputs = [Path(name) for name in args.inputs]
    if len(inputs) == 1 and inputs[0].is_dir():
        inputs = last_checkpoints(inputs[0], args.last or 10)
    elif args.last is not None and all(map(Path.is_file, inputs)):
        raise ConfigurationError("--last", args.last, "is for a folder", "leave it out, or give one")
    check_no_input(args.output, "--output", inputs)
    with warnings.catch_warnings():
        ignore_hydras_warnings()
        state = average(inputs)
    size = write_checkpoint(Path(args.output), state if args.fp32 else to_half(state), "--output")
    say(f"{args.output}: mean of {', '.join(file.name for file in inputs)}; {size / 1e6:.1f} MB")


main = partial(run_command, "spec-dec-average", run)


if __name__ == "__main__":
    sys.exit(main())
