"""Results of the checks as Markdown."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fairseq_plugins.shared.display import table

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
ENGINE = "Triton's engine: "  # begins the titles of its checks


@dataclass
class Outcome:
    """Result of one check.

    Attributes:
        state: `PASSED`, `FAILED` or `NOT_RUN`.
        summary: one line of text.
        rows: a table, its header first; empty for none.
        details: further text, such as where an error was raised.
        title: of the check, set by the caller.
        seconds: time of the check, set by the caller.
    """

    state: str
    summary: str
    rows: list[list[str]] = field(default_factory=list)
    details: str = ""
    title: str = ""
    seconds: float = 0.0


def passed_if(good: bool, summary: str, **more: Any) -> Outcome:
    """Return a passed or failed outcome."""
    return Outcome(PASSED if good else FAILED, summary, **more)


def failed_by(error: Exception, **more: Any) -> Outcome:
    """Return the outcome of a check that has raised an error."""
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    details = "".join(traceback.format_exception(error.__cause__ or error))
    return Outcome(FAILED, reason, details=details, **more)


def what_may_go(outcomes: Sequence[Outcome]) -> str:
    """Return whether the captured loop in PyTorch may be removed, which Triton's engine is to replace."""
    own = [outcome for outcome in outcomes if outcome.title.startswith(ENGINE)]
    missing = [f"{outcome.title.removeprefix(ENGINE)} ({outcome.state})" for outcome in own if outcome.state != PASSED]
    if missing or not own:
        return f"`decoding/reference/captured/` stays. Not passed by Triton's engine: {', '.join(missing) or 'all'}."
    return "`decoding/reference/captured/` may go: Triton's engine passed all of its checks, and is faster in all rows."


def render(outcomes: Sequence[Outcome], machine: str, command: str) -> str:
    """Return the page: the tables and errors of all checks, and last an overview."""
    counts = [f"{sum(outcome.state == state for outcome in outcomes)} {state}" for state in (PASSED, FAILED, NOT_RUN)]
    overview = [[o.title, o.state, f"{o.seconds:.0f}", o.summary.replace("|", "/")] for o in outcomes]
    parts = ["# GPU check", f"Machine: {machine}", f"Command: `{command}`"]
    parts += [f"## {o.title}\n\n{table(o.rows[1:], o.rows[0])}" for o in outcomes if o.rows]
    parts += [f"## {o.title}: errors\n\n```\n{o.details.strip()}\n```" for o in outcomes if o.details]
    parts += [
        "## Overview",
        table(overview, ["check", "result", "seconds", "in words"]),
        f"{', '.join(counts)}.",
        what_may_go(outcomes),
    ]
    return "\n\n".join(parts) + "\n"
