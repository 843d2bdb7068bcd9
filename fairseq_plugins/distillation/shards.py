"""Read and write shards: files with the teacher's translations of every n-th sentence of a subset.

The first line is JSON with the origin of the translations. A line `number<TAB>score<TAB>subwords` for each sentence
follows, in the order of decoding, and a JSON line with the number of sentences and the hash of all lines before. The
name of an unfinished shard ends in `.partial`.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.process.output import counted
from fairseq_plugins.shared.files import hold, open_own, unwritable, write_all
from fairseq_plugins.shared.typed_values import load_json

TOO_LONG = "too-long"
"""Score of a sentence that exceeds the teacher's positions."""

_NAME = re.compile(r"(\d+)-of-(\d+)\.tsv(\.partial)?")
_SENTENCE = re.compile(rb"(\d+)\t([^\t\n]+)\t([^\n]*)\n")


@dataclass(frozen=True)
class TeacherSentence:
    """One translation: number in the subset, score as text, subwords separated by spaces."""

    number: int
    score: str
    text: str


def shard_path(folder: Path, subset: str, shard: int, shards: int) -> Path:
    """Return the name of a finished shard."""
    return folder / f"{subset}.{shard}-of-{shards}.tsv"


def shard_files(folder: Path, subset: str) -> dict[int, list[Path]]:
    """Return number of shards -> the files of a subset, partial ones included."""
    files: dict[int, list[Path]] = {}
    for file in sorted(folder.glob(f"{subset}.*")):
        match = _NAME.fullmatch(file.name.removeprefix(f"{subset}."))
        if match is not None:
            files.setdefault(int(match.group(2)), []).append(file)
    return files


def number_of_shards(folder: Path, subset: str) -> int | None:
    """Return the number of shards of a subset, None without any.

    Raises ConfigurationError if the folder has shards of different numbers.
    """
    by_count = shard_files(folder, subset)
    if len(by_count) > 1:
        names = ", ".join(files[0].name for files in by_count.values())
        problem = f"has shards of different divisions ({names})"
        raise ConfigurationError(None, folder, problem, "remove all but those of one")
    return next(iter(by_count), None)


def read_shard(file: Path) -> tuple[dict[str, Any], list[TeacherSentence]]:
    """Return origin and sentences of a finished shard; raises ConfigurationError if it is incomplete."""
    content = file.read_bytes()
    body, footer = content[: content.rfind(b"\n", 0, -1) + 1], content[content.rfind(b"\n", 0, -1) + 1 :]
    header, sentences, end = _parse(body)
    try:
        expected = load_json(footer)
    except ValueError:
        expected = None
    if header is None or end != len(body) or expected != _footer(len(sentences), hashlib.sha256(body)):
        remedy = "remove it and run `spec-dec-distill decode` again: other finished shards are kept"
        raise ConfigurationError(None, file, "corrupt shard (its content is not what was written)", remedy)
    return header, sentences


def _footer(count: int, total: Any) -> dict[str, Any]:
    return {"sentences": count, "sha256": total.hexdigest()}


def _parse(content: bytes) -> tuple[dict[str, Any] | None, list[TeacherSentence], int]:
    """Return the header (None if torn), the whole sentences after it, and the position where these end."""
    end = content.find(b"\n") + 1
    try:
        header = load_json(content[:end])
    except ValueError:
        header = None
    if not isinstance(header, dict):
        return None, [], 0
    sentences = []
    while (match := _SENTENCE.match(content, end)) is not None:
        number, score, text = (part.decode("utf-8") for part in match.groups())
        sentences.append(TeacherSentence(int(number), score, text))
        end = match.end()
    return header, sentences, end


class ShardWriter:
    """Write a shard, or resume an interrupted one; `done` has the numbers of its sentences.

    Raises HeldByAnother if another process writes it, and ConfigurationError if its origin differs from `made_from`
    (JSON values), or if it cannot be written.
    """

    def __init__(self, path: Path, made_from: dict[str, Any]) -> None:
        self._path, self._partial = path, path.with_name(path.name + ".partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_own(self._partial, "a+b", buffering=0)
        except OSError as error:
            raise unwritable(self._partial, "--output", error) from error
        hold(self._file, self._partial, path)
        self._file.seek(0)
        content = self._file.read()
        header, sentences, end = _parse(content)
        first = json.dumps(made_from, ensure_ascii=False, sort_keys=True).encode() + b"\n"
        if header is None and not first.startswith(content):
            remedy = "rename it or choose another {--output}"
            raise ConfigurationError(None, self._partial, "was not written by spec-dec-distill", remedy)
        if header is not None:
            check_origin(self._partial, header, made_from)
        # A kill can tear the last line.
        self._file.truncate(end)
        self._hash = hashlib.sha256(content[:end])
        self.done = {sentence.number for sentence in sentences}
        if header is None:
            self._write(first)

    def add(self, sentences: Iterable[TeacherSentence]) -> None:
        """Append sentences; raises ConfigurationError if they cannot be written."""
        new = list(sentences)
        lines = "".join(f"{sentence.number}\t{sentence.score}\t{sentence.text}\n" for sentence in new)
        self._write(lines.encode("utf-8"))
        self.done.update(sentence.number for sentence in new)

    def finish(self) -> None:
        """Write the footer and rename the shard."""
        self._write(json.dumps(_footer(len(self.done), self._hash)).encode() + b"\n")
        try:
            os.fsync(self._file.fileno())
            os.replace(self._partial, self._path)
        except OSError as error:
            raise unwritable(self._partial, "--output", error) from error
        self._file.close()

    def _write(self, content: bytes) -> None:
        try:
            write_all(self._file, content)
        except OSError as error:
            raise unwritable(self._partial, "--output", error) from error
        self._hash.update(content)


def check_origin(file: Path, header: dict[str, Any], made_from: dict[str, Any]) -> None:
    """Raise ConfigurationError for a shard of another origin."""
    other = [name for name in {**made_from, **header} if made_from.get(name) != header.get(name)]
    if other:
        problem = f"was made from other {', '.join(other)}"
        raise ConfigurationError(None, file, problem, "remove it or choose another {--output}")


def in_order(sentences: Sequence[TeacherSentence], count: int, folder: Path) -> list[TeacherSentence]:
    """Return the sentences by number.

    Raises ConfigurationError unless each of the numbers 0 to `count` - 1 occurs once.
    """
    ordered = sorted(sentences, key=lambda sentence: sentence.number)
    if [sentence.number for sentence in ordered] != list(range(count)):
        problem = f"has not one translation for each of the {counted(count, 'sentence')} of the data"
        raise ConfigurationError(None, folder, problem, "remove the shards and decode the same data again")
    return ordered
