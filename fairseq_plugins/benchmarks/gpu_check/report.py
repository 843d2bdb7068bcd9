"""Results of the checks as Markdown, with the tables of docs/benchmarks.md."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fairseq_plugins.shared.tables import table

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
# (batch size, row, minimum speed-up, over which row).
TARGETS = (
    (1, "gad (replayed)", 50, "fairseq beam 5"),
    (1, "gad (replayed)", 4, "CTranslate2 greedy fp16"),
    (1, "gad (replayed)", 2, "greedy"),
    (32, "gad (replayed)", 8, "fairseq beam 5"),
)


@dataclass
class Outcome:
    """Result of one check.

    Attributes:
        state: `PASSED`, `FAILED` or `NOT_RUN`.
        summary: one line of text.
        rows: a table, its header first; empty for none.
        numbers: for the tables of docs/benchmarks.md.
        title: of the check, set by the caller.
        seconds: time of the check, set by the caller.
    """

    state: str
    summary: str
    rows: list[list[str]] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    seconds: float = 0.0


def passed_if(good: bool, summary: str, **more: Any) -> Outcome:
    """Return a passed or failed outcome."""
    return Outcome(PASSED if good else FAILED, summary, **more)


def targets_table(ratios: Sequence[dict[str, Any]] = ()) -> str:
    """Return the table of docs/benchmarks.md, section GPU; without ratios every cell is "not measured"."""
    measured_ratios = {(entry["batch"], entry["row"], entry["over"]): entry["ratio"] for entry in ratios}
    lines = ["| to show | measured |", "| --- | --- |"]
    for size, ours, wanted, theirs in TARGETS:
        ratio = measured_ratios.get((size, ours, theirs))
        # Names of our rows are code, others are plain text.
        over = theirs if theirs.startswith(("fairseq", "CTranslate2")) else f"`{theirs}`"
        measured = "not measured" if ratio is None else f"{ratio:.1f} times"
        lines.append(f"| batch {size}, fp16: `{ours}` at least {wanted} times {over} | {measured} |")
    return "\n".join(lines)


def render(outcomes: Sequence[Outcome], machine: str, command: str) -> str:
    """Return the page: an overview of all checks, and their tables."""
    counts = [f"{sum(outcome.state == state for outcome in outcomes)} {state}" for state in (PASSED, FAILED, NOT_RUN)]
    overview = [[o.title, o.state, f"{o.seconds:.0f}", o.summary.replace("|", "/")] for o in outcomes]
    ratios = next((o.numbers["ratios"] for o in outcomes if "ratios" in o.numbers), ())
    parts = [
        "# GPU check",
        f"Machine: {machine}",
        f"Command: `{command}`",
        f"{', '.join(counts)}.",
        table(overview, ["check", "result", "seconds", "in words"]),
        "## For docs/benchmarks.md",
        targets_table(ratios),
    ]
    parts += [f"## {o.title}\n\n{table(o.rows[1:], o.rows[0])}" for o in outcomes if o.rows]
    return "\n\n".join(parts) + "\n"
