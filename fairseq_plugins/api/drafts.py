"""Check drafts that callers give, for `--decoder reuse`; cut drafts and constraints into subwords."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fairseq_plugins.api.inputs import whole_texts_of
from fairseq_plugins.errors import ConfigurationError

Drafts = str | Sequence[str] | None
"""Drafts of a sentence: one, several, or none."""


def cut_texts(given: Any, argument: str, cut: Callable[[str], list[str]]) -> list[list[list[str]]]:
    """Return the target texts of each sentence, drafts or constraints, as subwords.

    Args:
        given: those of several sentences, as for `Model.translate`.
        argument: its name.
        cut: splits target text into subwords.

    Raises:
        ConfigurationError: for a single string, which cannot belong to several sentences, or half of a character.
        TypeError: for anything but strings.
    """
    if isinstance(given, str):
        problem = "are one string, and the text is a list"
        raise ConfigurationError(argument, None, problem, "give a list, with None for a sentence without")
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise TypeError(f"{argument}: is {type(given).__name__}; give a string, several, or None for each sentence")
    texts = [[] if each is None else whole_texts_of(each, f"{argument}[{n}]") for n, each in enumerate(given)]
    return [[cut(text) for text in of_sentence] for of_sentence in texts]


def check_drafts(drafts: Sequence[Any], sentences: int, decoder: str) -> None:
    """Raise ConfigurationError if the decoder takes no drafts, or if there are more or fewer than sentences."""
    if decoder != "reuse":
        raise ConfigurationError("--drafts", None, f"are not for decoder {decoder}", "load with {--decoder reuse}")
    if len(drafts) != sentences:
        problem = f"are for {len(drafts)} sentences, and the text has {sentences}"
        raise ConfigurationError("--drafts", None, problem, "give one for each, or None")
