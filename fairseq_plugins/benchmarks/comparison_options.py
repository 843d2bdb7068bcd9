"""The command line that `spec-dec-compare` and `spec-dec-bench` share: fairseq-generate's, and what to measure."""

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path

from fairseq import options, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import DictConfig

from fairseq_plugins.benchmarks.contenders import BEAM_1, BLOCKWISE, DRAFTER, Contender
from fairseq_plugins.errors import ConfigurationError


def positive(text: str) -> int:
    """Parse an integer of at least 1, for argparse."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def positive_list(text: str) -> list[int]:
    """Parse a comma-separated list of integers of at least 1, for argparse."""
    return [positive(part) for part in text.split(",")]


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
    parser = options.get_generation_parser(default_task="spec_dec")
    parser.prog = prog
    group = parser.add_argument_group("comparison")
    add = group.add_argument
    known = ", ".join(contender.name for contender in contenders)
    add("--results", metavar="FOLDER", help="write the tables there")
    add("--repeats", type=positive, default=repeats, help="timed repetitions; the median counts")
    add("--timing-sentences", type=positive, default=100, help="how many sentences are timed")
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hydra's, about how fairseq calls it
        args = options.parse_args_and_arch(parser, input_args=list(argv))
        cfg = convert_namespace_to_omegaconf(args)
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


def check_paths(cfg: DictConfig, blockwise_path: str | None = None) -> None:
    """Refuse files that are not there, before anything is loaded."""
    if not cfg.common_eval.path:
        raise ConfigurationError("--path is missing; give the checkpoint of the verifier")
    if not Path(str(cfg.task.data)).is_dir():
        raise ConfigurationError(f"{cfg.task.data}: no such folder; give one that fairseq-preprocess wrote")
    drafter = cfg.task.get("drafter_path")
    for option, paths in (("--path", cfg.common_eval.path), (DRAFTER, drafter), (BLOCKWISE, blockwise_path)):
        for path in utils.split_paths(paths) if paths else []:
            if not Path(path).is_file():
                raise ConfigurationError(f"{option} {path}: no such file; give a checkpoint of fairseq-train")
