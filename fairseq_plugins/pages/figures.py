"""Figures of reports as PNG: Okabe and Ito's colours, and a marker or line style for each series.

The figures are narrow, so that their text is legible at half the size. Their background is transparent, and text and
grids are grey: they are legible on light and dark pages.
"""

import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_plugins.decoding.recording.reliability import Reliability
from fairseq_plugins.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito 2008, "Color universal design"; purple in place of black and yellow, which need one background.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#9467BD")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)))
GREY = "#777777"
LABEL = 52  # characters along an axis

_STYLE: dict[Any, Any] = {
    "font.size": 13,
    "axes.titlesize": 13,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#88888860",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 12,
    "lines.linewidth": 2,
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "#ffffff00"),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY),
    # Labels come from file names and may hold dollar signs.
    "text.parse_math": False,
}


def series_style(index: int) -> dict[str, Any]:
    """Return colour, marker and line style of the series with this index."""
    names = {"color": COLOURS, "marker": MARKERS, "linestyle": LINES}
    return {name: values[index % len(values)] for name, values in names.items()}


def draw(painter: Any, width: float = 6.4, height: float = 4.2, panels: int = 1) -> bytes:
    """Return a figure as PNG, of one or several panels, one below another; width and height are in inches.

    `painter` is called with the axes, a sequence for several panels. Raises ConfigurationError without matplotlib.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError("matplotlib", None, "is not installed", "pip install '.[reports]'") from error
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        painter(figure.subplots(panels, 1))
        target = io.BytesIO()
        figure.savefig(target, format="png", dpi=150)
    return target.getvalue()


def speed_up_distribution(series: Mapping[str, Sequence[float]], what: str) -> bytes:
    """Draw the histogram of speed-ups of sentences, GAD Figure 4; `what` says how speed-up is measured."""
    largest = max(map(_without_outliers, series.values()))

    def paint(axes: "Axes") -> None:
        from matplotlib.ticker import MaxNLocator

        edges = MaxNLocator(30, steps=[1, 2, 5, 10]).tick_values(0, largest)
        for index, (label, values) in enumerate(series.items()):
            weights = np.full(len(values), 100 / len(values))
            counts, _ = np.histogram(np.minimum(values, edges[-1]), edges, weights=weights)
            _stairs(axes, counts, edges, index, len(series) == 1, f"{label} (median {np.median(values):.2f}×)")
        axes.axvline(1, color=GREY, linewidth=1, label="1×: no gain")
        label = what + ("; last bin: this or more" if max(map(max, series.values())) > edges[-1] else "")
        axes.set(xlabel=textwrap.fill(label, LABEL), ylabel="sentences (%)", xlim=(0, edges[-1]))
        axes.xaxis.set_major_formatter("{x:g}×")
        axes.legend()

    return draw(paint)


def accepted_by_position(series: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> bytes:
    """Draw the probability that drafted tokens are accepted, by position in the draft, from 1.

    `series` is label -> (probability given that all before were accepted, joint probability with all before).
    """

    def paint(panels: Sequence["Axes"]) -> None:
        titles = ("accepted, given all before it were", "accepted together with all before it")
        for number, (axes, title) in enumerate(zip(panels, titles, strict=True)):
            for index, (label, curves) in enumerate(series.items()):
                values = curves[number]
                axes.plot(range(1, len(values) + 1), values, **series_style(index), markersize=5, label=label)
            axes.set(title=title, ylabel="probability", ylim=(0, 1.03))
            axes.locator_params(axis="x", integer=True)
        panels[1].set_xlabel("position in the draft")
        panels[1].legend()

    return draw(paint, height=7, panels=2)


def reliability_diagram(series: Mapping[str, Reliability]) -> bytes:
    """Draw the share of right tokens over the drafter's probability, and the number of tokens (at least one)."""

    def paint(panels: Sequence["Axes"]) -> None:
        above, below = panels
        above.plot([0, 1], [0, 1], color=GREY, linewidth=1, label="calibrated")
        for index, (label, counts) in enumerate(series.items()):
            probability, right, _ = zip(*counts.points(), strict=True)
            label = f"{label} (error {counts.error:.3f})"
            above.plot(probability, right, **series_style(index), markersize=6, label=label)
            edges = np.linspace(0, 1, len(counts.tokens) + 1)
            _stairs(below, 100 * counts.tokens.numpy() / counts.total, edges, index, len(series) == 1)
        above.set(ylabel="share of right tokens", xlim=(0, 1), ylim=(0, 1.03))
        below.set(xlabel="the drafter's probability", ylabel="tokens (%)", xlim=(0, 1))
        above.legend()

    return draw(paint, height=7, panels=2)


def _stairs(axes: "Axes", values: Any, edges: Any, index: int, is_only: bool, label: str | None = None) -> None:
    """Draw a histogram as an outline, filled if it is the only one."""
    style = series_style(index)
    if is_only:
        axes.stairs(values, edges, fill=True, color=style["color"], alpha=0.35)
    axes.stairs(values, edges, color=style["color"], linestyle=style["linestyle"], linewidth=1.8, label=label)


def _without_outliers(values: Sequence[float]) -> float:
    """Return the largest value, or a lower limit if there are outliers."""
    return min(float(max(values)), 1.5 * float(np.percentile(values, 95)))
