"""Distil a teacher (Seq-KD): decode a corpus in shards, merge them into training data.

    spec-dec-distill decode DATA --path TEACHER.pt --output SHARDS [--gen-subset train,valid] [--decoder greedy]
    spec-dec-distill merge DATA --shards SHARDS --destdir DISTILLED [--gen-subset train,valid]

`decode` takes all options of fairseq-generate. By default it runs fairseq's search with beam 5; `--decoder fast-beam`
gives the same output faster, `--decoder greedy` that of beam 1. It uses all GPUs of the machine, shares the work among
the tasks of a Slurm array, and resumes after an interruption. The commands have their own --help.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from fairseq_plugins.distillation.decode import decode_shards
from fairseq_plugins.distillation.merge import check_subset, merge
from fairseq_plugins.distillation.shards import shards_of
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.cli import CommandParser, positive, run_command
from fairseq_plugins.shared.parsing import as_config, check_paths, generation_parser, parse_arguments
from fairseq_plugins.shared.workers import end_with_parent, find_worker, start_processes

NAME = "spec-dec-distill"


def decode_parser() -> CommandParser:
    """Return fairseq-generate's parser with the options of `decode`."""
    description = "Decode a corpus with a teacher, in shards that several processes or machines share."
    example = f"{NAME} decode data-bin --path teacher.pt --gen-subset train,valid --output shards"
    parser = generation_parser(f"{NAME} decode", description, example)
    # --num-shards and --shard-id are fairseq's; None tells that they were not given.
    parser.set_defaults(gen_subset="train", num_shards=None, shard_id=None)
    add = parser.add_argument_group("distillation").add_argument
    add("--output", required=True, metavar="SHARDS", help="folder for the shards")
    workers = "processes on this machine (default: one for each GPU; 1 without GPUs)"
    add("--workers", type=positive, metavar="N", help=workers)
    return parser


def decode(argv: Sequence[str]) -> None:
    """Decode this process's shards, or start the processes that do."""
    args = parse_arguments(decode_parser(), argv)
    num_shards, shard = args.num_shards, args.shard_id
    args.num_shards, args.shard_id = 1, 0
    cfg = as_config(args)
    check_paths(cfg)
    _check_shard_options(num_shards, shard)
    subsets = cfg.dataset.gen_subset.split(",")
    for subset in subsets:
        check_subset(subset)
    end_with_parent()
    folder, worker = Path(args.output), find_worker()
    gpus = 0 if cfg.common.cpu else torch.cuda.device_count()
    processes = 1 if worker.spawned or shard is not None else args.workers or max(1, gpus)
    if processes > 1:
        start_processes(processes, "fairseq_plugins.distillation.cli", ["decode", *argv])
        return
    for subset in subsets:
        count = _count(num_shards, folder, subset, worker.num_workers)
        decode_shards(cfg, subset, shard, count, folder, worker)


def _check_shard_options(num_shards: int | None, shard: int | None) -> None:
    if num_shards is not None and num_shards < 1:
        raise ConfigurationError("--num-shards", num_shards, remedy="give at least 1")
    if shard is not None and num_shards is None:
        raise ConfigurationError("--shard-id", shard, "of how many?", "add {--num-shards N}")
    if shard is not None and num_shards is not None and not 0 <= shard < num_shards:
        remedy = f"give a number from 0 to {num_shards - 1} ({{--num-shards {num_shards}}})"
        raise ConfigurationError("--shard-id", shard, remedy=remedy)


def _count(given: int | None, folder: Path, subset: str, default: int) -> int:
    """Return the number of shards: that of --num-shards, of an earlier run, or one for each process."""
    begun = shards_of(folder, subset).count()
    if given is not None and begun is not None and begun != given:
        problem = f"{folder} was begun with {begun}"
        raise ConfigurationError("--num-shards", given, problem, "give that number, or another {--output}")
    return given or begun or default


def merge_parser() -> CommandParser:
    """Return the parser of `merge`."""
    description = "Merge finished shards into training data, binarised with the same dictionaries."
    example = f"{NAME} merge data-bin --shards shards --destdir distilled --gen-subset train,valid"
    parser = CommandParser(f"{NAME} merge", description, example)
    add = parser.add_argument
    add("data", metavar="DATA", help="binarised data that was decoded")
    add("--shards", required=True, metavar="SHARDS", help="folder of the shards, --output of decode")
    add("--destdir", required=True, metavar="FOLDER", help="new folder for the binarised data")
    add("--gen-subset", default="train", metavar="NAME,NAME", help="subsets to merge (default: train)")
    add("--source-lang", "-s", metavar="NAME", help="source language (default: from the names of files)")
    add("--target-lang", "-t", metavar="NAME", help="target language (default: from the names of files)")
    ratio = "train: leave out pairs in which one side has more than R times the tokens of the other (default: none)"
    add("--max-length-ratio", type=float, metavar="R", help=ratio)
    add("--keep-raw", action="store_true", help="train: also keep the original pairs")
    add("--workers", type=positive, default=1, metavar="N", help="processes that binarise (default: 1)")
    return parser


def run_merge(argv: Sequence[str]) -> None:
    """Parse, merge, print the counts."""
    args = merge_parser().parse_args(argv)
    if args.max_length_ratio is not None and not args.max_length_ratio >= 1:
        raise ConfigurationError("--max-length-ratio", args.max_length_ratio, remedy="give at least 1")
    for subset, count in merge(args).items():
        print(f"{subset}: {count}")


COMMANDS = {"decode": decode, "merge": run_merge}


def run(argv: Sequence[str]) -> None:
    """Run a subcommand."""
    command, *rest = argv or [""]
    if command in ("-h", "--help"):
        print(__doc__)
        return
    if command not in COMMANDS:
        remedy = f"choose from {', '.join(COMMANDS)} (see --help)"
        raise ConfigurationError(None, command or "no command", remedy=remedy)
    COMMANDS[command](rest)


main = partial(run_command, NAME, run)


if __name__ == "__main__":
    sys.exit(main())
