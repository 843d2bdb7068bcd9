"""Shards: files that several processes write, each its own, and resume after an interruption.

The first line of a shard is JSON with its origin: all that its other lines depend on. The name of an unfinished shard
ends in `.partial`.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.files import hold, open_own, unwritable, write_all
from fairseq_plugins.shared.typed_values import parse_json

SHARD = re.compile(r"\d+-of-(\d+)")
"""Name of a shard without prefix and suffix."""


@dataclass(frozen=True)
class Shards:
    """The shards of a piece of work: the files `PREFIX` `I-of-N` `SUFFIX` of a folder."""

    folder: Path
    prefix: str = ""
    suffix: str = ""

    def path(self, index: int, count: int) -> Path:
        """Return the name of a finished shard."""
        return self.folder / f"{self.prefix}{index}-of-{count}{self.suffix}"

    def count(self) -> int | None:
        """Return the number of shards, finished or not; None if there is none yet.

        Raises ConfigurationError if the folder has shards of different numbers.
        """
        counts: dict[int, str] = {}
        for file in sorted(self.folder.glob(f"{self.prefix}*")):
            name = file.name.removeprefix(self.prefix).removesuffix(".partial").removesuffix(self.suffix)
            match = SHARD.fullmatch(name)
            if match is not None:
                counts.setdefault(int(match[1]), file.name)
        if len(counts) > 1:
            problem = f"has shards of different divisions ({', '.join(counts.values())})"
            raise ConfigurationError(None, self.folder, problem, "remove all but those of one")
        return next(iter(counts), None)


class ShardWriter:
    """Write a shard, or resume an interrupted one; no other process writes it until it is closed.

    Args:
        path: of the finished shard; its folder is made if necessary.
        made_from: the origin.

    Attributes:
        file: its unfinished file, which has the lines so far (`read_lines`).

    Raises:
        HeldByAnother: if another process writes it.
        ConfigurationError: if its origin differs from `made_from`, or if it cannot be written.
    """

    def __init__(self, path: Path, made_from: dict[str, Any]) -> None:
        self._path, self.file = path, path.with_name(path.name + ".partial")
        self._origin = encode_origin(made_from) + b"\n"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError), open_own(self.file, "rb") as file:
                if not self._origin.startswith(file.readline()):  # else it may be torn
                    check_origin(self.file, made_from)
            self._opened = open_own(self.file, "a+b", buffering=0)
        except OSError as error:
            raise unwritable(self.file, "--output", error) from error
        hold(self._opened, self.file, path)
        # A kill can tear the last line.
        with open_own(self.file, "rb") as file:
            whole = sum(len(line) for line in file if line.endswith(b"\n"))
        self._opened.truncate(whole)
        self._is_empty = whole == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Release the shard; an unfinished one without lines is removed."""
        if not self._opened.closed:
            if self._is_empty:
                self.file.unlink(missing_ok=True)
            self._opened.close()

    def write(self, lines: str) -> None:
        """Append lines, each with its end; raises ConfigurationError if they cannot be written."""
        try:
            write_all(self._opened, (self._origin if self._is_empty else b"") + lines.encode())
        except OSError as error:
            raise unwritable(self.file, "--output", error) from error
        self._is_empty = False

    def finish(self) -> None:
        """Rename the finished shard; raises ConfigurationError if it cannot be written."""
        if self._is_empty:
            self.write("")
        try:
            os.fsync(self._opened.fileno())
            os.replace(self.file, self._path)
        except OSError as error:
            raise unwritable(self.file, "--output", error) from error
        self._opened.close()


def read_lines(file: Path) -> Iterator[str]:
    """Yield the lines of a shard after its origin, without their ends; raises ValueError for a cut-off line."""
    with open(file, encoding="utf-8", newline="\n") as lines:
        next(lines, None)
        for line in lines:
            if not line.endswith("\n"):
                raise ValueError("a line is cut off")
            yield line[:-1]


def read_origin(file: Path) -> dict[str, Any]:
    """Return the origin of a shard; raises ConfigurationError for another file."""
    with file.open("rb") as opened:
        first = opened.readline()
    try:
        return parse_json(first, dict[str, Any])
    except ValueError as error:
        remedy = "rename it or choose another {--output}"
        raise ConfigurationError(None, file, "was not written by this command", remedy) from error


def check_origin(file: Path, made_from: dict[str, Any]) -> None:
    """Raise ConfigurationError for a shard of another origin, and another file."""
    expected: dict[str, Any] = parse_json(encode_origin(made_from))
    origin = read_origin(file)
    other = [name for name in {**expected, **origin} if expected.get(name) != origin.get(name)]
    if other:
        named = ", ".join(f"other {name}" if name.endswith("s") else f"another {name}" for name in other)
        problem = f"was made from {named}"
        raise ConfigurationError(None, file, problem, "remove it or choose another {--output}")


def encode_origin(origin: dict[str, Any]) -> bytes:
    """Return an origin as JSON; what JSON does not know becomes text."""
    return msgspec.json.encode(origin, enc_hook=str)
