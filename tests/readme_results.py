"""Write the README's table of results from the model cards: `python -m tests.readme_results`."""

from pathlib import Path

from tests.options_page import README, write
from tests.support import REPOSITORY

# Model card, its name in the table, and the rows to show.
CARDS = (
    ("multi30k-base.en-de", "captions en-de, 40 M", ("greedy", "gad", "gad fixed width")),
    ("multi30k.en-de", "captions en-de, 2.0 M", ("fast-beam", "greedy", "gad", "gad fixed width")),
    ("ua-gec", "error correction, 2.4 M", ("fast-beam", "greedy", "gad", "iad")),
)


def card_rows(card: Path) -> dict[str, dict[str, str]]:
    """Row -> column -> cell, of the table of decoders in a model card."""
    lines = card.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| decoder ") and "same as" in line)
    header, rows = [cell.strip() for cell in lines[start].split("|")[1:-1]], {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        rows[cells[0]] = dict(zip(header, cells, strict=True))
    return rows


def table() -> str:
    """The table as Markdown; output is compared with fairseq's search with the same beam."""
    lines = ["| model, parameters | decoder | same output | tokens/iteration | × fairseq | × CTranslate2 | × greedy |"]
    lines.append("| --- | --- | --: | --: | --: | --: | --: |")
    for folder, model, decoders in CARDS:
        rows = card_rows(REPOSITORY / "checkpoints" / folder / "README.md")
        for name, row in ((name, rows[name]) for name in decoders):
            same, _, total = row["same as beam 5" if name == "fast-beam" else "same as beam 1"].partition(" of ")
            same = f"all {total}" if same == total else f"{same} of {total}"
            cells = (row.get(column, "-") for column in ("tokens/iteration", "× fairseq", "× CTranslate2", "× greedy"))
            lines.append(f"| {model if name == decoders[0] else ''} | {name} | {same} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    write(README, {"results": table()})
