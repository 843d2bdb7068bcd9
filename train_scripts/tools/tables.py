"""Make tables: of spec-dec-bench with few columns for a terminal, and of `--decoder reuse`."""

import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import tabulate

import fairseq_plugins
from fairseq_plugins.errors import ConfigurationError
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


def reuse(
    folder: str,
    source: Path,
    *,
    older: str,
    sentences: int = 200,
    batch_size: int = 1,
    measure: Literal["iterations", "seconds"] = "iterations",
) -> str:
    """Decode with and without drafts in four typical cases; return a Markdown table.

    Args:
        folder: folder of the model, as for spec-dec-translate.
        source: text, one sentence a line.
        older: folder of an earlier version of the model, whose outputs are the drafts of one case.
        sentences: number of lines to read; one case grows every tenth line word by word.
        batch_size: sentences decoded together.
        measure: iterations (whole drafts are verified) or seconds (with the policy, median of three alternating runs).

    Raises:
        ConfigurationError: for files that do not fit each other, and if an output differs from that of greedy.
    """
    lines = source.read_text(encoding="utf-8").removesuffix("\n").split("\n")[:sentences]
    greedy = fairseq_plugins.load(folder, decoder="greedy")
    reuse = fairseq_plugins.load(folder, decoder="reuse", fixed_width=measure == "iterations")
    archive = fairseq_plugins.load(older, decoder="greedy").translate(lines)
    growing = [" ".join(words[:count]) for words in map(str.split, lines[::10]) for count in range(1, len(words) + 1)]
    cases: dict[str, tuple[list[str], Sequence[str | None]]] = {
        "the output of an older model": (lines, archive),
        "the output before a word of the source was replaced": (replaced(lines), greedy.translate(lines)),
        "the output before the last word came, word by word": (growing, [None, *greedy.translate(growing)[:-1]]),
        "the output of another line": (lines, [*archive[1:], archive[0]]),
    }
    header = ["draft", "sentences", "tokens", "iterations", "tokens per iteration"]
    rows = []
    for name, (texts, drafts) in cases.items():
        seconds = []
        for _ in range(3 if measure == "seconds" else 1):
            expected = greedy.translate(texts, batch_size=batch_size)
            if reuse.translate(texts, drafts=drafts, batch_size=batch_size) != expected:
                raise ConfigurationError(None, folder, f"reuse and greedy differ ({name})")
            seconds.append((greedy.statistics.seconds, reuse.statistics.seconds))
        counts = reuse.statistics
        per_iteration = f"{counts.tokens / counts.iterations:.2f}"
        rows.append([name, str(len(texts)), str(counts.tokens), str(counts.iterations), per_iteration])
        if measure == "seconds":
            without, with_drafts = map(statistics.median, zip(*seconds, strict=True))
            rows[-1] += [f"{without:.2f}", f"{with_drafts:.2f}", f"{without / with_drafts:.2f}"]
    if measure == "seconds":
        header += ["seconds of greedy", "of reuse", "times as fast"]
    return table(rows, header)


def replaced(lines: Sequence[str]) -> list[str]:
    """Return the lines with one word of each replaced by a word of another line."""
    choose, lines_replaced = random.Random(1), []
    for line in lines:
        words = line.split()
        words[choose.randrange(len(words))] = choose.choice(choose.choice(lines).split())
        lines_replaced.append(" ".join(words))
    return lines_replaced
