"""The interactive page of DDGviz: one self-contained HTML file."""

from collections.abc import Sequence

from matplotlib import colormaps
from matplotlib.colors import to_hex

from fairseq_plugins.pages.ddg import Sentence
from fairseq_plugins.pages.ddgviz_figure import COLOURS
from fairseq_plugins.pages.template import page_json, template

_SHADES = 64


def page(sentences: Sequence[Sentence]) -> str:
    """Return the page with all sentences."""
    data = {
        "sentences": [{**s.as_json(), "speed_up": f"{s.speed_up:.2f}"} for s in sentences],
        "colours": [to_hex(colormaps[COLOURS](i / (_SHADES - 1))) for i in range(_SHADES)],
    }
    return template("ddgviz.html").replace("@@DATA@@", page_json(data))
