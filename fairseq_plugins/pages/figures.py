"""Figures of reports as PNG, light or dark: Okabe and Ito's colours, and a marker or line style for each series.

The figures are narrow, so that their text is legible at half the size.
"""

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_plugins.decoding.reliability import Reliability
from fairseq_plugins.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito 2008, "Color universal design", without the yellow, which is too light for lines on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# The same for dark backgrounds.
_COLOURS_ON_DARK = ("#56B4E9", "#FF7F27", "#16B88A", "#DD9CC0", "#8FA8FF", "#E69F00", "#ECEEF1")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)))
GREY = "#777777"

_STYLE = {
    "font.size": 13,
    "axes.titlesize": 13,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 12,
    "lines.linewidth": 2,
    # Labels come from file names and may hold dollar signs.
    "text.parse_math": False,
}


def _background(dark: bool) -> dict[str, Any]:
    """Return matplotlib's settings for a light or dark background, with the colours of colours.css."""
    page, text, line = ("#16181c", "#eceef1", "#3a3f48") if dark else ("#ffffff", "#1b1d21", "#d4d8de")
    texts = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    return {"figure.facecolor": page, "axes.facecolor": page, "grid.color": line, **dict.fromkeys(texts, text)}


# More points make a scatter plot slower, not clearer.
_MAX_POINTS = 5000


def series_style(index: int, dark: bool = False) -> dict[str, Any]:
    """Return colour, marker and line style of the series with this index."""
    return {
        "color": (_COLOURS_ON_DARK if dark else COLOURS)[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": LINES[index % len(LINES)],
    }


def draw(painter: Any, width: float = 6.4, height: float = 4.2, panels: int = 1, dark: bool = False) -> bytes:
    """Return a figure as PNG.

    Args:
        painter: called with the axes, one or a sequence of `panels`.
        width: in inches.
        height: in inches.
        panels: number of axes, one below another.
        dark: light text on a dark background.

    Raises:
        ConfigurationError: if matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError("matplotlib is not installed; pip install '.[reports]'") from error
    style: dict[Any, Any] = {**_STYLE, **_background(dark)}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        painter(figure.subplots(panels, 1))
        target = io.BytesIO()
        figure.savefig(target, format="png", dpi=150)
    return target.getvalue()


def speed_up_distribution(series: Mapping[str, Sequence[float]], what: str, dark: bool = False) -> bytes:
    """Draw the histogram of speed-ups of sentences, GAD Figure 4.

    Args:
        series: label -> speed-up of every sentence.
        what: label of the axis: how speed-up is measured.
        dark: as in `draw`, here and below.
    """
    # Bins fit the first 98 %: outliers must not widen them.
    step = _round_step(max(float(np.percentile(values, 98)) for values in series.values()) / 26)
    usual = max(_usual(values) for values in series.values())
    edges = np.arange(0, usual + 2 * step, step)
    beyond = max(max(values) for values in series.values()) > edges[-1]

    def paint(axes: "Axes") -> None:
        for index, (label, values) in enumerate(series.items()):
            style = series_style(index, dark)
            weights = np.full(len(values), 100 / len(values))
            counts, _ = np.histogram(np.minimum(values, edges[-1]), edges, weights=weights)
            if len(series) == 1:
                axes.stairs(counts, edges, fill=True, color=style["color"], alpha=0.35)
            line = {"color": style["color"], "linestyle": style["linestyle"], "linewidth": 1.8}
            axes.stairs(counts, edges, **line, label=f"{label} (median {np.median(values):.2f}×)")
        axes.axvline(1, color=GREY, linewidth=1, label="1×: no gain")
        label = what + ("; last bin: this or more" if beyond else "")
        axes.set(xlabel=_wrapped(label), ylabel="sentences (%)", xlim=(0, edges[-1]))
        axes.xaxis.set_major_formatter("{x:g}×")
        _legend(axes)

    return draw(paint, dark=dark)


def speed_against_edits(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]], what: str, dark: bool = False
) -> bytes:
    """Draw the speed-up of every sentence over its edit ratio, Figure 5 of Aggressive Decoding, and medians as lines.

    Args:
        series: label -> (edit ratios, speed-ups).
        what: label of the axis.
    """

    def paint(axes: "Axes") -> None:
        for index, (label, (ratios, speed_ups)) in enumerate(series.items()):
            style = series_style(index, dark)
            x, y = np.asarray(ratios), np.asarray(speed_ups)
            shown = np.arange(len(x))
            if len(x) > _MAX_POINTS:
                shown = np.random.default_rng(0).choice(len(x), _MAX_POINTS, replace=False)
            dots: dict[str, Any] = {"color": style["color"], "marker": style["marker"]}
            axes.scatter(x[shown], y[shown], s=12, alpha=0.35, linewidths=0, **dots)
            xs, medians = _binned(x, y, np.median)
            axes.plot(xs, medians, **style, linewidth=2, markersize=6, markeredgecolor="white", label=label)
        # Without the few outputs many times longer than their sources, which would compress all others.
        usual = 1.02 * max(float(np.percentile(ratios, 99.5)) for ratios, _ in series.values())
        beyond = any(max(ratios) > usual for ratios, _ in series.values())
        label = "edit ratio (edits per source token)" + ("; the last 0.5 % are not shown" if beyond else "")
        axes.set(xlabel=_wrapped(label), ylabel=_wrapped(what, 34))
        axes.axhline(1, color=GREY, linewidth=1, label="1×: no gain")
        axes.set_ylim(0, 1.05 * max(_usual(speed_ups) for _, speed_ups in series.values()))
        axes.set_xlim(right=max(usual, 0.05))
        axes.yaxis.set_major_formatter("{x:g}×")
        _legend(axes, "lines: medians")

    return draw(paint, dark=dark)


def emitted_by_iteration(series: Mapping[str, Sequence[tuple[int, float, int]]], dark: bool = False) -> bytes:
    """Draw the mean emitted tokens of the first, second, ... iteration of a sentence.

    Args:
        series: label -> (iteration, mean, sentences with that iteration).
    """

    def paint(axes: "Axes") -> None:
        for index, (label, points) in enumerate(series.items()):
            # Without the means of a few very long sentences, which are noise.
            shown = [(number, mean) for number, mean, count in points if 100 * count >= points[0][2]]
            numbers, means = zip(*shown, strict=True)
            axes.plot(numbers, means, **series_style(index, dark), markersize=5, label=label)
        axes.axhline(1, color=GREY, linewidth=1, label="1: greedy decoding")
        axes.set(xlabel="iteration of the sentence (those that 1 % reach)", ylabel="emitted tokens, mean")
        axes.set_ylim(bottom=0)
        axes.locator_params(axis="x", integer=True)
        _legend(axes)

    return draw(paint, dark=dark)


def accepted_by_position(series: Mapping[str, tuple[Sequence[float], Sequence[float]]], dark: bool = False) -> bytes:
    """Draw the probability that drafted tokens are accepted, by position in the draft.

    Args:
        series: label -> (conditional on all before it, joint with all before it), by position from 1.
    """

    def paint(panels: Sequence["Axes"]) -> None:
        titles = ("accepted, given all before it were", "accepted together with all before it")
        for panel, title in enumerate(titles):
            axes = panels[panel]
            for index, (label, curves) in enumerate(series.items()):
                values = curves[panel]
                axes.plot(range(1, len(values) + 1), values, **series_style(index, dark), markersize=5, label=label)
            axes.set(title=title, ylabel="probability", ylim=(0, 1.03))
            axes.locator_params(axis="x", integer=True)
        panels[1].set_xlabel("position in the draft")
        _legend(panels[1])

    return draw(paint, height=7, panels=2, dark=dark)


def reliability_diagram(series: Mapping[str, Reliability], dark: bool = False) -> bytes:
    """Draw the share of right tokens over the drafter's probability, and the number of tokens.

    Args:
        series: label -> counts of at least one token.
    """

    def paint(panels: Sequence["Axes"]) -> None:
        above, below = panels
        above.plot([0, 1], [0, 1], color=GREY, linewidth=1, label="calibrated")
        for index, (label, counts) in enumerate(series.items()):
            probability, right, _ = zip(*counts.points(), strict=True)
            style, edges = series_style(index, dark), np.linspace(0, 1, len(counts.tokens) + 1)
            above.plot(probability, right, **style, markersize=6, label=f"{label} (error {counts.error:.3f})")
            shares = 100 * counts.tokens.numpy() / counts.total
            if len(series) == 1:
                below.stairs(shares, edges, fill=True, color=style["color"], alpha=0.35)
            below.stairs(shares, edges, color=style["color"], linestyle=style["linestyle"], linewidth=1.8)
        above.set(ylabel="share of right tokens", xlim=(0, 1), ylim=(0, 1.03))
        below.set(xlabel="the drafter's probability", ylabel="tokens (%)", xlim=(0, 1))
        _legend(above)

    return draw(paint, height=7, panels=2, dark=dark)


def iterations_by_length(series: Mapping[str, tuple[Sequence[int], Sequence[int]]], dark: bool = False) -> bytes:
    """Draw the mean iterations over the length of the output.

    Args:
        series: label -> (output tokens, iterations) of every sentence.
    """

    def paint(axes: "Axes") -> None:
        longest, max_mean = 0.0, 0.0
        for index, (label, (tokens, iterations)) in enumerate(series.items()):
            lengths, means = _binned(np.asarray(tokens), np.asarray(iterations), np.mean)
            longest, max_mean = max(longest, *lengths), max(max_mean, *means)
            axes.plot(lengths, means, **series_style(index, dark), markersize=5, label=label)
        longest *= 1.08
        axes.plot([0, longest], [0, longest], color=GREY, linewidth=1, label="greedy: one token each")
        axes.set(xlabel="tokens of the output", ylabel="iterations, mean", xlim=(0, longest), ylim=(0, 1.25 * max_mean))
        _legend(axes)

    return draw(paint, dark=dark)


def quality_against_speed(
    series: Mapping[str, Sequence[tuple[float, float]]],
    references: Mapping[str, float],
    front: Sequence[tuple[float, float, str]],
    speed_label: str,
    dark: bool = False,
) -> bytes:
    """Draw BLEU over speed for the settings of a sweep, and the Pareto front as a line.

    Args:
        series: label -> (speed, BLEU) of every setting.
        references: label -> BLEU of decoders drawn as horizontal lines.
        front: (speed, BLEU, label) of the settings on the Pareto front.
        speed_label: label of the axis.
    """

    def paint(axes: "Axes") -> None:
        ordered = sorted(front)
        xs, ys = [x for x, _, _ in ordered], [y for _, y, _ in ordered]
        line: dict[str, Any] = {"color": GREY, "alpha": 0.35, "zorder": 1}
        axes.plot(xs, ys, **line, linewidth=7, label="Pareto front", solid_capstyle="round")
        if len(ordered) == 1:
            axes.scatter(xs, ys, **line, s=260, linewidths=0)
        for index, (label, points) in enumerate(series.items()):
            style = series_style(index, dark)
            speeds, scores = zip(*points, strict=True)
            dots: dict[str, Any] = {
                "color": style["color"],
                "marker": style["marker"],
                "edgecolors": "white",
                "linewidths": 0.6,
            }
            axes.scatter(speeds, scores, **dots, s=55, label=label, zorder=3)
        for number, (x, y, text) in enumerate(ordered):
            # Alternately above and below, and towards the middle: neighbours on the front are often close.
            is_right = 2 * x > xs[0] + xs[-1]
            position: dict[str, Any] = {
                "xytext": (-6 if is_right else 6, 7 if number % 2 == 0 else -17),
                "textcoords": "offset points",
                "ha": "right" if is_right else "left",
            }
            axes.annotate(text, (x, y), **position, fontsize=11)
        for index, (label, value) in enumerate(references.items()):
            line = {"linewidth": 1.2, "linestyle": LINES[1 + index % 3]}
            axes.axhline(value, color=GREY, **line, label=f"{label}: {value:.2f}")
        axes.set(xlabel=speed_label, ylabel="BLEU")
        axes.margins(0.12, 0.15)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)

    return draw(paint, height=5.4, dark=dark)


def _binned(x: np.ndarray, y: np.ndarray, summary: Any, bins: int = 12) -> tuple[list[float], list[float]]:
    """Return mean x and summary of y in bins of about equally many points."""
    edges = np.unique(np.quantile(x, np.linspace(0, 1, bins + 1)))
    members = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, max(len(edges) - 2, 0))
    groups = [members == index for index in np.unique(members)]
    return [float(x[group].mean()) for group in groups], [float(summary(y[group])) for group in groups]


def _usual(values: Sequence[float]) -> float:
    """Return the largest value, or a lower limit if there are outliers."""
    return min(float(max(values)), 1.5 * float(np.percentile(values, 95)))


def _round_step(value: float) -> float:
    """Return the smallest of 0.1, 0.2, 0.5, 1, ... that is not below a value."""
    power = 10.0 ** math.floor(math.log10(max(value, 1e-9)))
    return max(0.1, next(power * factor for factor in (1, 2, 5, 10) if power * factor >= value * 0.999))


def _wrapped(label: str, width: int = 52) -> str:
    """Wrap a label to the length of an axis."""
    return textwrap.fill(label, width)


def _legend(axes: "Axes", title: str | None = None) -> None:
    if len(axes.get_legend_handles_labels()[1]) > 0:
        axes.legend(title=title)
