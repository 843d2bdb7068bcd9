"""What a check found."""

from dataclasses import dataclass, field
from typing import Any

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"


@dataclass
class Outcome:
    """What one check found.

    Attributes:
        state: `PASSED`, `FAILED` or `NOT_RUN`.
        summary: one line in words.
        rows: a table, its header first; empty for none.
        numbers: for the tables of docs/benchmarks.md.
        title: what was to be seen; `seconds`: how long it took. Both are filled in by who runs it.
    """

    state: str
    summary: str
    rows: list[list[str]] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    seconds: float = 0.0


def judged(good: bool, summary: str, **more: Any) -> Outcome:
    """An outcome that passed or failed."""
    return Outcome(PASSED if good else FAILED, summary, **more)
