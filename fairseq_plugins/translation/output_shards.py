"""An unfinished translation of a file: a folder beside it with one shard for each process.

Chunks of `CHUNK` lines are dealt to the shards in turn. A shard is appended to chunk by chunk under a name that ends in
`.partial`. The last process to finish joins the shards and renames the result. An interrupted run resumes at the end of
each shard, with the same number of shards, if models, options and text are the same.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from fairseq_plugins.commands.files import Destination, hold, lock, unwritable, write_atomically
from fairseq_plugins.errors import ConfigurationError

CHUNK = 1024
"""Number of lines that are sorted by length and written together."""

_OPTION = "--output"
_ORIGIN = "origin.json"
_FINISHED = "finished"
"""File with the id of the finished run, for tasks of its array that start later and have nothing to do."""


class OutputShard:
    """A shard that this process writes; the first `lines_done` lines come from an earlier run."""

    def __init__(self, output: Destination, finished: Path, index: int) -> None:
        self.index = index
        self._output, self._finished = output, finished
        self._partial = finished.with_name(finished.name + ".partial")
        try:
            self._file = open(self._partial, "a+b")
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
            self._folder.mkdir(exist_ok=True)
            with self._locked():
                finished = self._folder / _FINISHED
                self.is_done = finished.is_file() and run_id != "" and finished.read_text(encoding="utf-8") == run_id
                if finished.is_file() and not self.is_done:  # left by an earlier run, whose output is complete
                    for file in (*self._folder.glob("*-of-*"), self._folder / _ORIGIN, finished):
                        file.unlink(missing_ok=True)
                self.count = self._check_origin({**made_from, "parts": count})
        except OSError as error:
            raise unwritable(output.path, _OPTION, error) from error

    def _check_origin(self, made_from: dict[str, Any]) -> int:
        file = self._folder / _ORIGIN
        if not file.exists():
            write_atomically(file, json.dumps(made_from), _OPTION)
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
            count = int(before["parts"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"{_OPTION} {self.output.path}: {file} is broken; remove {self._folder}, or give another file"
            ) from error
        changed = [name for name in {**made_from, **before} if made_from.get(name) != before.get(name)]
        changed = [name for name in changed if name != "parts"]
        if changed:
            raise ConfigurationError(
                f"{_OPTION} {self.output.path}: {self._folder} was begun with other {', '.join(changed)}; remove that "
                "folder, or give another file"
            )
        return count

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self._folder / "lock", "a") as file:
            lock(file, self._folder, wait=True)
            yield

    def _path(self, index: int) -> Path:
        return self._folder / f"{index}-of-{self.count}"

    def is_finished(self, index: int) -> bool:
        """Return whether a shard is finished."""
        return self.is_done or self._path(index).is_file()

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
                if not all(shard.is_file() for shard in shards):
                    return False
                self._join(shards)
                os.replace(self._folder / "joined", self.output.path)
                (self._folder / _FINISHED).write_text(self._run_id, encoding="utf-8")
                for shard in shards:
                    shard.unlink()
            if not self._run_id:
                shutil.rmtree(self._folder)
        except OSError as error:
            raise unwritable(self.output.path, _OPTION, error) from error
        return True

    def _join(self, shards: Sequence[Path]) -> None:
        with ExitStack() as opened, open(self._folder / "joined", "wb") as joined:
            files = [opened.enter_context(shard.open("rb")) for shard in shards]
            while sum(_copy_chunk(file, joined) for file in files):
                pass
            joined.flush()
            os.fsync(joined.fileno())


def folder_of(path: Path) -> Path:
    """Return the folder of the shards of an output."""
    return path.with_name(path.name + ".parts")


def remove_finished(path: Path) -> None:
    """Remove the folder that a run has left for its later processes, once all have ended."""
    if (folder_of(path) / _FINISHED).is_file():
        shutil.rmtree(folder_of(path))


def _copy_chunk(source: Any, target: Any) -> int:
    lines = list(islice(source, CHUNK))
    target.writelines(lines)
    return len(lines)
