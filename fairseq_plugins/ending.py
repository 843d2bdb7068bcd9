"""The end of a run: what it writes is closed, and its exit status says whether all of it was written.

fairseq's tools have no hook there, and what is raised when an object goes, or when the interpreter ends, changes no
exit status. So failures are said in one line when they happen, remembered, and turned into the status at the very end.
"""

import atexit
import logging
import multiprocessing
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

from fairseq_plugins.output import abandon_output, flush_failure, is_tool, say, say_output_failure

FAILED = 1
"""Exit status of a run that went on although something could not be written, the same as after an error."""

_has_failed = False
_pending: "list[weakref.finalize[Any, Any]]" = []


def fail(message: str) -> None:
    """Say what could not be written, and let the run go on: its exit status will be `FAILED`."""
    global _has_failed
    _has_failed = True
    say(f"error: {message}")


def close_with(owner: Any, close: Callable[[], None]) -> None:
    """Call `close` when `owner` goes, at latest when the process ends."""
    finalizer = weakref.finalize(owner, _close, close)
    finalizer.atexit = False  # `_end` calls it, to know what failed
    _pending[:] = [other for other in _pending if other.alive] + [finalizer]


def _close(close: Callable[[], None]) -> None:
    try:
        close()
    except Exception as error:
        fail(f"{type(error).__name__}: {error}")


@atexit.register
def _end() -> None:
    """Close what is open, and end the process with the status that it deserves."""
    for finalizer in _pending:
        finalizer()
    if not is_tool():
        return
    failure = flush_failure()
    if failure is not None:
        say_output_failure(failure)
    # After an error the status is one already: that of the error, or of Ctrl-C.
    if (_has_failed or failure is not None) and getattr(sys, "last_type", None) is None:
        # Too late for sys.exit, which is ignored here. os._exit leaves out what else would be called at the end:
        # processes that read data are ended, logs are flushed here; all that was printed has been.
        for process in multiprocessing.active_children():
            process.terminate()
        logging.shutdown()
        os._exit(FAILED)
    if failure is not None:
        abandon_output()
