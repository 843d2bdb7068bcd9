"""The translation of a file while it is being made: a folder beside it, in which every process writes a part.

Lines go to the parts in turns of `CHUNK`. A part grows by whole chunks under a name that ends in `.partial`; the last
process to finish puts the parts together and gives the result its name. A run that was interrupted goes on where its
parts end, with as many parts, if it is made from the same models, options and text.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from fairseq_plugins.commands.files import Destination, hold, lock, unwritable, write_atomically
from fairseq_plugins.errors import ConfigurationError

CHUNK = 1024
"""Lines that are sorted by length and written together."""

_OPTION = "--output"
_ORIGIN = "origin.json"
_FINISHED = "finished"
"""Tells processes of an array that start when all is done that nothing is left; has the name of their call."""


class Part:
    """A part that this process translates; `lines_done` of its lines come from an earlier run."""

    def __init__(self, parts: "Parts", index: int) -> None:
        self.index = index
        self._output, self._whole = parts.output, parts.whole(index)
        self._partial = self._whole.with_name(self._whole.name + ".partial")
        try:
            self._file = open(self._partial, "a+b")
        except OSError as error:
            raise unwritable(self._output.path, _OPTION, error) from error
        hold(self._file, self._partial, self._whole)
        self._file.seek(0)
        # Line by line: a part may be larger than memory.
        end, self.lines_done = 0, 0
        for line in self._file:
            if line.endswith(b"\n"):
                end, self.lines_done = end + len(line), self.lines_done + 1
        self._file.truncate(end)

    def write(self, lines: Sequence[str]) -> None:
        """Append lines, which end in a newline."""
        try:
            self._file.write("".join(lines).encode("utf-8"))
            self._file.flush()
        except OSError as error:
            raise unwritable(self._output.path, _OPTION, error) from error

    def finish(self) -> None:
        """Give the part its name and close it."""
        try:
            os.fsync(self._file.fileno())
            os.replace(self._partial, self._whole)
            self._file.close()
        except OSError as error:
            raise unwritable(self._output.path, _OPTION, error) from error


class Parts:
    """The folder of the parts of a translation.

    Args:
        output: destination of the whole.
        made_from: all that the translation depends on, as JSON values.
        count: number of parts of a new translation.
        call: name of the Slurm array or torchrun's run of this process; empty without.

    `count` becomes the number of parts that the translation was begun with; `is_done` tells whether processes of this
    call have already joined them. Raises ConfigurationError for another origin, or if it cannot be written.
    """

    def __init__(self, output: Destination, made_from: dict[str, Any], count: int, call: str = "") -> None:
        self.output, self._call = output, call
        self._folder = folder_of(output.path)
        try:
            self._folder.mkdir(exist_ok=True)
            with self._locked():
                finished = self._folder / _FINISHED
                self.is_done = finished.is_file() and call != "" and finished.read_text(encoding="utf-8") == call
                if finished.is_file() and not self.is_done:  # left by another call, whose result has its name
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

    def whole(self, index: int) -> Path:
        """Return the name of a finished part."""
        return self._folder / f"{index}-of-{self.count}"

    def is_finished(self, index: int) -> bool:
        """Return whether a part is finished."""
        return self.is_done or self.whole(index).is_file()

    def begin(self, index: int) -> Part:
        """Lock a part and resume it; raises HeldByAnother if another process writes it."""
        return Part(self, index)

    def join(self) -> bool:
        """Join the parts if all are finished; return whether this process did it."""
        if self.is_done:
            return False
        try:
            with self._locked():
                parts = [self.whole(index) for index in range(self.count)]
                if not all(part.is_file() for part in parts):
                    return False
                self._join(parts)
                os.replace(self._folder / "joined", self.output.path)
                (self._folder / _FINISHED).write_text(self._call, encoding="utf-8")
                for part in parts:
                    part.unlink()
            if not self._call:
                shutil.rmtree(self._folder)
        except OSError as error:
            raise unwritable(self.output.path, _OPTION, error) from error
        return True

    def _join(self, parts: Sequence[Path]) -> None:
        files = [part.open("rb") for part in parts]
        try:
            with open(self._folder / "joined", "wb") as joined:
                while sum(_copy_chunk(file, joined) for file in files):
                    pass
                joined.flush()
                os.fsync(joined.fileno())
        finally:
            for file in files:
                file.close()


def folder_of(path: Path) -> Path:
    """Return the folder of the parts."""
    return path.with_name(path.name + ".parts")


def remove_finished(path: Path) -> None:
    """Remove the folder that a call left for its late processes, after all have ended."""
    if (folder_of(path) / _FINISHED).is_file():
        shutil.rmtree(folder_of(path))


def _copy_chunk(source: Any, target: Any) -> int:
    lines = list(islice(source, CHUNK))
    target.writelines(lines)
    return len(lines)
