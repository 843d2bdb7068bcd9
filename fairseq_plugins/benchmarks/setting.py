"""What `spec-dec-bench` is asked to measure: its command line, its rows, and the bench that decodes them."""

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fairseq_plugins.benchmarks import replay
from fairseq_plugins.benchmarks.bench import Bench
from fairseq_plugins.benchmarks.comparison_options import get_parser, parse
from fairseq_plugins.benchmarks.contenders import (
    CONTENDERS,
    CTRANSLATE2_ON_CPU,
    CTRANSLATE2_ON_GPU,
    ON_CPU,
    REPLAYED,
    Contender,
    choose,
)
from fairseq_plugins.commands.parsing import positive, positive_list
from fairseq_plugins.commands.session import precision
from fairseq_plugins.errors import ConfigurationError

BATCH_SIZES = [1, 4, 8, 16, 32]
# Rows that are there for study, not for speed; --decoders names them.
_NOT_BY_DEFAULT = ("nat", "jacobi", "gs-jacobi")
_BY_LENGTH = ("greedy", "gad fixed width (replayed)")


@dataclass(frozen=True)
class Setting:
    """What to measure.

    Attributes:
        args: our own options.
        bench: decodes.
        wanted: the rows that were asked for.
    """

    args: argparse.Namespace
    bench: Bench
    wanted: list[Contender]


def all_contenders(cuda: bool, replayed: bool) -> list[Contender]:
    """The rows that there are on this device, those that others made first."""
    others = CTRANSLATE2_ON_GPU if cuda else CTRANSLATE2_ON_CPU
    searches = [contender for contender in CONTENDERS if contender.decoder == "beam"]
    ours = [contender for contender in CONTENDERS if contender not in searches] + ([] if cuda else list(ON_CPU))
    if replayed:
        undrafted = [contender for contender in ours if contender.decoder in ("greedy", "fast-beam")]
        return [*searches, *others, *undrafted, *(contender for contender in REPLAYED if not (cuda and contender.int8))]
    return [*searches, *others, *ours]


def benchmark_parser(contenders: Sequence[Contender]) -> argparse.ArgumentParser:
    """Return the parser of spec-dec-compare with the options of a benchmark added."""
    parser = get_parser("spec-dec-bench", contenders, repeats=5, batch_sizes=BATCH_SIZES)
    group = parser.add_argument_group("benchmark")
    group.add_argument("--threads", type=positive, help="threads on the CPU (default: what OMP_NUM_THREADS says)")
    group.add_argument("--no-memory", action="store_true", help="do not measure memory, for which models load again")
    add = group.add_argument
    add(
        "--long-run",
        type=positive,
        metavar="N",
        help="decode N sentences, those of the subset again and again, at "
        "--batch-size, and say of every tenth of them how fast it was and what memory there was; nothing else",
    )
    add(
        "--varied",
        action="store_true",
        help="with --long-run: draw the size of every batch, up to --batch-size, and "
        "its block size, up to --block-size (default: 5), and compare all outputs with those of fairseq's beam 1 (in "
        "half precision of our greedy)",
    )
    _add_replay_options(group)
    return parser


def _add_replay_options(group: argparse._ActionsContainer) -> None:
    shapes = list(replay.SHAPES)
    group.add_argument("--replay", choices=shapes, help="random weights of this shape, and replayed drafts")
    group.add_argument(
        "--replay-drafter",
        choices=["tokens", "features"],
        default="tokens",
        help="whose cost is paid: --drafter-context tokens, as deep as the verifier, or features, 2 layers",
    )
    group.add_argument(
        "--replay-lengths", type=positive_list, default=[10, 50], metavar="N,N", help="shortest and longest sentence"
    )
    group.add_argument(
        "--replay-vocabulary", type=positive, default=replay.VOCABULARY, metavar="N", help="symbols of the dictionary"
    )
    group.add_argument(
        "--replay-tokens",
        type=float,
        metavar="N",
        help="mean tokens per iteration of the lossless rows (default: 6.13, GAD Table 2)",
    )
    group.add_argument(
        "--by-length",
        type=positive_list,
        metavar="N,N,...",
        help="with --replay: milliseconds per sentence for --timing-sentences sentences of each of these lengths, of "
        "greedy and gad (or --decoders); nothing else",
    )


def configure(argv: Sequence[str]) -> Setting:
    """Parse arguments and load data; models are loaded when first needed."""
    replaying = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_replay_options(replaying)
    replaying.add_argument("--results")
    replaying.add_argument("--timing-sentences", type=positive, default=100)
    first, _ = replaying.parse_known_args(argv)
    made_here = Path(first.results or Path(tempfile.gettempdir()) / f"spec-dec-bench-{os.getuid()}")
    arguments = list(argv)
    _check_replay(first)
    if first.replay is not None:
        made = replay.prepare(
            made_here / "replay",
            first.replay,
            first.replay_drafter,
            first.timing_sentences,
            first.by_length or first.replay_lengths,
            first.replay_vocabulary,
            of_each=first.by_length is not None,
        )
        arguments = [*made, *arguments]
    cuda = torch.cuda.is_available() and "--cpu" not in argv
    rows = all_contenders(cuda, first.replay is not None)
    if first.replay_tokens is not None:
        rows = [replace(row, replay=first.replay_tokens) if row.replay and row.lossless else row for row in rows]
    args, cfg = parse(benchmark_parser(rows), arguments)
    if args.varied and args.long_run is None:
        raise ConfigurationError("--varied: is for a long run; add --long-run N")
    if args.varied and cfg.generation.max_len_a != 0:
        raise ConfigurationError(
            f"--varied: with --max-len-a {cfg.generation.max_len_a:g} outputs depend on what else is in the batch; add "
            "--max-len-a 0 --max-len-b N"
        )
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    bench = Bench(cfg, args.blockwise_path, made_here / "ctranslate2")
    usual = [row.name for row in rows if row.name not in _NOT_BY_DEFAULT]
    if args.by_length is not None:
        usual = list(_BY_LENGTH)
    named = args.decoders or ",".join(usual)
    wanted = choose(named, rows, kind=precision(cfg))
    if args.long_run is not None or args.by_length is not None:
        # No comparison with fairseq's search, which would take most of the time.
        wanted = [row for row in wanted if row.name in [name.strip() for name in named.split(",")]]
    return Setting(args, bench, wanted)


def _check_replay(args: argparse.Namespace) -> None:
    if args.replay_tokens is not None and args.replay is None:
        raise ConfigurationError(f"--replay-tokens {args.replay_tokens:g}: is for random weights; add --replay SHAPE")
    if args.replay_tokens is not None and not args.replay_tokens > 1:
        raise ConfigurationError(f"--replay-tokens {args.replay_tokens:g}: an iteration emits more than 1; give more")
    lengths = args.by_length or args.replay_lengths
    text = ",".join(map(str, lengths))
    if args.replay_vocabulary < replay.MIN_VOCABULARY:
        raise ConfigurationError(f"--replay-vocabulary {args.replay_vocabulary}: give at least {replay.MIN_VOCABULARY}")
    if args.by_length:
        if args.replay is None:
            raise ConfigurationError(f"--by-length {text}: is for random weights; add --replay SHAPE")
        if min(lengths) < 2:
            raise ConfigurationError(f"--by-length {text}: a sentence has at least 2 tokens, a word and its end")
    elif args.replay is not None and (len(lengths) != 2 or not 2 <= lengths[0] <= lengths[1]):
        raise ConfigurationError(f"--replay-lengths {text}: give the shortest, at least 2, and the longest")
