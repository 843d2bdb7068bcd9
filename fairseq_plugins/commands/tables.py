"""Tables in Markdown, which also read well in a terminal."""

from collections.abc import Sequence
from typing import Any

from tabulate import tabulate


def table(rows: Sequence[Sequence[Any]], headers: Sequence[str], style: str = "github") -> str:
    """Return a table of cells as they are, the first column to the left, the others to the right.

    `style` is tabulate's; "pipe" also tells Markdown the alignment.
    """
    alignment = ["left"] + ["right"] * (len(headers) - 1)
    return tabulate(rows, headers=headers, tablefmt=style, colalign=alignment, disable_numparse=True)


def shown(value: float | None, form: str) -> str:
    """Return `value` formatted, or a dash for None."""
    return "-" if value is None else format(value, form)
