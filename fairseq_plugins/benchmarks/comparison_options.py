"""The command line that `spec-dec-compare` and `spec-dec-bench` share: fairseq-generate's, and what to measure."""

import argparse
from collections.abc import Sequence

from omegaconf import DictConfig

from fairseq_plugins.benchmarks.contenders import BEAM_1, Contender
from fairseq_plugins.commands.parsing import (
    as_config,
    check_paths,
    generation_parser,
    not_negative,
    parse_arguments,
    positive,
    positive_list,
)
from fairseq_plugins.errors import ConfigurationError


def get_parser(
    prog: str, contenders: Sequence[Contender], repeats: int, batch_sizes: Sequence[int]
) -> argparse.ArgumentParser:
    """Return fairseq-generate's parser with our own options added.

    Args:
        prog: name of the command.
        contenders: rows that it can have.
        repeats: default of --repeats.
        batch_sizes: default of --timing-batch-sizes.
    """
    parser = generation_parser(prog)
    group = parser.add_argument_group("comparison")
    add = group.add_argument
    known = ", ".join(contender.name for contender in contenders)
    add("--results", metavar="FOLDER", help="write the tables there")
    add("--repeats", type=positive, default=repeats, help="timed repetitions; the median counts")
    add("--timing-sentences", type=positive, default=100, help="how many sentences are timed")
    again = "in every repetition, decode these sentences again until S seconds are over; short times say little"
    add("--timing-seconds", type=not_negative, default=0.0, metavar="S", help=again)
    add("--timing-batch-sizes", type=positive_list, default=batch_sizes, metavar="N,N", help="batch sizes to time")
    add("--reference", metavar="FILE", help="raw text to score against (default: the subset's target side)")
    add("--decoders", metavar="NAME,NAME", help=f"rows besides {BEAM_1}, of: {known}")
    add("--blockwise-path", metavar="MODEL.pt", help="a blockwise_transformer, for the row blockwise")
    return parser


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[argparse.Namespace, DictConfig]:
    """Return our own options and fairseq's configuration, with the files that they name checked.

    Raises:
        ConfigurationError: for a file that is not there, or an option that is for one decoder.
    """
    args = parse_arguments(parser, argv)
    cfg = as_config(args)
    check_paths(cfg, args.blockwise_path)
    leave_the_decoder_to_us(cfg)
    return args, cfg


def leave_the_decoder_to_us(cfg: DictConfig) -> None:
    """Reset the options that name a decoder: every contender sets its own."""
    if cfg.task.stats_file is not None:
        raise ConfigurationError(
            f"--stats-file {cfg.task.stats_file}: is for one decoder; use it with fairseq-generate"
        )
    if cfg.task.int8:
        raise ConfigurationError("--int8: is for one decoder; choose its rows with --decoders 'greedy int8,gad int8'")
    decoder = "beam" if cfg.task.drafter_path is None else "gad"
    cfg.task.update(decoding_method=decoder, preset="none", top_beta=1, tau=0.0)
