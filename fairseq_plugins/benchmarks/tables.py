"""The table of `spec-dec-bench`."""

from collections.abc import Sequence

import numpy as np

from fairseq_plugins.benchmarks.contenders import GREEDY
from fairseq_plugins.benchmarks.measuring import Row
from fairseq_plugins.shared.display import shown, table

PERCENTILES = (50, 90, 99)


def table_of(rows: Sequence[Row], batch_sizes: Sequence[int]) -> str:
    """Return quality, identity, speed and latency in Markdown; ratios are those of the first batch size."""
    first, by_name, references = batch_sizes[0], {row.name: row for row in rows}, compared_with(rows)
    lines = []
    for row in rows:
        line = {"decoder": row.name, "BLEU": shown(row.bleu, ".2f")}
        line |= {f"same as {name.removeprefix('fairseq ')}": _same(row, name) for name in references}
        line["tokens/iteration"] = shown(row.tokens_per_iteration.get(first), ".2f")
        line |= {f"sent/s, batch {size}": f"{row.rate(size):.1f}" for size in batch_sizes}
        if 1 in batch_sizes:
            # Of the medians of each sentence over the repetitions.
            percentiles = np.percentile(row.latencies, PERCENTILES)
            line["ms, p50 / p90 / p99"] = " / ".join(f"{1000 * seconds:.1f}" for seconds in percentiles)
        for name, baseline in _baselines(row).items():
            other = by_name.get(baseline)
            line[f"× {name}"] = "-" if other is None else f"{row.rate(first) / other.rate(first):.2f}"
        lines.append(line)
    titles = [name for name in lines[0] if name[0] != "×" or any(line[name] != "-" for line in lines)]
    return table([[line[title] for title in titles] for line in lines], titles)


def compared_with(rows: Sequence[Row]) -> list[str]:
    """Return the names of the rows that others are compared with, in their order; of all if none is."""
    others = {row.reference for row in rows if row.reference != row.name}
    return list(dict.fromkeys(row.reference for row in rows if row.reference in others or not others))


def _same(row: Row, reference: str) -> str:
    """Return how many sentences have the reference's ids, if the row is compared with it."""
    if row.name == reference:
        return "reference"
    return f"{row.identical} of {row.sentences}" if row.reference == reference else "-"


def _baselines(row: Row) -> dict[str, str]:
    """Return the rows over which the table gives speed: the same search of others, and our greedy decoding."""
    search = "greedy" if row.beam == 1 else f"beam {row.beam}"
    return {"fairseq": f"fairseq beam {row.beam}", "CTranslate2": f"CTranslate2 {search} fp32", "greedy": GREEDY}
