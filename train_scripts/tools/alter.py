"""Sentences a little unlike those that a drafter was trained for: how many of its tokens are still accepted?"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from train_scripts.tools.text import read_lines, refuse, write_lines


def cut(sentences: Sequence[str]) -> Iterator[str]:
    """The first half of every sentence; of an odd number of words, the one in the middle too."""
    for sentence in sentences:
        words = sentence.split()
        yield " ".join(words[: (len(words) + 1) // 2])


def lower(sentences: Sequence[str]) -> Iterator[str]:
    """Every sentence in lower case."""
    return map(str.lower, sentences)


def joined(sentences: Sequence[str]) -> Iterator[str]:
    """Every two sentences as one; of an odd number, the last is left out."""
    return map(" ".join, zip(sentences[::2], sentences[1::2], strict=False))


WAYS: dict[str, Callable[[Sequence[str]], Iterator[str]]] = {"cut": cut, "lower": lower, "joined": joined}


def write(source: Path, target: Path, *, how: Literal["cut", "lower", "joined"]) -> None:
    """Write the sentences of a file, one a line, a little unlike what models were trained on.

    Args:
        source: the text.
        target: where the altered sentences go.
        how: cut (the first half of every sentence), lower (in lower case) or joined (every two sentences as one).

    Raises:
        ConfigurationError: where there are none.
    """
    sentences = list(WAYS[how](list(read_lines(source))))
    if not sentences:
        refuse(f"{source}: has too few sentences to be {how}; give a text, one sentence a line")
    write_lines(target, sentences)
