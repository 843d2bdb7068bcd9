"""The tables of `spec-dec-bench`: a short one, and with --long output, speed and latency."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from fairseq_plugins.benchmarks.contenders import GREEDY
from fairseq_plugins.benchmarks.measuring import Row, speed_up
from fairseq_plugins.shared.display import shown, table

PERCENTILES = (50, 90, 99)

# Title of a column, and the cell of a row in it.
Column = tuple[str, Callable[[Row], str]]


def table_of(rows: Sequence[Row], columns: Sequence[Column], first: str = "decoder") -> str:
    """Return a table in Markdown with a line for each row; `first` is the title of the column of names."""
    body = [[row.name, *(cell(row) for _, cell in columns)] for row in rows]
    return table(body, [first, *(title for title, _ in columns)])


def short(rows: Sequence[Row], batch_sizes: Sequence[int]) -> list[Column]:
    """Return quality, identity, speed, and speed over the same search; ratios are those of the first batch size."""
    size = batch_sizes[0]
    return [
        ("BLEU", lambda row: shown(row.bleu, ".2f")),
        *(_same_as(reference) for reference in compared_with(rows)),
        ("tokens/iteration", lambda row: shown(row.timed_tokens.get(size), ".2f")),
        *by_batch(batch_sizes, lambda row, size: shown(row.rate(size), ".1f"), "sent/s, "),
        *speed_ups(rows, size),
    ]


def long(rows: Sequence[Row], batch_sizes: Sequence[int], output_size: int) -> list[tuple[str, str]]:
    """Return title and table of output, speed, and latency if batch size 1 was timed.

    The whole subset was decoded in batches of `output_size`, the timed sentences in those of `batch_sizes`.
    """
    output: list[Column] = [
        ("lossless", lambda row: "yes" if row.lossless else "no, int8" if row.lossy else ""),
        *by_batch(batch_sizes, lambda row, size: f"{row.identical_timed[size]} of {row.timed_sentences}", "same, "),
        (f"iterations per sentence, batch {output_size}", lambda row: shown(row.iterations, ".2f")),
        (f"tokens/iteration, batch {output_size}", lambda row: shown(row.tokens_per_iteration, ".2f")),
    ]
    tables = [
        ("Output", table_of(rows, output)),
        ("Speed", table_of(rows, by_batch(batch_sizes, _rates), "sentences/s")),
    ]
    if 1 in batch_sizes:
        latency = [(f"p{percent}", _percentile(percent)) for percent in PERCENTILES]
        tables.append(("Latency", table_of(rows, latency, "ms per sentence, batch 1")))
    return tables


def by_batch(batch_sizes: Sequence[int], cell: Callable[[Row, int], str], title: str = "") -> list[Column]:
    """Return a column for each batch size."""
    return [(f"{title}batch {size}", _at(size, cell)) for size in batch_sizes]


def _at(batch_size: int, cell: Callable[[Row, int], str]) -> Callable[[Row], str]:
    return lambda row: cell(row, batch_size)


def compared_with(rows: Sequence[Row]) -> list[str]:
    """Return the names of the rows that others are compared with, in their order; of all if none is."""
    others = {row.reference for row in rows if row.reference != row.name}
    return list(dict.fromkeys(row.reference for row in rows if row.reference in others or not others))


def _same_as(reference: str) -> Column:
    """Return the column of sentences with the reference's ids, for the rows that are compared with it."""

    def cell(row: Row) -> str:
        if row.name == reference:
            return "reference"
        return f"{row.identical} of {row.sentences}" if row.reference == reference else "-"

    return f"same as {reference.removeprefix('fairseq ')}", cell


def speed_ups(rows: Sequence[Row], batch_size: int) -> list[Column]:
    """Return columns of the speed over measured rows with the same search, and over our greedy decoding."""
    by_name = {row.name: row for row in rows}

    def baseline(name: str, row: Row) -> Row | None:
        search = "greedy" if row.beam == 1 else f"beam {row.beam}"
        over = {"fairseq": f"fairseq beam {row.beam}", "CTranslate2": f"CTranslate2 {search} fp32", "greedy": GREEDY}
        return by_name.get(over[name])

    def cell(name: str, row: Row) -> str:
        other = baseline(name, row)
        return "-" if other is None else shown(speed_up(row, other, batch_size), ".2f")

    names = [name for name in ("fairseq", "CTranslate2", "greedy") if any(baseline(name, row) for row in rows)]
    return [(f"× {name}", partial(cell, name)) for name in names]


def _rates(row: Row, batch_size: int) -> str:
    """Return sentences per second: the median, and in brackets the slowest and the fastest repetition."""
    times = row.seconds[batch_size]
    slowest, fastest = row.timed_sentences / max(times), row.timed_sentences / min(times)
    return f"{row.rate(batch_size):.1f} ({slowest:.1f}–{fastest:.1f})"


def _percentile(percent: int) -> Callable[[Row], str]:
    return lambda row: f"{np.percentile(row.latencies, percent) * 1000:.1f}"
