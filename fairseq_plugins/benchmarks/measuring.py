"""Measure quality, identity and speed of contenders."""

import argparse
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from fairseq_plugins.benchmarks.bench import Bench, References, Tokens
from fairseq_plugins.benchmarks.contenders import BEAM_1, Contender, reference_of
from fairseq_plugins.checkpoint.session import precision
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.reference.backend import TorchBackend
from fairseq_plugins.decoding.reference.captured.graph_capture import EAGER_USES, Graphs
from fairseq_plugins.shared.display import progress_bar

WARM_UP_SENTENCES = 5


@dataclass
class Row:
    """Measurements of one contender; None for quantities that do not apply."""

    name: str
    beam: int = 1
    bleu: float | None = None
    identical: int | None = None  # sentences with the ids of `reference`, whole subset
    sentences: int = 0
    identical_timed: dict[int, int] = field(default_factory=dict)  # the same of the timed sentences, by batch size
    timed_sentences: int = 0
    tokens_per_iteration: dict[int, float] = field(default_factory=dict)  # of the timed sentences, by batch size
    seconds: dict[int, list[float]] = field(default_factory=dict)  # batch size -> one entry per repetition
    lossless: bool = False  # by construction
    reference: str = BEAM_1  # name of the row that the output is compared with
    latencies: list[float] = field(default_factory=list)  # median seconds of every timed sentence at batch size 1

    def spread(self) -> float:
        """Return how many times as long as the fastest repetition the slowest took, at worst over the batch sizes."""
        return max(max(times) / min(times) for times in self.seconds.values())

    def rate(self, batch_size: int) -> float:
        """Return sentences per second: the median over the repetitions."""
        return self.timed_sentences / statistics.median(self.seconds[batch_size])


def count_identical(outputs: Mapping[int, Tokens], reference: Mapping[int, Tokens]) -> int:
    """Return the number of sentences with the same token ids in both."""
    return sum(tokens == reference[number] for number, tokens in outputs.items())


def measure(
    bench: Bench, contenders: Sequence[Contender], args: argparse.Namespace, references: References | None
) -> list[Row]:
    """Decode the subset once for quality, then part of it repeatedly for speed; return one row per contender.

    `args` has the options of `spec-dec-bench`.
    """
    timed = bench.first(args.timing_sentences)
    kind = precision(bench.cfg)
    rows = [Row(c.name, c.beam, lossless=c.lossless, reference=reference_of(c, kind)) for c in contenders]
    for row in rows:
        row.sentences, row.timed_sentences = len(bench.order), len(timed)
    per_batch_size = len(timed[-WARM_UP_SENTENCES:]) + args.repeats * len(timed)
    per_contender = len(bench.order) + len(args.timing_batch_sizes) * per_batch_size
    outputs: dict[str, dict[int, Tokens]] = {}
    with progress_bar(per_contender * len(contenders)) as bar:
        for contender, row in zip(contenders, rows, strict=True):
            bar.set_description(f"quality, {contender.name}", refresh=False)
            outputs[row.name], _ = bench.decode(bench.generator(contender), bench.order, bench.batch_size, bar)
            if references is not None:
                row.bleu = bleu(bench, outputs[row.name], references)
        for row in rows:
            row.identical = count_identical(outputs[row.name], outputs[row.reference])
        pairs = [(row, bench.generator(contender)) for row, contender in zip(rows, contenders, strict=True)]
        for batch_size in args.timing_batch_sizes:
            measure_speed(bench, pairs, batch_size, args, bar)
    return rows


def measure_speed(
    bench: Bench, pairs: Sequence[tuple[Row, Any]], batch_size: int, args: argparse.Namespace, bar: tqdm
) -> None:
    """Measure the seconds of each repetition, identity and tokens per iteration at a batch size.

    `pairs` are rows and their generators.
    """
    timed = bench.first(args.timing_sentences)
    for _, generator in pairs:
        bar.set_description(f"warm-up, batch {batch_size}", refresh=False)
        bench.decode(generator, timed[-WARM_UP_SENTENCES:], batch_size, bar)
        capture_steps(bench, generator, timed, batch_size)
    before = [counts(generator) for _, generator in pairs]
    outputs: dict[str, dict[int, Tokens]] = {}
    seconds: dict[str, list[list[float]]] = {row.name: [] for row, _ in pairs}
    for repetition in range(args.repeats):
        # In another order each time: a shared machine is slower for seconds, and slower after some decoders.
        turns = list(pairs)
        random.Random(repetition).shuffle(turns)
        for row, generator in turns:
            turn = f"speed {repetition + 1}/{args.repeats}, batch {batch_size}, {row.name}"
            bar.set_description(turn, refresh=False)
            outputs[row.name], times = bench.decode_timed(generator, timed, batch_size, bar)
            passes = [times]
            while sum(map(sum, passes)) < args.timing_seconds:
                passes.append(bench.decode_timed(generator, timed, batch_size)[1])
            seconds[row.name].append([statistics.mean(batch) for batch in zip(*passes, strict=True)])
    for (row, generator), (tokens_before, iterations_before) in zip(pairs, before, strict=True):
        row.seconds[batch_size] = [sum(times) for times in seconds[row.name]]
        row.identical_timed[batch_size] = count_identical(outputs[row.name], outputs[row.reference])
        if batch_size == 1:
            row.latencies = [statistics.median(times) for times in zip(*seconds[row.name], strict=True)]
        tokens, runs = counts(generator)
        if runs > iterations_before:
            row.tokens_per_iteration[batch_size] = (tokens - tokens_before) / (runs - iterations_before)


def graphs_of(generator: Any) -> Graphs | None:
    """Return the graphs of one of our generators that has decoded; None without graphs, and for other generators."""
    backend = generator.backend if isinstance(generator, DraftVerifyGenerator) else None
    return backend.method.verifier.engine.graphs if isinstance(backend, TorchBackend) else None


def capture_steps(bench: Bench, generator: Any, numbers: Sequence[int], batch_size: int) -> None:
    """On a GPU decode sentences until a pass of one of our generators captures no CUDA graph, at most eight times."""
    graphs = graphs_of(generator) if bench.cuda else None
    if graphs is None or not graphs.are_on:
        return
    for number in range(8):
        before = graphs.captures
        bench.decode(generator, numbers, batch_size)
        if number >= EAGER_USES and graphs.captures == before:
            return


def counts(generator: Any) -> tuple[int, int]:
    """Return tokens and iterations of one of our generators so far; zeros for others."""
    stats = getattr(generator, "stats", None)
    return (0, 0) if stats is None else (stats.tokens, stats.iterations)


def bleu(bench: Bench, outputs: Mapping[int, Tokens], references: References) -> float:
    """Return sacrebleu's BLEU of raw text."""
    numbers = sorted(outputs)
    hypotheses = [bench.session.text(outputs[number]) for number in numbers]
    by_file = zip(*(references[number] for number in numbers), strict=True)
    return bench.scorer.corpus_score(hypotheses, [list(lines) for lines in by_file]).score


def bleu_signature(bench: Bench, references: int) -> str:
    """Return sacrebleu's signature for this number of references, which is available only after a score."""
    bench.scorer.corpus_score(["-"], [["-"]] * references)
    return str(bench.scorer.get_signature())
