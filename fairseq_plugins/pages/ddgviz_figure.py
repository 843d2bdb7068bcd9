"""Draw a decoding dependency graph above its heat map of probabilities (Santilli et al. 2023, Figure 4)."""

import warnings
from bisect import bisect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path as Curve
from matplotlib.textpath import text_to_path

from fairseq_plugins.pages import fonts
from fairseq_plugins.pages.ddg import SOURCE, Sentence

# Lengths in inches, font sizes in points; legible at half the size.
MARGIN = 0.25
LEFT = 0.75  # for the numbers of the iterations
RIGHT = 0.95  # for the colour bar
ROW = 0.3
LINE = 0.27
GAP = 0.12
BOX = 0.34
MIN_COLUMN, MAX_LABEL = 0.5, 24  # inches, characters
MIN_WIDTH = 7.8
MAX_ARC = 1.6
MAX_SIDE, MAX_AREA = 30_000, 60e6  # pixels: limits of image viewers
LABEL_SIZE, NUMBER_SIZE, TEXT_SIZE, TITLE_SIZE = 11.0, 9.5, 11.5, 12.0

# Colour-blind-safe colours of Okabe and Ito.
SINGLE_COLOUR = "#666666"
GROUP_COLOURS = ("#D55E00", "#0072B2")  # of neighbouring groups, alternating
TINTS = ("#F9DFCC", "#CCE3F0")
COLOURS = "viridis"
FADED = 0.72  # share of white in cells of tokens that were already final

# Between groups with more edges, only those of the last earlier token are drawn.
MAX_EDGES = 36


@dataclass(frozen=True)
class Layout:
    """Coordinates in inches, from the left and from the top."""

    width: float
    height: float
    lefts: list[float]  # of every column
    widths: list[float]
    boxes: float  # top of the row of tokens
    cells: float  # top of the heat map

    @property
    def right(self) -> float:
        """Right edge of the rightmost column."""
        return max(left + width for left, width in zip(self.lefts, self.widths, strict=True))

    def middle(self, position: int, rightwards: bool) -> float:
        """Return the middle of a column, or of the source's node before the first column."""
        if position == SOURCE:
            return min(self.lefts) - 0.2 if rightwards else self.right + 0.2
        return self.lefts[position] + self.widths[position] / 2


def save(sentence: Sentence, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg."""
    with warnings.catch_warnings():
        # `fonts` has already warned.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = draw(sentence)
        files = [stem.with_name(stem.name + kind) for kind in (".png", ".svg")]
        width, height = figure.get_size_inches()
        dpi = min(150, MAX_SIDE / max(width, height), (MAX_AREA / (width * height)) ** 0.5)
        for file in files:
            figure.savefig(file, dpi=dpi, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files


def draw(sentence: Sentence) -> Figure:
    """Return the figure of one sentence: its dependency graph above the predictions of every iteration."""
    shown = [short(label) for label in sentence.labels]
    family = fonts.families([*shown, sentence.source, sentence.output])
    font = FontProperties(family=family)
    widths = [max(MIN_COLUMN, text_width(label, LABEL_SIZE, font) + 0.2) for label in shown]
    width = max(MIN_WIDTH, LEFT + sum(widths) + RIGHT + 2 * MARGIN)
    text_area = width - 2 * MARGIN - 0.75
    texts = [("source", wrap(sentence.source, text_area, font)), ("output", wrap(sentence.output, text_area, font))]
    layout = arrange(sentence, widths, width, sum(len(lines) for _, lines in texts))

    figure = Figure(figsize=(layout.width, layout.height))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, layout.width), ylim=(layout.height, 0))
    axes.axis("off")
    _header(axes, sentence, texts, font, layout)
    _graph(axes, sentence, shown, font, layout)
    _cells(axes, sentence, layout)
    _legend(axes, figure, layout, sentence.right_to_left)
    return figure


def arrange(sentence: Sentence, widths: list[float], width: float, lines: int) -> Layout:
    """Return the layout, which grows with the widths of tokens and the number of iterations."""
    order = range(len(widths)) if not sentence.right_to_left else range(len(widths) - 1, -1, -1)
    lefts = [0.0] * len(widths)
    left = MARGIN + LEFT
    for position in order:
        lefts[position] = left
        left += widths[position]
    draft = Layout(width, 0, lefts, widths, 0, 0)
    highest = max(_arc_height(draft, sentence, edge) for edge in drawn_edges(sentence))
    boxes = MARGIN + 1.6 * LINE + lines * LINE + GAP + highest + 0.1
    cells = boxes + BOX + GAP
    rows = len(sentence.trace.probability)
    height = cells + max(rows * ROW, 1.8) + GAP + 3.6 * LINE + MARGIN
    return Layout(width, height, lefts, widths, boxes, cells)


def drawn_edges(sentence: Sentence) -> list[tuple[int, int]]:
    """Return the edges to draw; between large groups only those of the last earlier token."""
    edges: list[tuple[int, int]] = []
    before = [SOURCE]
    for group in sentence.trace.groups:
        sources = before if len(before) * len(group) <= MAX_EDGES else before[-1:]
        edges += [(a, b) for b in group for a in sources]
        before = group
    return edges


def short(label: str) -> str:
    """Return a token as shown: long ones cut, control characters replaced."""
    label = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in label)
    return label if len(label) <= MAX_LABEL else label[: MAX_LABEL - 1] + "…"


def text_width(text: str, size: float, font: FontProperties) -> float:
    """Return the width of a line of text in inches."""
    font = font.copy()
    font.set_size(size)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return width / 72


def wrap(text: str, width: float, font: FontProperties) -> list[str]:
    """Break a text into lines of at most `width` inches, between words or inside longer ones."""
    lines: list[str] = []
    line, used = "", 0.0
    space = text_width(" ", TEXT_SIZE, font)
    for word in text.split():
        for part in _parts(word, width, font):
            needed = text_width(part, TEXT_SIZE, font)
            if line and used + space + needed <= width:
                line, used = f"{line} {part}", used + space + needed
            else:
                lines += [line] if line else []
                line, used = part, needed
    return [*lines, line]


def _parts(word: str, width: float, font: FontProperties) -> list[str]:
    """Split a word into parts that fit a line; a text without spaces is one word."""
    parts = []
    while text_width(word, TEXT_SIZE, font) > width:
        count = bisect(range(1, len(word) + 1), width, key=lambda n: text_width(word[:n], TEXT_SIZE, font))
        parts.append(word[: max(count, 1)])
        word = word[max(count, 1) :]
    return [*parts, word]


def _text(axes: Axes, x: float, y: float, text: str, size: float, **options: Any) -> None:
    family = {} if "font" in options else {"family": fonts.BASE}
    axes.text(x, y, text, parse_math=False, **{"va": "center", "ha": "left", **family, **options, "size": size})


def _header(
    axes: Axes, sentence: Sentence, texts: list[tuple[str, list[str]]], font: FontProperties, layout: Layout
) -> None:
    y = MARGIN + LINE / 2
    _text(axes, MARGIN, y, sentence.title, TITLE_SIZE, weight="bold")
    y += 1.6 * LINE
    for name, lines in texts:
        _text(axes, MARGIN, y, name, TEXT_SIZE, color=SINGLE_COLOUR)
        for line in lines:
            _text(axes, MARGIN + 0.75, y, line, TEXT_SIZE, font=font)
            y += LINE


def _arc_height(layout: Layout, sentence: Sentence, edge: tuple[int, int]) -> float:
    a, b = (layout.middle(position, not sentence.right_to_left) for position in edge)
    return min(0.12 + 0.22 * abs(a - b), MAX_ARC)


def _graph(axes: Axes, sentence: Sentence, shown: list[str], font: FontProperties, layout: Layout) -> None:
    """Draw tokens as boxes, tinted by groups decoded in parallel, and arcs from the tokens they depend on."""
    style = _styles(sentence)
    rightwards = not sentence.right_to_left
    x = layout.middle(SOURCE, rightwards)
    _text(axes, x, layout.boxes + BOX / 2, "x", LABEL_SIZE + 2, ha="center", style="italic")
    for position, label in enumerate(shown):
        edge, tint = style[position]
        left, width = layout.lefts[position] + 0.05, layout.widths[position] - 0.1
        axes.add_patch(
            FancyBboxPatch(
                (left, layout.boxes), width, BOX, boxstyle="round,pad=0,rounding_size=0.06", ec=edge, fc=tint, lw=1.2
            )
        )
        _text(axes, left + width / 2, layout.boxes + BOX / 2, label, LABEL_SIZE, ha="center", font=font)
    for a, b in drawn_edges(sentence):
        height = _arc_height(layout, sentence, (a, b)) * 4 / 3
        start, end = layout.middle(a, rightwards), layout.middle(b, rightwards)
        top = layout.boxes - 0.03
        curve = Curve(
            [(start, top), (start, top - height), (end, top - height), (end, top)],
            [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4],
        )
        axes.add_patch(
            FancyArrowPatch(
                path=curve, arrowstyle="-|>,head_length=4,head_width=2", color=style[b][0], lw=1.0, shrinkA=0, shrinkB=0
            )
        )


def _styles(sentence: Sentence) -> list[tuple[str, str]]:
    """Return edge colour and tint of every token; groups of several tokens alternate between two colours."""
    styles: list[tuple[str, str]] = []
    count = 0
    for group in sentence.trace.groups:
        if len(group) > 1:
            styles += [(GROUP_COLOURS[count % 2], TINTS[count % 2])] * len(group)
            count += 1
        else:
            styles.append((SINGLE_COLOUR, "white"))
    return styles


def _cells(axes: Axes, sentence: Sentence, layout: Layout) -> None:
    trace = sentence.trace
    colour = ScalarMappable(cmap=COLOURS)
    colour.set_clim(0, 1)
    style = _styles(sentence)
    cells, colours = [], []
    for row, probabilities in enumerate(trace.probability):
        top = layout.cells + row * ROW
        _text(axes, MARGIN + LEFT - 0.1, top + ROW / 2, str(row + 1), LABEL_SIZE, ha="right")
        for position, probability in enumerate(probabilities):
            final = trace.final_at[position]
            shade = colour.to_rgba(np.array(probability))[:3]
            dark = 0.299 * shade[0] + 0.587 * shade[1] + 0.114 * shade[2] < 0.5
            left, width = layout.lefts[position], layout.widths[position]
            cells.append(Rectangle((left, top), width, ROW))
            colours.append([value + (1 - value) * FADED for value in shade] if row + 1 > final else shade)
            if row + 1 <= final and trace.predicted[row][position] == trace.tokens[position]:
                _text(
                    axes, left + width / 2, top + ROW / 2, f"{probability:.2f}", NUMBER_SIZE, ha="center",
                    color="white" if dark else "black", weight="bold" if row + 1 == final else "normal",
                )  # fmt: skip
    axes.add_collection(PatchCollection(cells, facecolors=colours, edgecolors="white", linewidths=0.4))
    for group in trace.groups:
        top = layout.cells + (trace.final_at[group[0]] - 1) * ROW
        left = min(layout.lefts[position] for position in group)
        width = sum(layout.widths[position] for position in group)
        colour_of_group = style[group[0]][0] if len(group) > 1 else "black"
        axes.add_patch(Rectangle((left, top), width, ROW, fill=False, ec=colour_of_group, lw=2.4, zorder=3))
    middle = layout.cells + len(trace.probability) * ROW / 2
    _text(axes, MARGIN + 0.1, middle, "iteration", LABEL_SIZE, ha="center", rotation=90)


def _legend(axes: Axes, figure: Figure, layout: Layout, mirrored: bool) -> None:
    bottom = layout.height - MARGIN - 3.2 * LINE
    height = min(bottom - GAP - layout.cells, 3.0)
    bar = figure.add_axes(
        (
            (layout.right + 0.3 + 0.1 * mirrored) / layout.width,
            1 - (layout.cells + height) / layout.height,
            0.15 / layout.width,
            height / layout.height,
        )
    )
    colour = ScalarMappable(cmap=COLOURS)
    colour.set_clim(0, 1)
    figure.colorbar(colour, cax=bar)
    bar.set_yticks([0, 0.5, 1], ["0", "0.5", "1"], family=fonts.BASE, size=NUMBER_SIZE)
    for row, line in enumerate(
        (
            "Colour: probability of the final token. Number: it was the prediction then.",
            "Pale: final before. Outlined: became final. Tinted: came out together.",
            "Arrows: what tokens depend on, redundant ones omitted.",
        )
    ):
        _text(axes, MARGIN, bottom + (row + 0.7) * LINE, line, LABEL_SIZE, color="#444444")
