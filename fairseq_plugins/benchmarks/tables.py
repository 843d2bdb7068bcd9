"""The tables of `spec-dec-bench`: output, speed, speed-ups, latency and memory."""

from collections.abc import Sequence

import numpy as np

from fairseq_plugins.benchmarks.contenders import BEAM_1, BEAM_5, CTRANSLATE2_GREEDY, GREEDY
from fairseq_plugins.benchmarks.measuring import Row, speed_up
from fairseq_plugins.shared.tables import shown, table

PERCENTILES = (50, 90, 99)
_MEGABYTE = 1e6


def output_table(rows: Sequence[Row], batch_sizes: Sequence[int]) -> str:
    """Return a table of BLEU, sentences with fairseq's ids (all, and timed ones by batch size), and iterations."""
    references = compared_with(rows)
    header = ["decoder", "lossless", "BLEU", *map(same_as, references), *_batches(batch_sizes)]
    header += ["iterations", "tokens/iteration"]
    body = [
        [
            row.name,
            "yes" if row.lossless else "no, int8" if row.lossy else "",
            shown(row.bleu, ".2f"),
            *identical(row, references),
            *(f"{row.identical_timed[size]} of {row.timed_sentences}" for size in batch_sizes),
            shown(row.iterations, ".2f"),
            shown(row.tokens_per_iteration, ".2f"),
        ]
        for row in rows
    ]
    return table(body, header)


def compared_with(rows: Sequence[Row]) -> list[str]:
    """Return the names of the rows that others are compared with, in their order; of all if none is."""
    others = {row.reference for row in rows if row.reference != row.name}
    return list(dict.fromkeys(row.reference for row in rows if row.reference in others or not others))


def same_as(reference: str) -> str:
    """Return the title of the column of sentences with the reference's ids."""
    return f"same as {reference.removeprefix('fairseq ')}"


def identical(row: Row, references: Sequence[str]) -> list[str]:
    """Return the cells of `same_as` for these references, one of which a row is compared with."""
    count = f"{row.identical} of {row.sentences}"
    return [
        "reference" if row.name == reference else count if row.reference == reference else "-"
        for reference in references
    ]


def speed_table(rows: Sequence[Row], batch_sizes: Sequence[int]) -> str:
    """Return a table of sentences per second: the median, and in brackets slowest and fastest repetition."""
    cells = "{:.1f} ({:.1f}–{:.1f})".format
    body = [[row.name, *(cells(row.rate(size), *rate_range(row, size)) for size in batch_sizes)] for row in rows]
    return table(body, ["sentences/s", *_batches(batch_sizes)])


def rate_range(row: Row, batch_size: int) -> tuple[float, float]:
    """Return sentences per second of the slowest and the fastest repetition."""
    times = row.seconds[batch_size]
    return row.timed_sentences / max(times), row.timed_sentences / min(times)


def speed_up_table(rows: Sequence[Row], batch_sizes: Sequence[int], baseline: Row) -> str:
    """Return a table of speed-ups over one row, by batch size."""
    body = [[row.name, *(shown(speed_up(row, baseline, size), ".2f") for size in batch_sizes)] for row in rows]
    return table(body, [f"× {baseline.name}", *_batches(batch_sizes)])


def baselines(rows: Sequence[Row]) -> list[Row]:
    """Return the measured rows that others are compared with."""
    return [row for name in (BEAM_5, BEAM_1, CTRANSLATE2_GREEDY) for row in rows if row.name == name]


def speed_ups(row: Row, rows: Sequence[Row], batch_size: int) -> dict[str, float | None]:
    """Return the speed of a row over others with the same search, and over our greedy decoding without drafts."""
    search = "greedy" if row.beam == 1 else f"beam {row.beam}"
    over = {"fairseq": f"fairseq beam {row.beam}", "CTranslate2": f"CTranslate2 {search} fp32", "greedy": GREEDY}
    by_name = {other.name: other for other in rows}
    return {
        column: speed_up(row, by_name[name], batch_size) if name in by_name else None for column, name in over.items()
    }


def latency_table(rows: Sequence[Row]) -> str:
    """Return a table of milliseconds per sentence at batch size 1: percentiles over the sentences."""
    body = [[row.name, *(f"{value * 1000:.1f}" for value in np.percentile(row.latencies, PERCENTILES))] for row in rows]
    return table(body, ["ms per sentence, batch 1", *(f"p{percent}" for percent in PERCENTILES)])


def memory_table(rows: Sequence[Row], batch_sizes: Sequence[int]) -> str:
    """Return a table of megabytes, as SpecDec Tables 14 and 15: weights, peak, and computed weights and caches.

    On a GPU the peaks of allocated and of reserved memory.
    """
    on_gpu = any(row.peak_reserved for row in rows)
    header = ["MB", "model weights"]
    for text in _batches(batch_sizes):
        header += [f"peak, {text}", *(["reserved"] if on_gpu else []), "on paper", "ratio"]
    body = []
    for row in rows:
        cells = [row.name, megabytes(row.weights)]
        for size in batch_sizes:
            peak, paper = row.peak_memory.get(size), row.on_paper.get(size)
            ratio = peak / paper if peak is not None and paper else None
            reserved = [megabytes(row.peak_reserved.get(size))] if on_gpu else []
            cells += [megabytes(peak), *reserved, "-" if paper is None else megabytes(paper), shown(ratio, ".2f")]
        body.append(cells)
    return table(body, header)


def megabytes(size: int | None) -> str:
    """Return bytes as megabytes."""
    return "not measured" if size is None else f"{size / _MEGABYTE:.1f}"


def _batches(batch_sizes: Sequence[int]) -> list[str]:
    return [f"batch {size}" for size in batch_sizes]
