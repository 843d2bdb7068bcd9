"""Tables in Markdown, which also read well in a terminal."""

from collections.abc import Sequence
from typing import Any

from tabulate import tabulate


def table(rows: Sequence[Sequence[Any]], headers: Sequence[str], style: str = "github") -> str:
    """Format rows as a table: the first column left-aligned, all others right-aligned, text unchanged.

    `style` is tabulate's; "pipe" also writes the alignment in Markdown.
    """
    alignment = ["left"] + ["right"] * (len(headers) - 1)
    return tabulate(rows, headers=headers, tablefmt=style, colalign=alignment, disable_numparse=True)


def shown(value: float | None, form: str) -> str:
    """Return `value` formatted, or a dash for None."""
    return "-" if value is None else format(value, form)
