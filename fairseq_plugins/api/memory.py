"""A memory of earlier outputs: the targets of similar sources are drafts."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TypedDict, overload

from fairseq_plugins.api.inputs import whole_texts_of
from fairseq_plugins.data.sentences import is_blank
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.files import lock, unlock, unwritable
from fairseq_plugins.shared.forks import ForkSafeLock
from fairseq_plugins.shared.typed_values import parse_json

FILE = "memory.jsonl"
"""In the folder: a line for each output, {"source": ..., "target": ...}."""

MAX_DRAFTS = 3
"""Most drafts of a sentence."""

_START = b'{"source": "'
"""Of each line that `add` writes."""

MIN_SIMILARITY = 60
"""Least similarity of sources, in percent of their characters."""


class Memory:
    """Earlier outputs in a folder, for `translate(text, drafts=memory.drafts(text))`.

    Several processes and threads may add to a folder at the same time and read each other's outputs. Killing a process
    does not damage the file. The newest output of a source counts.

    Args:
        folder: made by the first `add`; a missing one is empty.

    Raises:
        ConfigurationError: for a file that cannot be read or is not a memory's.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder).absolute() / FILE  # for programs that change directory
        self._lock = ForkSafeLock()
        self._forget()
        self._refresh()

    def __repr__(self) -> str:
        return f"Memory({str(self.path.parent)!r})"

    def __reduce__(self) -> tuple[type["Memory"], tuple[Path]]:
        return Memory, (self.path.parent,)

    def __len__(self) -> int:
        return len(self._targets)

    @overload
    def drafts(self, text: str) -> list[str]: ...
    @overload
    def drafts(self, text: list[str] | tuple[str, ...]) -> list[list[str]]: ...

    def drafts(self, text: str | list[str] | tuple[str, ...]) -> list[str] | list[list[str]]:
        """Return the output of an equal source, else those of the most similar ones; for several texts their lists."""
        whole_texts_of(text, "text")
        self._refresh()
        return self._similar(text) if isinstance(text, str) else [self._similar(one) for one in text]

    def add(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        """Append new outputs; skip blank ones.

        Raises:
            ConfigurationError: for half of a character, if the folder cannot be written or locked; or as `Memory`.
                Nothing is added then.
            TypeError: for anything but strings.
        """
        # All are checked before the first is written.
        if isinstance(sources, str) or isinstance(targets, str):
            raise TypeError("sources, targets: give a list of each, of as many strings")
        whole_texts_of(sources, "sources"), whole_texts_of(targets, "targets")
        if len(sources) != len(targets):
            problem = f"are {len(targets)}, and sources {len(sources)}"
            raise ConfigurationError("targets", None, problem, "give one for each")
        pairs = dict(zip(sources, targets, strict=True))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._lock, self._open("a+b") as file:
                lock(file, self.path, wait=True)
                try:
                    self._append(file, pairs)
                finally:
                    # A child that was forked meanwhile has the file open, too, and would keep the lock.
                    unlock(file)
        except OSError as error:
            raise unwritable(self.path, "--memory", error) from error

    def _append(self, file: IO[bytes], pairs: Mapping[str, str]) -> None:
        """Append the new ones of pairs of source and target."""
        rest = self._read(file)
        if _pair(rest) is not None:
            file.write(b"\n")
        elif rest.startswith(_START) or _START.startswith(rest):
            # A killed process left part of a line.
            file.truncate(self._end)
        else:
            raise self._wrong_line()
        for source, target in pairs.items():
            if not is_blank(source) and not is_blank(target) and self._targets.get(source) != target:
                line = json.dumps({"source": source, "target": target}, ensure_ascii=False)
                file.write(line.encode("utf-8") + b"\n")
        file.flush()
        self._read(file)

    def _similar(self, text: str) -> list[str]:
        from rapidfuzz import fuzz, process  # imports 46 modules that only a memory needs

        if text in self._targets:
            return [self._targets[text]]
        nearest = process.extract(text, self._sources, scorer=fuzz.ratio, limit=MAX_DRAFTS, score_cutoff=MIN_SIMILARITY)
        return [self._targets[source] for source, _, _ in nearest]

    def _forget(self) -> None:
        self._sources: list[str] = []
        self._targets: dict[str, str] = {}
        self._end = self._lines = 0  # bytes and lines of the file that have been read
        self._inode = 0

    def _refresh(self) -> None:
        try:
            with self._lock, self._open("rb") as file:
                self._read(file)
        except FileNotFoundError:
            return
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
            raise ConfigurationError("--memory", self.path, problem, "give a folder") from error

    def _open(self, mode: str) -> IO[bytes]:
        if self.path.exists() and not self.path.is_file():  # to open a pipe would wait
            raise ConfigurationError("--memory", self.path, "is not a regular file", "give a folder of its own")
        return open(self.path, mode)

    def _read(self, file: IO[bytes]) -> bytes:
        """Read the whole lines added since the last call; return the bytes after them."""
        status = os.fstat(file.fileno())
        if status.st_size < self._end or status.st_ino != self._inode:  # another file
            self._forget()
            self._inode = status.st_ino
        file.seek(self._end)
        *lines, rest = file.read().split(b"\n")
        for line in lines:
            pair = _pair(line)
            if pair is None:
                raise self._wrong_line()
            source, target = pair
            if source not in self._targets:
                self._sources.append(source)
            self._targets[source] = target
            self._end += len(line) + 1
            self._lines += 1
        return rest

    def _wrong_line(self) -> ConfigurationError:
        return ConfigurationError("--memory", self.path, f"line {self._lines + 1} is no output", "remove it")


class _Pair(TypedDict):
    source: str
    target: str


def _pair(line: bytes) -> tuple[str, str] | None:
    """Return source and target of a line; None if the line is incomplete or has other content."""
    try:
        values: _Pair = parse_json(line, _Pair)
    except ValueError:
        return None
    return values["source"], values["target"]
