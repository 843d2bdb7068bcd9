"""Parse the command line of `spec-dec-bench`, which extends fairseq-generate's."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from omegaconf import DictConfig

from fairseq_plugins.benchmarks import replay
from fairseq_plugins.benchmarks.bench import Bench
from fairseq_plugins.benchmarks.contenders import (
    BEAM_1,
    CONTENDERS,
    CTRANSLATE2_ON_CPU,
    CTRANSLATE2_ON_GPU,
    ON_CPU,
    REPLAYED,
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
    add("--long", action="store_true", help="also show latency and the spread of the repetitions")
    names = (
        f"rows to measure besides {BEAM_1} (quote them), or all (default: fairseq's searches and our decoders; with "
    )
    names += f"--replay all). Rows: {known}"
    add("--decoders", metavar="NAME,NAME", help=names)
    add("--blockwise-path", metavar="MODEL.pt", help="checkpoint of a blockwise_transformer, for the blockwise rows")
    part = "use only the first N sentences of the subset, for quality, too (default: all)"
    add("--sentences", type=positive, metavar="N", help=part)
    add("--reference", metavar="FILE", help="raw text to score against (default: the subset's target side)")
    timed = "timed repetitions; tables show the median (default: 3)"
    add("--repeats", type=positive, default=3, metavar="N", help=timed)
    first = "time the first N sentences of the subset (default: 100)"
    add("--timing-sentences", type=positive, default=100, metavar="N", help=first)
    again = "repeat these sentences for at least S seconds in each repetition, since short times are inaccurate "
    again += "(default: 0, decode them once)"
    add("--timing-seconds", type=not_negative, default=0.0, metavar="S", help=again)
    sizes = "batch sizes to time (default: 1,16)"
    add("--timing-batch-sizes", type=positive_list, default=[1, 16], metavar="N,N", help=sizes)
    add = parser.add_argument_group("random weights").add_argument
    shape = "measure the speed of a Transformer of this size, with random weights and simulated drafts; needs neither "
    shape += "DATA nor --path"
    add("--replay", choices=list(replay.SHAPES), help=shape)
    drafter = "--drafter-context of the drafter, which runs at its full cost: tokens, as deep as the verifier, or "
    drafter += "features, with 2 layers (default: tokens)"
    add("--replay-drafter", choices=["tokens", "features"], default="tokens", help=drafter)
    lengths = "length of the shortest and the longest source in tokens (default: 10,50)"
    add("--replay-lengths", type=positive_list, default=[10, 50], metavar="N,N", help=lengths)
    symbols = f"number of symbols in the dictionary (default: {replay.VOCABULARY})"
    add("--replay-vocabulary", type=positive, default=replay.VOCABULARY, metavar="N", help=symbols)
    exact = "store the weights in this precision (default: fp16, whose weights the kernels pack in half of the size)"
    add("--replay-weights", choices=["fp16", "fp32"], default="fp16", help=exact)
    mean = "simulate N tokens per iteration in the lossless rows (default: 6.13, GAD Table 2)"
    add("--replay-tokens", type=float, metavar="N", help=mean)
    return parser


def conversions(results: str | None) -> Path:
    """Return the folder of converted models: in that of --results, or in the user's cache."""
    return Path(results or cache_folder() / "benchmarks") / "ctranslate2"


def reset_decoder(cfg: DictConfig) -> None:
    """Reset the options of the decoder, because each contender sets its own.

    Raises ConfigurationError for options that only a single decoder can have.
    """
    if cfg.task.stats_file is not None:
        problem = "is for one decoder"
        raise ConfigurationError("--stats-file", cfg.task.stats_file, problem, "use it with fairseq-generate")
    if cfg.task.int8:
        problem = "is for one decoder"
        raise ConfigurationError("--int8", None, problem, "choose its rows with {--decoders} 'greedy int8,gad int8'")
    decoder = "beam" if cfg.task.drafter_path is None else "gad"
    set_options(cfg.task, decoding_method=decoder, preset="none", top_beta=1, tau=0.0)


@dataclass(frozen=True)
class Setting:
    """Options, models and data, and the rows of a benchmark."""

    args: argparse.Namespace
    bench: Bench
    contenders: list[Contender]


def all_contenders(cuda: bool, replayed: bool) -> list[Contender]:
    """Return the rows for this device, fairseq's and CTranslate2's first."""
    others = CTRANSLATE2_ON_GPU if cuda else CTRANSLATE2_ON_CPU
    searches = [contender for contender in CONTENDERS if contender.decoder == "beam"]
    ours = [contender for contender in CONTENDERS if contender not in searches] + ([] if cuda else list(ON_CPU))
    if replayed:
        undrafted = [contender for contender in ours if contender.decoder in ("greedy", "fast-beam")]
        return [*searches, *others, *undrafted, *(contender for contender in REPLAYED if not (cuda and contender.int8))]
    return [*searches, *others, *ours]


def configure(argv: Sequence[str]) -> Setting:
    """Parse arguments and load data; models are loaded on first use.

    Raises ConfigurationError for a missing file, an option for a single decoder, or random weights of wrong sizes.
    """
    replaying = any(argument.split("=")[0] == "--replay" for argument in argv)
    rows = all_contenders(torch.cuda.is_available() and "--cpu" not in argv, replaying)
    args = parse_arguments(get_parser(rows), [*(replay.ARGUMENTS if replaying else []), *argv])
    _check_replay(args)
    if args.results is not None:
        check_folder(args.results, "--results")
    converted = conversions(args.results)
    if replaying:
        models = (converted.with_name("replay"), args.replay, args.replay_drafter, args.replay_weights)
        texts = (args.timing_sentences, args.replay_lengths, args.replay_vocabulary)
        args.data, args.path, args.drafter_path = replay.prepare(*models, *texts)
    if args.replay_tokens is not None:
        rows = [replace(row, replay=args.replay_tokens) if row.replay and row.lossless else row for row in rows]
    cfg = as_config(args)
    check_paths(cfg, args.blockwise_path)
    reset_decoder(cfg)
    usual = rows if replaying or args.decoders == "all" else CONTENDERS
    contenders = choose(None if args.decoders == "all" else args.decoders, rows, usual, precision(cfg))
    return Setting(args, Bench(cfg, args.blockwise_path, converted, args.sentences), contenders)


def _check_replay(args: argparse.Namespace) -> None:
    lengths = args.replay_lengths
    if args.replay_tokens is not None and args.replay is None:
        problem = "is for random weights"
        raise ConfigurationError("--replay-tokens", f"{args.replay_tokens:g}", problem, "add {--replay SHAPE}")
    if args.replay_tokens is not None and not args.replay_tokens > 1:
        problem = "an iteration emits more than 1"
        raise ConfigurationError("--replay-tokens", f"{args.replay_tokens:g}", problem, "give more")
    if args.replay_vocabulary < replay.MIN_VOCABULARY:
        raise ConfigurationError(
            "--replay-vocabulary", args.replay_vocabulary, remedy=f"give at least {replay.MIN_VOCABULARY}"
        )
    if args.replay is not None and (len(lengths) != 2 or not 2 <= lengths[0] <= lengths[1]):
        text = ",".join(map(str, lengths))
        raise ConfigurationError("--replay-lengths", text, remedy="give the shortest, at least 2, and the longest")
