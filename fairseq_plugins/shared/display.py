"""What commands show: progress bars, and tables in Markdown, which also read well in a terminal."""

import io
import sys
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate
from tqdm import tqdm

from fairseq_plugins.process.output import say


class _Lines(io.TextIOBase):
    """Prints each state of a bar as a line on standard error: for a log, where a carriage return erases nothing."""

    def write(self, text: str) -> int:
        line = text.strip("\r\n ")
        if line:
            say(line)
        return len(text)


def progress_bar(sentences: int, desc: str = "", **options: Any) -> tqdm:
    """Return a progress bar over sentences on standard error, after `desc`; `options` are tqdm's.

    On a terminal it disappears at its end. In a log it is a line every 20 seconds.
    """
    if sys.stderr is not None and sys.stderr.isatty():
        display: dict[str, Any] = {"mininterval": 0.2, "dynamic_ncols": True}
    else:
        line = "{desc}{percentage:.0f} %, {n_fmt} of {total_fmt} {unit}, {elapsed}, about {remaining} left"
        display = {"mininterval": 20.0, "delay": 20.0, "file": _Lines(), "bar_format": line}
    # With a colon, as `set_description` adds one.
    return tqdm(
        total=sentences, desc=f"{desc}: " if desc else None, unit="sentences", leave=False, **{**display, **options}
    )


def table(rows: Sequence[Sequence[Any]], headers: Sequence[str], style: str = "github") -> str:
    """Format rows as a table: the first column left-aligned, all others right-aligned, text unchanged.

    `style` is tabulate's; "pipe" also writes the alignment in Markdown.
    """
    alignment = ["left"] + ["right"] * (len(headers) - 1)
    return tabulate(rows, headers=headers, tablefmt=style, colalign=alignment, disable_numparse=True)


def shown(value: float | None, form: str) -> str:
    """Return `value` formatted, or a dash for None."""
    return "-" if value is None else format(value, form)
