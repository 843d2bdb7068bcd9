"""The teacher's translations in shards, of every n-th sentence of a subset: lines `number<TAB>score<TAB>subwords`."""

from dataclasses import dataclass
from pathlib import Path

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.shards import Shards, read_lines

TOO_LONG = "too-long"
"""Score of a sentence that exceeds the teacher's positions."""


@dataclass(frozen=True)
class TeacherSentence:
    """One translation: number in the subset, score as text, subwords separated by spaces."""

    number: int
    score: str
    text: str

    def __str__(self) -> str:
        """Return the line of a shard."""
        return f"{self.number}\t{self.score}\t{self.text}\n"


def shards_of(folder: Path, subset: str) -> Shards:
    """Return the shards of a subset."""
    return Shards(folder, f"{subset}.", ".tsv")


def read_sentences(file: Path) -> list[TeacherSentence]:
    """Return the sentences of a shard, in the order of decoding; raises ConfigurationError for other content."""
    try:
        lines = [line.split("\t", 2) for line in read_lines(file)]
        return [TeacherSentence(int(number), score, text) for number, score, text in lines]
    except ValueError as error:
        remedy = "remove it and run `spec-dec-distill decode` again: other finished shards are kept"
        raise ConfigurationError(None, file, "corrupt shard (its content is not what was written)", remedy) from error
