"""Parse the command line of `spec-dec-bench`, which extends fairseq-generate's."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from omegaconf import DictConfig

from fairseq_plugins.benchmarks.bench import Bench
from fairseq_plugins.benchmarks.contenders import (
    BEAM_1,
    CONTENDERS,
    CTRANSLATE2_ON_CPU,
    CTRANSLATE2_ON_GPU,
    ON_CPU,
    Contender,
    choose,
)
from fairseq_plugins.checkpoint.session import precision, set_options
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.cli import CommandParser, not_negative, positive, positive_list
from fairseq_plugins.shared.files import cache_folder, check_folder
from fairseq_plugins.shared.parsing import as_config, check_paths, generation_parser, parse_arguments


def get_parser(contenders: Sequence[Contender]) -> CommandParser:
    """Return fairseq-generate's parser with the options of a comparison; `contenders` are the rows to name."""
    description = "Compare output, speed and latency of decoders, with fairseq's own search and CTranslate2."
    example = "spec-dec-bench data-bin --path verifier.pt --drafter-path drafter.pt --results results"
    parser = generation_parser("spec-dec-bench", description, example)
    add = parser.add_argument_group("comparison").add_argument
    known = ", ".join(contender.name for contender in contenders)
    add("--results", metavar="FOLDER", help="write table.md and table.json there")
    names = f"rows to measure besides {BEAM_1} (quote them), or all (default: fairseq's searches and our decoders). "
    names += f"Rows: {known}"
    add("--decoders", metavar="NAME,NAME", help=names)
    add("--blockwise-path", metavar="MODEL.pt", help="checkpoint of a blockwise_transformer, for the blockwise rows")
    part = "use only the first N sentences of the subset, for quality, too (default: all)"
    add("--sentences", type=positive, metavar="N", help=part)
    several = "raw text to score against; repeatable, for several references (default: the subset's target side)"
    add("--reference", action="append", metavar="FILE", help=several)
    timed = "timed repetitions; tables show the median (default: 3)"
    add("--repeats", type=positive, default=3, metavar="N", help=timed)
    first = "time the first N sentences of the subset (default: 100)"
    add("--timing-sentences", type=positive, default=100, metavar="N", help=first)
    again = "repeat these sentences for at least S seconds in each repetition, since short times are inaccurate "
    again += "(default: 0, decode them once)"
    add("--timing-seconds", type=not_negative, default=0.0, metavar="S", help=again)
    sizes = "batch sizes to time (default: 1,16)"
    add("--timing-batch-sizes", type=positive_list, default=[1, 16], metavar="N,N", help=sizes)
    return parser


def conversions(results: str | None) -> Path:
    """Return the folder of converted models: in that of --results, or in the user's cache."""
    return Path(results or cache_folder() / "benchmarks") / "ctranslate2"


def reset_decoder(cfg: DictConfig) -> None:
    """Reset the options of the decoder, because each contender sets its own.

    Raises ConfigurationError for options that only a single decoder can have.
    """
    if cfg.task.stats_file is not None or cfg.common.profile:
        option = "--profile" if cfg.task.stats_file is None else "--stats-file"
        raise ConfigurationError(option, cfg.task.stats_file, "is for one decoder", "use it with fairseq-generate")
    if cfg.task.int8:
        remedy = "leave it out: spec-dec-bench {--decoders} 'greedy int8,gad int8' measures it"
        raise ConfigurationError("--int8", None, "is for one decoder", remedy)
    if cfg.generation.sampling:
        raise ConfigurationError("--sampling", None, "has no outputs to compare with", "use it with fairseq-generate")
    decoder = "beam" if cfg.task.drafter_path is None else "gad"
    set_options(cfg.task, decoding_method=decoder, preset="none", top_beta=1, tau=0.0)


def all_contenders(cuda: bool) -> list[Contender]:
    """Return the rows for this device, fairseq's and CTranslate2's first."""
    others = CTRANSLATE2_ON_GPU if cuda else CTRANSLATE2_ON_CPU
    searches = [contender for contender in CONTENDERS if contender.decoder == "beam"]
    ours = [contender for contender in CONTENDERS if contender not in searches] + ([] if cuda else list(ON_CPU))
    return [*searches, *others, *ours]


def configure(argv: Sequence[str]) -> tuple[argparse.Namespace, Bench, list[Contender]]:
    """Parse arguments and load data; models are loaded on first use. Return options, bench and the chosen rows.

    Raises ConfigurationError for a missing file, and an option for a single decoder.
    """
    rows = all_contenders(torch.cuda.is_available() and "--cpu" not in argv)
    args = parse_arguments(get_parser(rows), argv)
    if args.results is not None:
        check_folder(args.results, "--results")
    cfg = as_config(args)
    check_paths(cfg, args.blockwise_path)
    reset_decoder(cfg)
    usual = rows if args.decoders == "all" else CONTENDERS
    contenders = choose(None if args.decoders == "all" else args.decoders, rows, usual, precision(cfg))
    return args, Bench(cfg, args.blockwise_path, conversions(args.results), args.sentences), contenders
