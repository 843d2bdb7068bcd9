"""Results of the checks as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fairseq_plugins.shared.display import table

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"


@dataclass
class Outcome:
    """Result of one check.

    Attributes:
        state: `PASSED`, `FAILED` or `NOT_RUN`.
        summary: one line of text.
        rows: a table, its header first; empty for none.
        title: of the check, set by the caller.
        seconds: time of the check, set by the caller.
    """

    state: str
    summary: str
    rows: list[list[str]] = field(default_factory=list)
    title: str = ""
    seconds: float = 0.0


def passed_if(good: bool, summary: str, **more: Any) -> Outcome:
    """Return a passed or failed outcome."""
    return Outcome(PASSED if good else FAILED, summary, **more)


def render(outcomes: Sequence[Outcome], machine: str, command: str) -> str:
    """Return the page: an overview of all checks, and their tables."""
    counts = [f"{sum(outcome.state == state for outcome in outcomes)} {state}" for state in (PASSED, FAILED, NOT_RUN)]
    overview = [[o.title, o.state, f"{o.seconds:.0f}", o.summary.replace("|", "/")] for o in outcomes]
    parts = [
        "# GPU check",
        f"Machine: {machine}",
        f"Command: `{command}`",
        f"{', '.join(counts)}.",
        table(overview, ["check", "result", "seconds", "in words"]),
    ]
    parts += [f"## {o.title}\n\n{table(o.rows[1:], o.rows[0])}" for o in outcomes if o.rows]
    return "\n\n".join(parts) + "\n"
