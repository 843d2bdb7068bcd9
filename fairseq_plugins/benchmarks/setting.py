"""Command lines of `spec-dec-compare` and `spec-dec-bench`: fairseq-generate's with options of the measurement."""

import argparse
import os
import tempfile
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
from fairseq_plugins.commands.cli import CommandParser
from fairseq_plugins.commands.parsing import (
    as_config,
    check_paths,
    generation_parser,
    not_negative,
    parse_arguments,
    positive,
    positive_list,
)
from fairseq_plugins.commands.session import change, precision
from fairseq_plugins.errors import ConfigurationError

# Rows that --decoders must name: they are not fast.
_NOT_BY_DEFAULT = ("nat", "jacobi", "gs-jacobi")


def get_parser(
    prog: str, description: str, contenders: Sequence[Contender], repeats: int, batch_sizes: Sequence[int]
) -> CommandParser:
    """Return fairseq-generate's parser with the options of a comparison; `repeats` and `batch_sizes` are defaults."""
    example = f"{prog} data-bin --path verifier.pt --drafter-path drafter.pt --results results"
    parser = generation_parser(prog, description, example)
    add = parser.add_argument_group("comparison").add_argument
    known = ", ".join(contender.name for contender in contenders)
    add("--results", metavar="FOLDER", help="write the tables there")
    add("--repeats", type=positive, default=repeats, help="timed repetitions; the median counts")
    add("--timing-sentences", type=positive, default=100, help="number of timed sentences")
    again = "in every repetition, decode these sentences repeatedly for at least S seconds; short times are inaccurate"
    add("--timing-seconds", type=not_negative, default=0.0, metavar="S", help=again)
    add("--timing-batch-sizes", type=positive_list, default=batch_sizes, metavar="N,N", help="batch sizes to time")
    add("--reference", metavar="FILE", help="raw text to score against (default: the subset's target side)")
    add("--decoders", metavar="NAME,NAME", help=f"rows besides {BEAM_1}, of: {known}")
    add("--blockwise-path", metavar="MODEL.pt", help="a blockwise_transformer, for the row blockwise")
    return parser


def conversions(results: str | None) -> Path:
    """Return the folder of converted models: in that of --results, or a temporary one."""
    return Path(results or Path(tempfile.gettempdir()) / f"spec-dec-bench-{os.getuid()}") / "ctranslate2"


def parse(parser: CommandParser, argv: Sequence[str]) -> tuple[argparse.Namespace, DictConfig]:
    """Return our own options and fairseq's configuration.

    Raises ConfigurationError for a missing file, or an option for a single decoder.
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
    change(cfg.task, decoding_method=decoder, preset="none", top_beta=1, tau=0.0)


@dataclass(frozen=True)
class Setting:
    """Options, models and data, and the requested rows of a benchmark."""

    args: argparse.Namespace
    bench: Bench
    wanted: list[Contender]


def all_contenders(cuda: bool, replayed: bool) -> list[Contender]:
    """Return the rows for this device, fairseq's and CTranslate2's first."""
    others = CTRANSLATE2_ON_GPU if cuda else CTRANSLATE2_ON_CPU
    searches = [contender for contender in CONTENDERS if contender.decoder == "beam"]
    ours = [contender for contender in CONTENDERS if contender not in searches] + ([] if cuda else list(ON_CPU))
    if replayed:
        undrafted = [contender for contender in ours if contender.decoder in ("greedy", "fast-beam")]
        return [*searches, *others, *undrafted, *(contender for contender in REPLAYED if not (cuda and contender.int8))]
    return [*searches, *others, *ours]


def benchmark_parser(contenders: Sequence[Contender]) -> CommandParser:
    """Return the parser of spec-dec-compare with the options of a benchmark added."""
    description = "Measure output, speed, latency and memory of decoders beside fairseq's search and CTranslate2."
    parser = get_parser("spec-dec-bench", description, contenders, repeats=5, batch_sizes=[1, 4, 8, 16, 32])
    group = parser.add_argument_group("benchmark")
    add = group.add_argument
    add("--threads", type=positive, help="threads on the CPU (default: OMP_NUM_THREADS)")
    add("--no-memory", action="store_true", help="do not measure memory, which loads the models again")
    _add_replay_options(group)
    return parser


def _add_replay_options(group: argparse._ActionsContainer) -> None:
    add = group.add_argument
    shape = "random weights of this shape and replayed drafts, without DATA and --path"
    add("--replay", choices=list(replay.SHAPES), help=shape)
    drafter = "drafter that runs: --drafter-context tokens, as deep as the verifier, or features with 2 layers"
    add("--replay-drafter", choices=["tokens", "features"], default="tokens", help=drafter)
    lengths = "shortest and longest sentence"
    add("--replay-lengths", type=positive_list, default=[10, 50], metavar="N,N", help=lengths)
    symbols = "symbols of the dictionary"
    add("--replay-vocabulary", type=positive, default=replay.VOCABULARY, metavar="N", help=symbols)
    mean = "mean tokens per iteration of the lossless rows (default: 6.13, GAD Table 2)"
    add("--replay-tokens", type=float, metavar="N", help=mean)


def configure(argv: Sequence[str]) -> Setting:
    """Parse arguments and load data; models are loaded on first use."""
    replaying = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_replay_options(replaying)
    replaying.add_argument("--results")
    replaying.add_argument("--timing-sentences", type=positive, default=100)
    first, _ = replaying.parse_known_args(argv)
    _check_replay(first)
    made_here = conversions(first.results)
    arguments = list(argv)
    if first.replay is not None:
        models = (made_here.with_name("replay"), first.replay, first.replay_drafter)
        texts = (first.timing_sentences, first.replay_lengths, first.replay_vocabulary)
        arguments = [*replay.prepare(*models, *texts), *argv]
    cuda = torch.cuda.is_available() and "--cpu" not in argv
    rows = all_contenders(cuda, first.replay is not None)
    if first.replay_tokens is not None:
        rows = [replace(row, replay=first.replay_tokens) if row.replay and row.lossless else row for row in rows]
    args, cfg = parse(benchmark_parser(rows), arguments)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    named = args.decoders or ",".join(row.name for row in rows if row.name not in _NOT_BY_DEFAULT)
    wanted = choose(named, rows, kind=precision(cfg))
    return Setting(args, Bench(cfg, args.blockwise_path, made_here), wanted)


def _check_replay(args: argparse.Namespace) -> None:
    lengths = args.replay_lengths
    if args.replay_tokens is not None and args.replay is None:
        raise ConfigurationError(f"--replay-tokens {args.replay_tokens:g}: is for random weights; add --replay SHAPE")
    if args.replay_tokens is not None and not args.replay_tokens > 1:
        raise ConfigurationError(f"--replay-tokens {args.replay_tokens:g}: an iteration emits more than 1; give more")
    if args.replay_vocabulary < replay.MIN_VOCABULARY:
        raise ConfigurationError(f"--replay-vocabulary {args.replay_vocabulary}: give at least {replay.MIN_VOCABULARY}")
    if args.replay is not None and (len(lengths) != 2 or not 2 <= lengths[0] <= lengths[1]):
        text = ",".join(map(str, lengths))
        raise ConfigurationError(f"--replay-lengths {text}: give the shortest, at least 2, and the longest")
