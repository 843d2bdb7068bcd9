"""Tables in Markdown, which also read well in a terminal."""

from collections.abc import Sequence
from typing import Any

from tabulate import tabulate


def table(rows: Sequence[Sequence[Any]], headers: Sequence[str], style: str = "github") -> str:
    """Return a table, the first column to the left, the others to the right; cells are shown as they are.

    Args:
        rows: cells.
        headers: of the columns.
        style: tabulate's name of one; "pipe" also tells Markdown how columns are aligned.
    """
    alignment = ["left"] + ["right"] * (len(headers) - 1)
    return tabulate(rows, headers=headers, tablefmt=style, colalign=alignment, disable_numparse=True)


def shown(value: float | None, form: str) -> str:
    """Return `value` formatted, or a dash where there is none."""
    return "-" if value is None else format(value, form)
