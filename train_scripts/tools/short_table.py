"""Shorten the table of spec-dec-bench for a terminal: few columns, at most 100 characters wide."""

from pathlib import Path

import tabulate

# Column of the table -> title in the short one.
COLUMNS = {
    "decoder": "decoder",
    "BLEU": "BLEU",
    "same as beam 1": "same as beam 1",
    "tokens/iteration": "tokens/iteration",
    "sent/s, batch 1": "sentences/s",
    "× fairseq": "× fairseq",
    "× greedy": "× greedy",
}


def short_table(file: Path) -> str:
    """Return the table with the columns of `COLUMNS` only.

    Args:
        file: table.md of spec-dec-bench.
    """
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    shown = [column for column in COLUMNS if column in header]
    body = [[row[header.index(column)] for column in shown] for row in rows]
    alignment = ["left"] + ["right"] * (len(shown) - 1)
    tabulate.MIN_PADDING = 0  # a column is as wide as its text
    return tabulate.tabulate(
        body, [COLUMNS[column] for column in shown], tablefmt="simple", colalign=alignment, disable_numparse=True
    )
