"""From what the checks found to Markdown: what happened, and the tables of docs/benchmarks.md."""

from collections.abc import Sequence
from typing import Any

from fairseq_plugins.benchmarks.gpu_check.outcome import FAILED, PASSED, Outcome
from fairseq_plugins.benchmarks.gpu_check.programs import TARGETS
from fairseq_plugins.commands.tables import table

NOT_MEASURED = "not measured"


def targets_table(ratios: Sequence[dict[str, Any]] = ()) -> str:
    """The table of docs/benchmarks.md, section GPU; without numbers it says that nothing was measured."""
    found = {(entry["batch"], entry["row"], entry["over"]): entry["ratio"] for entry in ratios}
    rows = []
    for size, ours, wanted, theirs in TARGETS:
        ratio = found.get((size, ours, theirs))
        claim = f"batch {size}, fp16: `{ours}` at least {wanted} times {_code(theirs)}"
        rows.append([claim, NOT_MEASURED if ratio is None else f"{ratio:.1f} times"])
    return "\n".join(["| to show | measured |", "| --- | --- |", *(f"| {a} | {b} |" for a, b in rows)])


def _code(row: str) -> str:
    """A row's name as pages write it: those of others without marks."""
    return f"`{row}`" if row[0].islower() and not row.startswith("fairseq") else row


def render(outcomes: Sequence[Outcome], machine: str, command: str) -> str:
    """The page: what every check found, tables below."""
    counts = {state: sum(outcome.state == state for outcome in outcomes) for state in (PASSED, FAILED)}
    not_run = len(outcomes) - sum(counts.values())
    overview = [[o.title, o.state, f"{o.seconds:.0f}", o.summary.replace("|", "/")] for o in outcomes]
    ratios = next((o.numbers["ratios"] for o in outcomes if "ratios" in o.numbers), ())
    parts = [
        "# GPU check",
        f"Machine: {machine}",
        f"Command: `{command}`",
        f"{counts[PASSED]} passed, {counts[FAILED]} failed, {not_run} not run.",
        table(overview, ["check", "result", "seconds", "in words"]),
        "## For docs/benchmarks.md",
        targets_table(ratios),
    ]
    for outcome in outcomes:
        if outcome.rows:
            header, *rows = outcome.rows
            parts += [f"## {outcome.title}", table(rows, header)]
    return "\n\n".join(parts) + "\n"
