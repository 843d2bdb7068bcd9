"""The end of a run: close its files, and report write failures in the exit status.

fairseq's tools have no hook for this, and exceptions in finalizers or at exit do not change the exit status. Failures
are therefore printed in one line when they happen, recorded, and turned into the exit status at the very end.
"""

import atexit
import logging
import multiprocessing
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

from fairseq_plugins.process.output import (
    PARENT,
    READER_IS_GONE,
    abandon_output,
    flush_failure,
    is_tool,
    say,
    say_output_failure,
)

FAILED = 1
"""Exit status of a run that continued after a write failure; the same as after an error."""

_has_failed = False
_pending: "list[weakref.finalize[Any, Any]]" = []


def fail(message: str) -> None:
    """Print a write failure; the run continues, and its exit status will be `FAILED`."""
    set_failed()
    say(f"error: {message}")


def set_failed() -> None:
    """Let the exit status be `FAILED`."""
    global _has_failed
    _has_failed = True


def failure_ends_others() -> bool:
    """Return whether a failure was noted whose status would let torchrun, started by the user, end all processes."""
    return _has_failed and PARENT not in os.environ and "TORCHELASTIC_RUN_ID" in os.environ


def close_with(owner: Any, close: Callable[[], None]) -> None:
    """Call `close` when `owner` is collected, at the latest when the process exits."""
    finalizer = weakref.finalize(owner, _close, close)
    finalizer.atexit = False  # `_end` calls it, to record failures
    _pending[:] = [other for other in _pending if other.alive] + [finalizer]


def _close(close: Callable[[], None]) -> None:
    try:
        close()
    except Exception as error:
        fail(f"{type(error).__name__}: {error}")


@atexit.register
def _end() -> None:
    """Close open files; end the process with `READER_IS_GONE` after a broken pipe, `FAILED` after other failures."""
    for finalizer in _pending:
        finalizer()
    if not is_tool():
        return
    failure = flush_failure()
    if failure is not None:
        say_output_failure(failure)
    raised = getattr(sys, "last_value", None)
    status = FAILED if _has_failed or failure is not None else 0
    if any(isinstance(error, BrokenPipeError) for error in (failure, raised)):
        status = READER_IS_GONE
    # After other exceptions and Ctrl-C the status is already non-zero.
    if status == READER_IS_GONE or (status and raised is None):
        # sys.exit is ignored here. os._exit skips other exit handlers: end data workers and flush logs before it.
        for process in multiprocessing.active_children():
            process.terminate()
        logging.shutdown()
        os._exit(status)
    if failure is not None:
        abandon_output()
