"""An unfinished translation of a file: a folder beside it with one shard for each process.

Chunks of `CHUNK` lines are dealt to the shards in turn. A shard is appended to chunk by chunk under a name that ends in
`.partial`. The last process to finish joins the shards and renames the result. An interrupted run resumes at the end of
each shard, with the same number of shards, if models, options and text are the same.

The folder is made with the file `origin.json`, by which it is known as ours. Symbolic links in it are not followed,
and only its own files are removed.
"""

import argparse
import json
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from fairseq_plugins.api.files import GPT2_FILES, find_files
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.process.output import say
from fairseq_plugins.shared.files import (
    Destination,
    HeldByAnother,
    hold,
    is_own_file,
    lock,
    open_own,
    sha256,
    unwritable,
    write_atomically,
)
from fairseq_plugins.shared.typed_values import load_json
from fairseq_plugins.shared.workers import WAIT_SECONDS

CHUNK = 1024
"""Number of lines that are sorted by length and written together."""

_OPTION = "--output"
_ORIGIN = "origin.json"
_MADE_BY = "spec-dec-translate"
_OWN = re.compile(r"(\d+-of-\d+|origin\.json)(\.partial)?|finished|lock|joined")
_FINISHED = "finished"
"""File with the id of the finished run, for tasks of its array that start later and have nothing to do."""


def origin(args: argparse.Namespace) -> dict[str, Any]:
    """Return everything that the translation of a file depends on, as JSON values."""
    irrelevant = ("input", "output", "processes", "device", "buffer_size", "threads")
    given = {name: value for name, value in vars(args).items() if name not in irrelevant}
    languages = (args.source_lang, args.target_lang)
    models = (args.folder, args.verifier, args.drafter, args.data)
    files = find_files(*models, languages, args.subwords, finds_dictionaries=args.task == "spec_dec")
    made_of: dict[str, list[str | None]] = {
        "models": [*files.verifier.split(":"), files.drafter],
        "dictionaries": [str(file) for file in sorted(Path(files.data).glob("dict.*.txt"))],
        "subwords": _in_folder(files.subwords),
        "input": [args.input],
    }
    # `load` refuses files that are missing.
    found = {name: [Path(path) for path in paths if path and Path(path).is_file()] for name, paths in made_of.items()}
    hashes = {name: sha256(paths) for name, paths in found.items()}
    return {**given, **hashes}


def _in_folder(path: str | None) -> list[str | None]:
    """Return a file, or those in a folder (GPT-2's subwords)."""
    if path is None or not Path(path).is_dir():
        return [path]
    return [str(Path(path, name)) for name in GPT2_FILES]


class OutputShard:
    """A shard that this process writes; the first `lines_done` lines come from an earlier run."""

    def __init__(self, output: Destination, finished: Path, index: int) -> None:
        self.index = index
        self._output, self._finished = output, finished
        self._partial = finished.with_name(finished.name + ".partial")
        try:
            self._file = open_own(self._partial, "a+b")
        except OSError as error:
            raise unwritable(output.path, _OPTION, error) from error
        hold(self._file, self._partial, finished)
        self._file.seek(0)
        # Line by line: a shard may be larger than memory.
        end, self.lines_done = 0, 0
        for line in self._file:
            if line.endswith(b"\n"):
                end, self.lines_done = end + len(line), self.lines_done + 1
        self._file.truncate(end)

    def write(self, lines: Sequence[str]) -> None:
        """Append lines, each with its newline."""
        try:
            self._file.write("".join(lines).encode("utf-8"))
            self._file.flush()
        except OSError as error:
            raise unwritable(self._output.path, _OPTION, error) from error

    def close(self) -> None:
        """Release an unfinished shard."""
        with suppress(OSError):  # closing writes what is buffered, and fails again on a full disk
            self._file.close()

    def finish(self) -> None:
        """Rename the finished shard, and close it."""
        try:
            os.fsync(self._file.fileno())
            os.replace(self._partial, self._finished)
            self._file.close()
        except OSError as error:
            raise unwritable(self._output.path, _OPTION, error) from error


class OutputShards:
    """The shards of a translation, in a folder beside its output.

    Args:
        output: destination of the translation.
        made_from: everything that the translation depends on, as JSON values.
        count: number of shards of a new translation.
        run_id: id of this process's Slurm array or torchrun's run; empty for a single process.

    Attributes:
        count: number of shards; for a resumed translation that of the first run.
        is_done: whether other processes of this run have already joined the shards.

    Raises ConfigurationError for a folder made from other models, options or text, or one that cannot be written.
    """

    def __init__(self, output: Destination, made_from: dict[str, Any], count: int, run_id: str = "") -> None:
        self.output, self._run_id = output, run_id
        self._folder = folder_of(output.path)
        try:
            made_from = {"made_by": _MADE_BY, **made_from, "parts": count}
            self._make_folder(made_from)
            with self._locked():
                finished = self._folder / _FINISHED
                is_finished = is_own_file(finished)
                self.is_done = is_finished and run_id != "" and finished.read_text(encoding="utf-8") == run_id
                if is_finished and not self.is_done:  # left by an earlier run, whose output is complete
                    _remove(file for file in _own_files(self._folder) if file.name not in ("lock", _ORIGIN))
                    write_atomically(self._folder / _ORIGIN, json.dumps(made_from), _OPTION)
                self.count = self._check_origin(made_from)
        except OSError as error:
            raise unwritable(output.path, _OPTION, error) from error

    def _make_folder(self, made_from: dict[str, Any]) -> None:
        """Make the folder together with its origin, unless it is there."""
        if not os.path.lexists(self._folder):
            with tempfile.TemporaryDirectory(prefix=f"{self._folder.name}.", dir=self._folder.parent) as temporary:
                made = Path(temporary, self._folder.name)
                made.mkdir()
                write_atomically(made / _ORIGIN, json.dumps(made_from), _OPTION)
                try:
                    made.rename(self._folder)
                except OSError:
                    if not os.path.lexists(self._folder):  # else another process has made it meanwhile
                        raise
        if not _is_ours(self._folder):
            problem = f"{self._folder} is there, and is not an unfinished translation"
            raise ConfigurationError(_OPTION, self.output.path, problem, "rename it, or give another file")

    def _check_origin(self, made_from: dict[str, Any]) -> int:
        file = self._folder / _ORIGIN
        try:
            before = load_json(file.read_text(encoding="utf-8"))
            count = int(before["parts"])
        except (ValueError, KeyError, TypeError) as error:
            remedy = f"remove {self._folder}, or give another file"
            raise ConfigurationError(_OPTION, self.output.path, f"{file} is broken", remedy) from error
        changed = [name for name in {**made_from, **before} if made_from.get(name) != before.get(name)]
        changed = [name for name in changed if name != "parts"]
        if changed:
            problem = f"{self._folder} was begun with other {', '.join(changed)}"
            raise ConfigurationError(_OPTION, self.output.path, problem, "remove that folder, or give another file")
        return count

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open_own(self._folder / "lock", "a") as file:
            lock(file, self._folder, wait=True)
            yield

    def _path(self, index: int) -> Path:
        return self._folder / f"{index}-of-{self.count}"

    def is_finished(self, index: int) -> bool:
        """Return whether a shard is finished."""
        return self.is_done or is_own_file(self._path(index))

    def begin(self, index: int) -> OutputShard:
        """Lock a shard and resume it; raises HeldByAnother if another process writes it."""
        return OutputShard(self.output, self._path(index), index)

    def join(self) -> bool:
        """Join the shards if all are finished; return whether this process did it."""
        if self.is_done:
            return False
        try:
            with self._locked():
                shards = [self._path(index) for index in range(self.count)]
                if not all(map(is_own_file, shards)):
                    return False
                self._join(shards)
                os.replace(self._folder / "joined", self.output.path)
                with open_own(self._folder / _FINISHED, "w", encoding="utf-8") as finished:
                    finished.write(self._run_id)
                _remove(shards)
            if not self._run_id:
                _remove_folder(self._folder)
        except OSError as error:
            raise unwritable(self.output.path, _OPTION, error) from error
        return True

    def wait(self) -> None:
        """Wait until this or another process has joined the shards."""
        while is_own_file(self._folder / _ORIGIN) and not is_own_file(self._folder / _FINISHED):
            time.sleep(WAIT_SECONDS)

    def _join(self, shards: Sequence[Path]) -> None:
        with ExitStack() as opened, open_own(self._folder / "joined", "wb") as joined:
            files = [opened.enter_context(open_own(shard, "rb")) for shard in shards]
            while sum(_copy_chunk(file, joined) for file in files):
                pass
            joined.flush()
            os.fsync(joined.fileno())


def folder_of(path: Path) -> Path:
    """Return the folder of the shards of an output."""
    return path.with_name(path.name + ".parts")


def remove_unused(path: Path) -> None:
    """Remove the folder of an output if no shard in it has text, and no process writes one.

    A finished run leaves such a folder to its later processes, and a refused option one that other options would not
    fit.
    """
    folder = folder_of(path)
    if not _is_ours(folder):
        return
    with ExitStack() as opened, suppress(HeldByAnother):
        for shard in [file for file in _own_files(folder) if "-of-" in file.name]:
            file = opened.enter_context(open_own(shard, "rb"))
            lock(file, shard)
            if file.read(1):
                return
        _remove_folder(folder)


def _is_ours(folder: Path) -> bool:
    """Return whether a folder is one that `OutputShards` has made, and no symbolic link."""
    if folder.is_symlink() or not folder.is_dir() or not is_own_file(folder / _ORIGIN):
        return False
    text = (folder / _ORIGIN).read_bytes()
    # It begins with the mark, so that a damaged one is still known.
    return text.startswith(json.dumps({"made_by": _MADE_BY})[:-1].encode())


def _own_files(folder: Path) -> list[Path]:
    """Return the files that `OutputShards` has written."""
    return [file for file in folder.iterdir() if is_own_file(file) and _OWN.fullmatch(file.name)]


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _remove_folder(folder: Path) -> None:
    """Remove our files, and the folder unless it has others."""
    _remove(_own_files(folder))
    try:
        folder.rmdir()
    except OSError:
        say(f"{_MADE_BY}: {folder} stays, with files of others")


def _copy_chunk(source: Any, target: Any) -> int:
    lines = list(islice(source, CHUNK))
    target.writelines(lines)
    return len(lines)
