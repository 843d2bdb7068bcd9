"""Standard output and standard error, either of which may be closed, full, or a broken pipe."""

import contextlib
import errno
import io
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parents[1]
_TOOLS = _PACKAGE.with_name("train_scripts")  # in a checkout


def is_tool() -> bool:
    """Return whether this process is a command of fairseq or of this project, not a program that uses the package."""
    program = Path(sys.argv[0] if sys.argv else "")
    if str(program) == "-m":  # Python is looking for the module that it will run
        module = next((name for name in sys.orig_argv[1:] if not name.startswith("-")), "")
        return module.partition(".")[0] in (_PACKAGE.name, "fairseq_cli")
    is_module = program.parent.name == "fairseq_cli" or _PACKAGE in program.parents or _TOOLS in program.parents
    return is_module or program.name.startswith(("fairseq-", "spec-dec-"))


def lower_log_level() -> None:
    """Hide the settings that fairseq's decoding commands log before the first translation, and warnings of hydra.

    `--verbose`, or fairseq's own LOGLEVEL in the environment, shows them. fairseq-generate reads LOGLEVEL after this
    call, fairseq-interactive before it.
    """
    program = Path(sys.argv[0] if sys.argv else "").name
    if program in ("fairseq-train", "fairseq-validate"):
        ignore_hydras_warnings()
    if program not in ("fairseq-generate", "fairseq-interactive"):
        return
    if "--verbose" in sys.argv or "LOGLEVEL" in os.environ:
        return
    os.environ["LOGLEVEL"] = "WARNING"
    logging.getLogger().setLevel(logging.WARNING)
    ignore_hydras_warnings()
    warnings.filterwarnings("ignore", message="'pin_memory' argument is set as true")


def ignore_hydras_warnings() -> None:
    """Hide warnings about how fairseq calls hydra."""
    warnings.filterwarnings("ignore", category=UserWarning, module="hydra")
    warnings.filterwarnings("ignore", message="\n'config' is validated against ConfigStore")


@contextlib.contextmanager
def unchanged_logging() -> Iterator[None]:
    """Keep the logging that a program set up: modules of fairseq, imported inside, show debug messages of all loggers.

    A command sets up its own logging.
    """
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@contextlib.contextmanager
def quiet_fairseq() -> Iterator[None]:
    """Hide fairseq's messages about dictionaries and models, which its modules show by default."""
    logger = logging.getLogger("fairseq")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def counted(number: int, noun: str) -> str:
    """Return "1 sentence", "2 sentences"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def say(line: str) -> None:
    """Print a line on standard error, if it is open: with `2>&-` print would write it among the translations."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr, flush=True)


PARENT = "SPEC_DEC_PARENT"
"""Variable with the process of a command that has started this one."""


def say_interrupted(command: str = "") -> None:
    """Print that Ctrl-C has ended the command; of several processes that share its work only the first does."""
    if PARENT not in os.environ:
        say(f"{command}interrupted")


class _ClosedOutput(io.TextIOBase):
    """Replaces a closed standard output (`>&-`), on which Python's print does nothing."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


READER_IS_GONE = 128 + signal.SIGPIPE
"""Exit status after a broken pipe (`| head`): that of programs which the signal ends."""

_failures: list[OSError] = []
"""Errors of printing."""


def watch_output() -> None:
    """Record errors of printing, to tell them from others, and make printing to a closed output an error.

    fairseq's tools log to standard output, and logging prints a traceback for each line that fails: turn that off.
    """
    if sys.stdout is None:
        # Occupies the file descriptor of standard output, so that output of C code goes to no other file.
        sys.__stdout__ = open(os.devnull, "w")  # type: ignore[misc]  # noqa: SIM115
        sys.stdout = _ClosedOutput()
    if not hasattr(sys.stdout, "is_watched"):
        # In place: logging may already refer to the stream, and shares its buffer with print.
        sys.stdout.write = _recording(sys.stdout.write)  # type: ignore[method-assign]
        sys.stdout.flush = _recording(sys.stdout.flush)  # type: ignore[method-assign]
        sys.stdout.is_watched = True  # type: ignore[union-attr]
    logging.raiseExceptions = False


def _recording(call: Callable[..., Any]) -> Callable[..., Any]:
    def recording(*args: Any) -> Any:
        try:
            return call(*args)
        except OSError as error:
            _failures[:] = [error]
            raise

    return recording


def is_output_failure(error: BaseException) -> bool:
    """Return whether an error came from printing."""
    return any(failure is error for failure in _failures)


def flush_failure() -> OSError | None:
    """Flush standard output; return the error, or None."""
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except OSError as error:
        return error
    return None


def say_output_failure(error: BaseException, command: str = "") -> None:
    """Print that standard output cannot be written, except for a broken pipe (`| head`).

    `command` begins the line: a name and a colon.
    """
    if not isinstance(error, BrokenPipeError):
        reason = getattr(error, "strerror", None) or error
        say(f"{command}error: standard output: cannot be written ({reason}); send it to a disk with free space")


def abandon_output() -> None:
    """Discard buffered output, so that the interpreter does not report it at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
