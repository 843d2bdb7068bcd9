"""Decoding dependency graphs above their heat maps (Santilli et al. 2023, Figure 4): pictures, and a page of all."""

import io
import logging
import textwrap
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.path import Path as Curve
from matplotlib.textpath import text_to_path

from fairseq_plugins.pages.ddg import SOURCE, SolvedSentence, edges_between
from fairseq_plugins.pages.template import page_json, template
from fairseq_plugins.shared.files import write_atomically

logger = logging.getLogger(__name__)

# Lengths in inches, font sizes in points; legible at half the size.
MARGIN = 0.25
LEFT, RIGHT = 0.75, 0.95  # for the numbers of the iterations, for the colour bar
ROW, LINE, BOX = 0.3, 0.27, 0.34
MIN_COLUMN, MAX_LABEL = 0.5, 24  # inches, characters
MIN_WIDTH, MAX_ARC = 7.8, 1.6
MAX_SIDE, MAX_AREA = 30_000, 60e6  # pixels: limits of image viewers
LABEL_SIZE, NUMBER_SIZE, TEXT_SIZE, TITLE_SIZE = 11.0, 9.5, 11.5, 12.0

# Colour-blind-safe colours of Okabe and Ito: edge and fill of tokens.
SINGLE = ("#666666", "white")
GROUPS = (("#D55E00", "#F9DFCC"), ("#0072B2", "#CCE3F0"))  # of neighbouring groups, alternating
COLOURS = "viridis"
PALE = 0.28  # opacity of cells of tokens that were already final
WHITE_BELOW = 0.62  # on these colours white text is legible

# Between groups with more edges, only those of the last earlier token are drawn.
MAX_EDGES = 36

LEGEND = """Colour: probability of the final token. Number: it was the prediction then.
Pale: final before. Outlined: became final. Tinted: became final together.
Arrows: what tokens depend on (x: the source), redundant ones omitted."""

BASE_FONT = "DejaVu Sans"  # part of matplotlib; has Latin, Greek, Cyrillic, Arabic, Hebrew and the ▁ of sentencepiece
# Searched first, in this order: fonts that cover many scripts.
_PREFERRED = ("NotoSansCJK-Regular", "NotoSans-Regular", "NotoSans", "DroidSansFallback", "wqy", "Noto", "")


def save(sentence: SolvedSentence, stem: Path) -> None:
    """Write `stem`.png and `stem`.svg; raises ConfigurationError if they cannot be written."""
    figure = draw(sentence)
    width, height = figure.get_size_inches()
    dpi = min(150, MAX_SIDE / max(width, height), (MAX_AREA / (width * height)) ** 0.5)
    for kind in ("png", "svg"):
        content = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")  # `font_families` has already warned
            figure.savefig(content, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else None)
        write_atomically(stem.with_name(f"{stem.name}.{kind}"), content.getvalue(), "--output")


def draw(sentence: SolvedSentence) -> Figure:
    """Return the figure of one sentence: its dependency graph above the predictions of every iteration."""
    trace, labels = sentence.trace, [short(label) for label in sentence.labels]
    step = -1 if sentence.right_to_left else 1
    family = font_families([*labels, sentence.source, sentence.output])
    widths = [max(MIN_COLUMN, text_width(label, LABEL_SIZE, family) + 0.2) for label in labels]
    sides = MARGIN + LEFT + np.cumsum([0, *widths[::step]])
    # The middle of every column; the source, whose number is -1, comes last.
    middle = np.append((sides[:-1] + sides[1:])[::step] / 2, sides[-1] + 0.2 if step < 0 else sides[0] - 0.2)
    width = max(MIN_WIDTH, sides[-1] + RIGHT + MARGIN)
    texts = {
        name: wrapped(text, width - 2 * MARGIN - 0.75, family)
        for name, text in (("source", sentence.source), ("output", sentence.output))
    }
    edges = edges_between(trace.groups, MAX_EDGES)
    arcs = {(a, b): min(0.12 + 0.22 * abs(middle[a] - middle[b]), MAX_ARC) for a, b in edges}
    rows = len(trace.probability)
    boxes = MARGIN + (1.6 + sum(map(len, texts.values()))) * LINE + max(arcs.values()) + 0.22
    cells = boxes + BOX + 0.12
    bottom = cells + max(rows * ROW, 1.8)
    height = bottom + 4 * LINE + MARGIN
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")

    def write(x: float, y: float, text: str, size: float = LABEL_SIZE, **options: Any) -> None:
        axes.text(x, y, text, **{"va": "center", **options}, size=size, family=family, parse_math=False)

    y = MARGIN + LINE / 2
    write(MARGIN, y, sentence.title, TITLE_SIZE, weight="bold")
    y += 1.6 * LINE
    for name, parts in texts.items():
        write(MARGIN, y, name, TEXT_SIZE, color=SINGLE[0])
        for line in parts:
            write(MARGIN + 0.75, y, line, TEXT_SIZE)
            y += LINE

    colours = token_colours(trace.groups)
    write(middle[SOURCE], boxes + BOX / 2, "x", LABEL_SIZE + 2, ha="center", style="italic")
    for position, label in enumerate(labels):
        edge, fill = colours[position]
        box = {"boxstyle": "round,pad=0.25,rounding_size=0.2", "ec": edge, "fc": fill, "lw": 1.2}
        write(middle[position], boxes + BOX / 2, label, ha="center", bbox=box)
    for (a, b), arc in arcs.items():
        start, end, top = middle[a], middle[b], boxes - 0.03
        points = [(start, top), (start, top - arc * 4 / 3), (end, top - arc * 4 / 3), (end, top)]
        curve = Curve(points, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])
        head = "-|>,head_length=4,head_width=2"
        axes.add_patch(FancyArrowPatch(path=curve, arrowstyle=head, color=colours[b][0], lw=1, shrinkA=0, shrinkB=0))

    probability, final_at = np.array(trace.probability), np.array(trace.final_at)
    past = np.arange(1, rows + 1)[:, None] > final_at
    tops = cells + ROW * np.arange(rows + 1)
    look: dict[str, Any] = {"alpha": np.where(past, PALE, 1.0)[:, ::step], "edgecolors": "white", "linewidth": 0.4}
    mesh = axes.pcolormesh(sides, tops, probability[:, ::step], cmap=COLOURS, vmin=0, vmax=1, **look)
    right = np.array(trace.predicted) == np.array(trace.tokens)
    for row, position in np.argwhere(right & ~past):
        value = probability[row, position]
        weight = "bold" if row + 1 == final_at[position] else "normal"
        colour = "white" if value < WHITE_BELOW else "black"
        y = cells + (row + 0.5) * ROW
        write(middle[position], y, f"{value:.2f}", NUMBER_SIZE, color=colour, weight=weight, ha="center")
    for row in range(rows):
        write(MARGIN + LEFT - 0.1, cells + (row + 0.5) * ROW, str(row + 1), ha="right")
    write(MARGIN + 0.1, cells + rows * ROW / 2, "iteration", ha="center", rotation=90)
    for group in trace.groups:
        left = min(middle[position] - widths[position] / 2 for position in group)
        place = (left, cells + (final_at[group[0]] - 1) * ROW), sum(widths[position] for position in group), ROW
        colour = colours[group[0]][0] if len(group) > 1 else "black"
        axes.add_patch(Rectangle(*place, fill=False, ec=colour, lw=2.4, zorder=3))

    long = min(bottom - cells, 3.0)
    side = sides[-1] + (0.4 if step < 0 else 0.3)  # after the source, where that is on the right
    bar = figure.add_axes((side / width, 1 - (cells + long) / height, 0.15 / width, long / height))
    figure.colorbar(mesh, cax=bar, ticks=[0, 0.5, 1])
    write(MARGIN, bottom + LINE / 2, LEGEND, color="#444444", va="top", linespacing=1.5)
    return figure


def token_colours(groups: list[list[int]]) -> list[tuple[str, str]]:
    """Return edge and fill of every token; groups of several tokens alternate between two colours."""
    colours: list[tuple[str, str]] = []
    count = 0
    for group in groups:
        colours += [GROUPS[count % 2] if len(group) > 1 else SINGLE] * len(group)
        count += len(group) > 1
    return colours


def short(label: str) -> str:
    """Return a token as shown: long ones cut, control characters replaced."""
    label = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in label)
    return label if len(label) <= MAX_LABEL else label[: MAX_LABEL - 1] + "…"


def text_width(text: str, size: float, family: list[str]) -> float:
    """Return the width of a line of text in inches."""
    font = FontProperties(family=family, size=size)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return width / 72


def wrapped(text: str, width: float, family: list[str]) -> list[str]:
    """Break a text into lines of at most `width` inches, by the mean width of its characters."""
    characters = 0.85 * len(text) * width / max(text_width(text, TEXT_SIZE, family), 1e-9)
    return textwrap.wrap(text, max(int(characters), 1)) or [""]


def font_families(texts: Iterable[str]) -> list[str]:
    """Return font families that together have all characters of the texts; warn of characters without a font."""
    missing = {c for text in texts for c in text if c.isprintable() and not c.isspace()}
    chosen = [BASE_FONT]
    missing -= _characters(font_manager.findfont(BASE_FONT))
    for path in sorted(font_manager.findSystemFonts(), key=_preference) if missing else ():
        if covered := missing & _characters(path):
            font_manager.fontManager.addfont(path)
            chosen.append(font_manager.get_font(path).family_name)
            missing -= covered
    if missing:
        logger.warning(
            "no installed font has %s; PNG and SVG show boxes in their place. Install the Debian packages "
            "fonts-noto-cjk (Chinese, Japanese, Korean) and fonts-noto-core (others)",
            " ".join(sorted(missing)[:10]),
        )
    return chosen


def _preference(path: str) -> tuple[int, bool, str]:
    stem = Path(path).stem
    kind = next(number for number, start in enumerate(_PREFERRED) if stem.startswith(start))
    return kind, "Regular" not in stem, path


@cache
def _characters(path: str) -> frozenset[str]:
    try:
        return frozenset(map(chr, font_manager.get_font(path).get_charmap()))
    except (RuntimeError, OSError):  # a bitmap or damaged font
        return frozenset()


_SHADES = 64


def page(sentences: Sequence[SolvedSentence]) -> str:
    """Return the interactive page of all sentences, one self-contained HTML file."""
    data = {
        "sentences": [
            {**s.as_json(), "edges": edges_between(s.trace.groups, MAX_EDGES), "speed_up": f"{s.speed_up:.2f}"}
            for s in sentences
        ],
        "colours": [to_hex(colormaps[COLOURS](i / (_SHADES - 1))) for i in range(_SHADES)],
    }
    return template("ddgviz.html").replace("@@DATA@@", page_json(data))
