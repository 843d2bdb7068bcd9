"""The translation of a file while it is being made: a folder beside it, in which every process writes a part.

Lines go to the parts in turns of `CHUNK`. A part grows by whole chunks under a name that ends in `.partial`; the last
process to finish puts the parts together and gives the result its name. A run that was interrupted goes on where its
parts end, if it is made from the same models, options and text.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from fairseq_plugins.commands.files import Destination, unwritable, write_atomically
from fairseq_plugins.errors import ConfigurationError

CHUNK = 1024
"""Lines that are sorted by length and written together."""

_OPTION = "--output"


class Part:
    """What one process translates.

    Args:
        output: where the whole is to be.
        made_from: all that the translation depends on; JSON values.
        index, count: which part, of how many.

    Attributes:
        lines_done: lines of this part that an earlier run translated.

    Raises:
        ConfigurationError: when it was begun from something else, another process writes it, or it cannot be written.
    """

    def __init__(self, output: Destination, made_from: dict[str, Any], index: int, count: int) -> None:
        self._output, self._count = output, count
        self.folder = output.path.with_name(output.path.name + ".parts")
        self._whole = self.folder / f"{index}-of-{count}"
        partial = self.folder / f"{index}-of-{count}.partial"
        try:
            self.folder.mkdir(exist_ok=True)
            with self._locked():
                self._check_origin(made_from)
            if self._whole.exists():
                os.replace(self._whole, partial)
            self._file = open(partial, "a+b")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigurationError(f"{partial}: another process writes it; wait for it or end it first") from error
        except OSError as error:
            raise unwritable(output.path, _OPTION, error) from error
        self._partial = partial
        self._file.seek(0)
        # Line by line: a part may be larger than memory.
        end, self.lines_done = 0, 0
        for line in self._file:
            if line.endswith(b"\n"):
                end, self.lines_done = end + len(line), self.lines_done + 1
        self._file.truncate(end)

    def _check_origin(self, made_from: dict[str, Any]) -> None:
        file = self.folder / "origin.json"
        if not file.exists():
            write_atomically(file, json.dumps(made_from), _OPTION)
        before = json.loads(file.read_text(encoding="utf-8"))
        changed = [name for name in {**made_from, **before} if made_from.get(name) != before.get(name)]
        if changed:
            raise ConfigurationError(
                f"{_OPTION} {self._output.path}: {self.folder} was begun with other {', '.join(changed)}; remove that "
                "folder, or give another file"
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self.folder / "lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def write(self, lines: Sequence[str]) -> None:
        """Append lines, which end in a newline."""
        try:
            self._file.write("".join(lines).encode("utf-8"))
            self._file.flush()
        except OSError as error:
            raise unwritable(self._output.path, _OPTION, error) from error

    def finish(self) -> bool:
        """Close the part; the last one to be closed puts all together. Returns whether this was it."""
        try:
            with self._locked():
                os.fsync(self._file.fileno())
                self._file.close()
                os.replace(self._partial, self._whole)
                parts = [self.folder / f"{index}-of-{self._count}" for index in range(self._count)]
                if not all(part.exists() for part in parts):
                    return False
                self._join(parts)
                os.replace(self.folder / "joined", self._output.path)
            shutil.rmtree(self.folder)
        except OSError as error:
            raise unwritable(self._output.path, _OPTION, error) from error
        return True

    def _join(self, parts: Sequence[Path]) -> None:
        files = [part.open("rb") for part in parts]
        try:
            with open(self.folder / "joined", "wb") as joined:
                while sum(_copy_chunk(file, joined) for file in files):
                    pass
                joined.flush()
                os.fsync(joined.fileno())
        finally:
            for file in files:
                file.close()


def _copy_chunk(source: Any, target: Any) -> int:
    lines = list(islice(source, CHUNK))
    target.writelines(lines)
    return len(lines)
