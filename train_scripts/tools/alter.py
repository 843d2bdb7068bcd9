"""Alter sentences, to measure how many drafted tokens are accepted on text unlike the drafter's training data."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from train_scripts.tools.text import read_lines, refuse, write_lines


def cut(sentences: Sequence[str]) -> Iterator[str]:
    """Yield the first half of each sentence, with the middle word if the number of words is odd."""
    for sentence in sentences:
        words = sentence.split()
        yield " ".join(words[: (len(words) + 1) // 2])


def lower(sentences: Sequence[str]) -> Iterator[str]:
    """Return the sentences in lower case."""
    return map(str.lower, sentences)


def joined(sentences: Sequence[str]) -> Iterator[str]:
    """Join every two sentences into one; drop the last one of an odd number."""
    return map(" ".join, zip(sentences[::2], sentences[1::2], strict=False))


WAYS: dict[str, Callable[[Sequence[str]], Iterator[str]]] = {"cut": cut, "lower": lower, "joined": joined}


def write(source: Path, target: Path, *, how: Literal["cut", "lower", "joined"]) -> None:
    """Write altered sentences of a file, one a line.

    Args:
        source: text, one sentence a line.
        target: file of the altered sentences.
        how: cut (the first half of every sentence), lower (in lower case) or joined (every two sentences as one).

    Raises:
        ConfigurationError: for a text without sentences.
    """
    sentences = list(WAYS[how](list(read_lines(source))))
    if not sentences:
        refuse(None, source, f"has too few sentences to be {how}", "give a text, one sentence a line")
    write_lines(target, sentences)
