"""Standard output and standard error, either of which may be closed, full, or a pipe that nobody reads any more."""

import contextlib
import errno
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


def is_tool() -> bool:
    """Whether this process is a command of fairseq or of this project, and not a program that uses the package."""
    program = Path(sys.argv[0] if sys.argv else "")
    return program.name.startswith(("fairseq-", "spec-dec-")) or not {"fairseq_cli", "fairseq_plugins"}.isdisjoint(
        program.parts
    )


def quieten() -> None:
    """Leave out what fairseq's decoding commands log before the first translation, forty lines of settings.

    `--verbose`, or fairseq's own LOGLEVEL in the environment, keep it. fairseq-generate reads LOGLEVEL after this,
    fairseq-interactive has read it before.
    """
    program = Path(sys.argv[0] if sys.argv else "").name
    if program not in ("fairseq-generate", "fairseq-interactive"):
        return
    if "--verbose" in sys.argv or "LOGLEVEL" in os.environ:
        return
    os.environ["LOGLEVEL"] = "WARNING"
    logging.getLogger().setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=UserWarning, module="hydra")
    warnings.filterwarnings("ignore", message="'pin_memory' argument is set as true")
    warnings.filterwarnings("ignore", message="\n'config' is validated against ConfigStore")


def say(line: str) -> None:
    """Print a line on standard error, if there is one: with `2>&-` print would put it among the translations."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr, flush=True)


class _ClosedOutput(io.TextIOBase):
    """Stands in for a standard output that is closed (`>&-`), into which Python prints without a word."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


_failures: list[OSError] = []
"""What printing raised."""


def watch_output() -> None:
    """Make it possible to tell what printing raised from other errors, and printing to a closed output an error.

    Logging, which fairseq's tools do on standard output, prints a traceback for each line that fails: it no longer
    does, since what is printed next fails, too.
    """
    if sys.stdout is None:
        # Takes the free number of standard output, so that no other file gets what C code prints.
        sys.__stdout__ = open(os.devnull, "w")  # type: ignore[misc]  # noqa: SIM115
        sys.stdout = _ClosedOutput()
    if not hasattr(sys.stdout, "is_watched"):
        # In place: logging and others may hold the stream already, and share its buffer with print.
        sys.stdout.write = _remembering(sys.stdout.write)  # type: ignore[method-assign]
        sys.stdout.flush = _remembering(sys.stdout.flush)  # type: ignore[method-assign]
        sys.stdout.is_watched = True  # type: ignore[union-attr]
    logging.raiseExceptions = False


def _remembering(call: Callable[..., Any]) -> Callable[..., Any]:
    def remembering(*args: Any) -> Any:
        try:
            return call(*args)
        except OSError as error:
            _failures[:] = [error]
            raise

    return remembering


def is_output_failure(error: BaseException) -> bool:
    """Whether an error came from printing."""
    return any(failure is error for failure in _failures)


def flush_failure() -> OSError | None:
    """Why what was printed cannot be written, None when all of it has been."""
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except OSError as error:
        return error
    return None


def say_output_failure(error: BaseException, command: str = "") -> None:
    """Say that standard output cannot be written, but nothing of a pipe whose reader has gone (`| head`).

    Args:
        error: what printing or flushing raised.
        command: its name and a colon, for the line.
    """
    if not isinstance(error, BrokenPipeError):
        reason = getattr(error, "strerror", None) or error
        say(f"{command}error: standard output: cannot be written ({reason}); give it a file with room")


def abandon_output() -> None:
    """Throw away what is left to print, so that the end of the interpreter does not complain about it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
