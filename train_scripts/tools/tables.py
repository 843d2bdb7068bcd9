"""Make a table of spec-dec-bench with few columns, for a terminal."""

from pathlib import Path

import tabulate

from fairseq_plugins.shared.display import table

# Column of spec-dec-bench -> title in the short table.
COLUMNS = {
    "decoder": "decoder",
    "BLEU": "BLEU",
    "same as beam 1": "same as beam 1",
    "tokens/iteration": "tokens/iteration",
    "sent/s, batch 1": "sentences/s",
    "× fairseq": "× fairseq",
    "× greedy": "× greedy",
}


def short(file: Path) -> str:
    """Return the table of a run with the columns of `COLUMNS` only, at most 100 characters wide.

    Args:
        file: table.md of spec-dec-bench.
    """
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    chosen = [column for column in COLUMNS if column in header]
    body = [[row[header.index(column)] for column in chosen] for row in rows]
    tabulate.MIN_PADDING = 0  # a column is as wide as its text
    return table(body, [COLUMNS[column] for column in chosen], "simple")
