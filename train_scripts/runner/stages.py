"""Run commands, quoted as in a shell, and stages. A stage writes one file or folder, and is skipped if that exists."""

import errno
import fcntl
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any


class RecipeError(Exception):
    """A wrong setting or input. The message is one line with its value and the remedy."""


class StopRequested(Exception):
    """SIGUSR1 has arrived, which Slurm sends before a time limit."""


class CommandFailed(Exception):
    """A command has failed. Its messages are in the log; without a log they were printed."""

    def __init__(self, status: int, log: Path | None) -> None:
        super().__init__(f"exit status {status}")
        self.status, self.log = status if status > 0 else 128 - status, log  # as in a shell


def say(text: str = "") -> None:
    """Print a line without buffering."""
    print(text, flush=True)


def minutes(seconds: float) -> str:
    """Return a duration as minutes:seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def is_dry_run() -> bool:
    """Return whether commands are only printed. The shell functions of recipes read the same variable."""
    return bool(os.environ.get("dry_run"))


def lock(file: Path) -> None:
    """Lock a folder by a file in it until this process and its children have ended.

    Raises:
        RecipeError: if another run still holds the lock after LOCK_SECONDS.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    os.set_inheritable(descriptor, True)  # an orphaned training keeps the lock
    end = time.monotonic() + float(os.environ.get("LOCK_SECONDS") or 5)
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                return say(f"Note: {file.parent} cannot be locked ({error.strerror}); start no second run there.")
            if time.monotonic() > end:
                raise RecipeError(f"another run is writing to {file.parent}; wait for it or end it first") from None
        time.sleep(0.1)


def full_disk(error: OSError) -> str | None:
    """Return the message of an error that is due to a full disk; errors of writing name no file."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    return f"{error.filename or 'a file'}: cannot be written ({error.strerror}); free disk space"


@contextmanager
def started(command: str, **files: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command, and end it if this process is interrupted; otherwise a training would continue unattended."""
    words = shlex.split(command)
    try:
        child = subprocess.Popen(words, close_fds=False, **files)  # the child inherits locks
    except FileNotFoundError:
        raise RecipeError(f"{words[0]}: no such program; install everything with make setup") from None
    try:
        yield child
    except BaseException:
        child.terminate()
        child.wait()
        raise


def run(command: str, log: Path | None = None, out: Path | None = None, source: Path | None = None) -> None:
    """Run a command.

    Args:
        command: the command, quoted as in a shell.
        log: file that messages are appended to; None prints them.
        out: file of the output; None sends it where messages go.
        source: file of the input.

    Raises:
        CommandFailed: if the exit status is not 0.
    """
    if is_dry_run():
        files = (f" <{source}" if source else "") + (f" >{out}" if out else "")
        return say(shlex.join(shlex.split(command)) + files)
    with ExitStack() as stack:
        reads = stack.enter_context(open(source, "rb")) if source else None
        messages = stack.enter_context(open(log, "ab")) if log else None  # keeps those of an interrupted run
        writes = stack.enter_context(open(out, "wb")) if out else messages
        with started(command, stdin=reads, stdout=writes, stderr=messages) as child:
            status = child.wait()
    if status:
        raise CommandFailed(status, log)


def begin_writing(partial: Path) -> None:
    """Note in `partial`.begun that a stage writes `partial`, a file or folder that `finish_writing` renames.

    Raises:
        RecipeError: if it exists and no stage has begun it.
    """
    begun = Path(f"{partial}.begun")
    if is_dry_run():
        return
    if os.path.lexists(partial) and not begun.is_file():
        raise RecipeError(f"{partial}: is there, and no stage has written it; rename it")
    begun.parent.mkdir(parents=True, exist_ok=True)
    begun.touch()


def write_anew(partial: Path) -> None:
    """Remove what an interrupted stage has left as `partial`, and begin to write it.

    Raises:
        RecipeError: if it exists and no stage has begun it.
    """
    begin_writing(partial)
    run(shlex.join(["rm", "-rf", str(partial)]))


def finish_writing(partial: Path, output: Path) -> None:
    """Rename what a stage has written, if it has written `partial`."""
    if is_dry_run():
        return run(shlex.join(["mv", str(partial), str(output)]))
    if partial.exists():
        partial.rename(output)
    Path(f"{partial}.begun").unlink()


def remove_written(partial: Path) -> None:
    """Remove what a stage has written, of which it needs nothing more."""
    run(shlex.join(["rm", "-rf", str(partial), f"{partial}.begun"]))


def is_older(file: Path, other: Path) -> bool:
    """Return whether both files exist and the first was written earlier."""
    return file.exists() and other.exists() and file.stat().st_mtime < other.stat().st_mtime


def stage(output: Path, message: str, make: Callable[[], None]) -> None:
    """Call `make`, which writes `output`, unless that exists."""
    if is_dry_run():
        say(f"# {message}: {output}")
        make()
        return say()
    if output.exists():
        return say(f"[have] {message}: {output}")
    say(f"[....] {message}")
    start = time.monotonic()
    make()
    if not output.exists():
        raise RecipeError(f"{message}: {output} was not written")
    say(f"[done] {message}: {output}, {minutes(time.monotonic() - start)} min")
