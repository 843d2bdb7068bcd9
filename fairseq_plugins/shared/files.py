"""Check destinations, write files atomically, lock and hash them."""

import errno
import fcntl
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any, TextIO

from fairseq_plugins.errors import ConfigurationError


@dataclass(frozen=True)
class Destination:
    """The destination of a file that an option names.

    Attributes:
        path: the file, with symbolic links resolved, so that a link stays and its target is replaced.
        is_direct: whether it is a device, a pipe or an open file (/dev/stdout). These are written directly, because
            renaming would destroy them. All others are renamed when complete.
    """

    path: Path
    is_direct: bool

    def open_partial(self, mode: str, **how: Any) -> tuple[IO[Any], Path]:
        """Make a file beside the destination, whose content it will be; return it, opened, and its path.

        NAME.partial, or NAME.2.partial, ... where others are: of an interrupted run, or the user's. `mode` is "x" or
        "xb"; `how` as for `open`. Raises OSError.
        """
        for number in count(1):
            ending = ".partial" if number == 1 else f".{number}.partial"
            path = self.path.with_name(self.path.name + ending)
            with suppress(FileExistsError):
                return open(path, mode, **how), path
        raise AssertionError


def destination(path: str | Path, option: str) -> Destination:
    """Return the destination of a path, without opening or creating anything. `option` named the path, for errors.

    Raises ConfigurationError for a folder, for "-", or if its folder is missing or read-only.
    """
    if str(path) == "-":
        raise ConfigurationError(option, path, "would be a file of that name", "give /dev/stdout for standard output")
    target = Path(os.path.realpath(path))
    try:
        kind = os.stat(path or os.curdir).st_mode
        if stat.S_ISDIR(kind):
            raise ConfigurationError(option, path, "is a folder", "give a file in it")
        # Paths under /proc name open files.
        given = os.path.realpath(os.path.dirname(os.path.abspath(path))).startswith("/proc/")
        if given or not stat.S_ISREG(kind) or standard_stream(path) is not None:
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return Destination(Path(path), True)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise unwritable(path, option, error) from error
    is_there = _nearest_folder(target.parent, path, option) == target.parent
    if is_there and os.access(target.parent, os.W_OK | os.X_OK):
        return Destination(target, False)
    code = errno.EACCES if is_there else errno.ENOENT
    raise unwritable(path, option, OSError(code, os.strerror(code)))


def check_folder(path: str | Path, option: str) -> None:
    """Raise ConfigurationError if a folder cannot be made or written, before the work for it begins; make nothing."""
    if not os.access(_nearest_folder(Path(path).absolute(), path, option), os.W_OK | os.X_OK):
        raise unwritable(path, option, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def _nearest_folder(folder: Path, path: str | Path, option: str) -> Path:
    """Return a folder or the nearest above it that exists; raise ConfigurationError about `path` if it is a file."""
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    if not existing.is_dir():
        raise ConfigurationError(option, path, f"{existing.name} is a file", "give a folder")
    return existing


def check_no_input(path: str | Path, option: str, inputs: Iterable[str | Path]) -> None:
    """Raise ConfigurationError if an output would replace an input, by whatever name; `option` named the output."""
    if os.path.isfile(path) and any(os.path.exists(name) and os.path.samefile(path, name) for name in inputs):
        raise ConfigurationError(option, path, "is an input of this command", "give another file")


def standard_stream(path: str | Path) -> TextIO | None:
    """Return standard output or error if the path leads to it: a file opened twice would overwrite itself."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and os.path.samestat(os.stat(path), os.fstat(stream.fileno())):
                return stream
        except (OSError, ValueError):  # closed, or not a file of the system
            continue
    return None


def open_own(path: str | Path, mode: str, **how: Any) -> IO[Any]:
    """Open a file that only our programs write, as `open` does; raise OSError for a symbolic link."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666), **how)


def is_own_file(path: Path) -> bool:
    """Return whether a path is a regular file, and no symbolic link."""
    return path.is_file() and not path.is_symlink()


CHECKPOINTS = ("verifier.pt", "checkpoint_best.pt", "checkpoint_last.pt")
"""Names of a model's checkpoint in a folder, the best first."""


def nearest_checkpoint(path: str) -> str:
    """Return ", such as FILE", with the best checkpoint in a folder, or in that of a missing file; empty for none."""
    folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
    found = next((name for name in CHECKPOINTS if os.path.isfile(os.path.join(folder, name))), None)
    return "" if found is None else f", such as {os.path.join(folder, found)}"


def is_hugging_face(folder: Path) -> bool:
    """Return whether a folder has a model or adapter in Hugging Face's format, and no model as `load` reads it."""
    # transformers' trainer writes optimizer.pt and scheduler.pt.
    ours = (folder / name for name in ("verifier.pt", "blockwise.pt"))
    theirs = (folder / name for name in ("config.json", "adapter_config.json"))
    return any(file.is_file() for file in theirs) and not any(file.is_file() for file in ours)


def refuse_hugging_face(path: str, option: str | None) -> None:
    """Raise ConfigurationError for weights in Hugging Face's format, or their folder, in place of a checkpoint."""
    if path.endswith((".safetensors", "pytorch_model.bin")) or is_hugging_face(Path(path)):
        remedy = "convert its folder with spec-dec-convert FOLDER OUT"
        raise ConfigurationError(option, path, "is in Hugging Face's format", remedy)


def first_of(folder: Path, *names: str) -> Path | None:
    """Return the first of these files that a folder has; None if it has none.

    Raises:
        ConfigurationError: for a link that leads nowhere, and for what is no file: the model would be another without.
    """
    found = next((folder / name for name in names if os.path.lexists(folder / name)), None)
    if found is not None and not found.is_file():
        problem = "leads to no file" if found.is_symlink() and not found.exists() else "is not a file"
        raise ConfigurationError(None, found, problem, "copy it again, or remove it")
    return found


def read_file(file: Path, remedy: str = "copy it again") -> bytes:
    """Return the content of a file; raise ConfigurationError if it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(None, file, f"cannot be read ({error.strerror})", remedy) from error


def cache_folder() -> Path:
    """Return the user's folder of files that can be made again: $XDG_CACHE_HOME/fairseq-spec-dec, or in ~/.cache.

    Raises ConfigurationError if the user has no home, as in some containers.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "fairseq-spec-dec")
    except RuntimeError as error:
        problem = "is not set, and this user has no home folder for a cache"
        raise ConfigurationError(None, "XDG_CACHE_HOME", problem, "set it to a writable folder") from error


def unwritable(path: str | Path, option: str | None, error: OSError) -> ConfigurationError:
    """Return the error of a file that cannot be written."""
    remedy, elsewhere = "give a path in a writable folder", "give another path"
    with suppress(ConfigurationError):  # the user has no home
        if Path(path).is_relative_to(cache_folder()):
            option, remedy = None, "set XDG_CACHE_HOME to a writable folder"
            elsewhere = "set XDG_CACHE_HOME to another folder"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = f"free disk space, or {elsewhere}"
    return ConfigurationError(option, path, f"cannot be written ({error.strerror or error})", remedy)


class HeldByAnother(ConfigurationError):
    """Another process writes `file`."""

    def __init__(self, file: Path) -> None:
        super().__init__(None, file, "another process writes it", "wait for it or end it first")
        self.file = file


def lock(file: IO[Any], path: Path, wait: bool = False) -> None:
    """Lock an open file until it is closed; `path` is its name for errors. Closes it on failure.

    Raises HeldByAnother if another process holds it (unless `wait`), and ConfigurationError if the file system has no
    locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as error:
        file.close()
        raise HeldByAnother(path) from error
    except OSError as error:
        file.close()
        remedy = "give a path on a file system with locks (NFS: version 4, or mounted without `nolock`)"
        raise ConfigurationError(None, path, f"cannot be locked ({error.strerror or error})", remedy) from error


def unlock(file: IO[Any]) -> None:
    """Release the lock of an open file, for all processes that have inherited it."""
    fcntl.flock(file, fcntl.LOCK_UN)


def hold(file: IO[Any], partial: Path, whole: Path) -> None:
    """Lock a growing file, opened as `partial`, until it is closed; its holder renames it to `whole` at the end.

    Raises HeldByAnother if another process holds it, or has finished it since it was opened, and ConfigurationError if
    the file system has no locks.
    """
    lock(file, partial)
    try:
        is_ours = os.path.samestat(os.fstat(file.fileno()), os.stat(partial))
    except FileNotFoundError:
        is_ours = False
    if is_ours and whole.exists():
        partial.unlink()
    if not is_ours or whole.exists():
        file.close()
        raise HeldByAnother(partial)


def write_atomically(path: Path, content: str | bytes, option: str) -> None:
    """Write text (as UTF-8) or bytes under another name and rename the file; make folders as needed.

    Writes to devices and pipes directly, and replaces the target of a symbolic link. `option` named the path, for
    errors. Raises ConfigurationError if it cannot be written; the previous content is then kept.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)
        target = destination(path, option)
        if target.is_direct:
            stream = standard_stream(path)
            if stream is not None:
                stream.flush()
            # The stream's own descriptor, so that later output follows this text.
            with open(target.path if stream is None else os.dup(stream.fileno()), "ab", buffering=0) as file:
                write_all(file, data)
            return
        opened, partial = target.open_partial("xb", buffering=0)
        try:
            with opened:
                write_all(opened, data)
            os.replace(partial, target.path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise unwritable(path, option, error) from error


@contextmanager
def new_folder(path: Path, option: str | None = None) -> Iterator[Path]:
    """Yield an empty folder, which becomes `path` at the end; after an error nothing is left.

    It lies alone in a temporary folder beside `path`, where files that are not to stay may lie, too. `option` named the
    path, if any. Raises ConfigurationError if it cannot be written, or a file elsewhere cannot be read meanwhile.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(prefix=f"{path.name}.partial.", dir=path.parent)
    except OSError as error:
        raise unwritable(path, option, error) from error
    with temporary as partial:
        folder = Path(partial, path.name)
        try:
            folder.mkdir()
            yield folder
            folder.rename(path)
        except OSError as error:
            if error.errno == errno.ENOTEMPTY and path.is_dir():
                problem = "was written by another process meanwhile"
                raise ConfigurationError(option, path, problem, "use that, or give another folder") from error
            # Errors of writing name no file, as for a full disk, or one in the folder.
            if error.filename is not None and not Path(error.filename).is_relative_to(partial):
                raise ConfigurationError(None, error.filename, f"cannot be read ({error.strerror})") from error
            raise unwritable(path, option, error) from error


def write_all(file: object, data: bytes) -> None:
    """Write to an unbuffered file, which may accept less than it is given."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]  # type: ignore[attr-defined]


def sha256_of(file: Path) -> str:
    """Return the hash of a file's content."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def sha256(files: Sequence[Path]) -> str:
    """Return one hash of the contents of files."""
    return hashlib.sha256(b"".join(bytes.fromhex(sha256_of(file)) for file in files)).hexdigest()


def missing_folder(argument: str | None, folder: Path, expected: str) -> ConfigurationError:
    """Return the error for a file, or a folder that does not exist, which may be a name of the Hugging Face hub."""
    parts, hub = folder.parts, ""
    if folder.is_file():
        return ConfigurationError(argument, folder, "is a file", f"give a folder, {expected}")
    if parts and parts[0].startswith("~"):  # as within quotation marks
        expected = f"it without ~: {os.path.expanduser(folder)}"
    elif len(parts) == 2 and not (folder.is_absolute() or folder.parent.is_dir() or ".." in parts):
        hub = f"; models of the Hugging Face hub are not downloaded: hf download {folder} --local-dir {parts[1]}"
    return ConfigurationError(argument, folder, "no such folder", f"give {expected}{hub}")
