"""The figure of `spec-dec-bench`: speed by contender and batch size."""

from collections.abc import Sequence
from typing import Any

from fairseq_plugins.benchmarks.measuring import Row
from fairseq_plugins.benchmarks.tables import rate_range
from fairseq_plugins.pages.figures import COLOURS, GREY, draw, series_style

# Contenders of a kind share a colour and differ in markers and lines.
_KINDS = {"fairseq": GREY, "CTranslate2": COLOURS[1], "lossless": COLOURS[0], "not lossless": COLOURS[3]}


def kind(row: Row) -> str:
    """Return the kind of a row, for its colour."""
    name = row.name.split()[0]
    if name in _KINDS:
        return name
    return "lossless" if row.lossless else "not lossless"


def speed_figure(rows: Sequence[Row], batch_sizes: Sequence[int]) -> bytes:
    """Draw sentences per second: bars with their spread at the first batch size, and lines over batch sizes."""
    first = batch_sizes[0]
    counts = dict.fromkeys(_KINDS, 0)
    styles = {}
    for row in rows:
        number = counts[kind(row)]
        counts[kind(row)] += 1
        styles[row.name] = {**series_style(number), "color": _KINDS[kind(row)]}

    from matplotlib.ticker import LogLocator

    def paint(panels: Any) -> None:
        bars, lines = panels
        for height, row in enumerate(reversed(rows)):
            rate, (low, high) = row.rate(first) or 0.0, rate_range(row, first)
            bars.barh(height, rate, color=_KINDS[kind(row)], xerr=[[rate - low], [high - rate]], ecolor="black")
            beside = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
            bars.annotate(f"{rate:.3g}", (high, height), **beside, size=11)
        bars.set_yticks(range(len(rows)), [row.name for row in reversed(rows)])
        bars.margins(x=0.12)
        bars.grid(axis="y", visible=False)
        bars.set(xlabel="sentences per second", title=f"batch {first}: median, slowest and fastest repetition")
        shown = [name for name in _KINDS if counts[name]]
        patches = [bars.barh(0, 0, color=_KINDS[name]) for name in shown]
        bars.legend(patches, shown, loc="lower right", bbox_to_anchor=(1.02, 1.08), ncols=2, fontsize=11)
        for row in rows:
            lines.plot(batch_sizes, [row.rate(size) for size in batch_sizes], **styles[row.name], label=row.name)
        lines.set_xscale("log", base=2)
        lines.set_yscale("log")
        # Powers of ten alone would give too few ticks.
        lines.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        lines.yaxis.set_major_formatter("{x:g}")
        lines.yaxis.set_minor_formatter("")
        lines.set_xticks(batch_sizes, [str(size) for size in batch_sizes])
        lines.set(xlabel="batch size", ylabel="sentences per second", title="over batch sizes")
        lines.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, fontsize=11)

    return draw(paint, width=8, height=7 + 0.6 * max(len(rows), 8), panels=2)
