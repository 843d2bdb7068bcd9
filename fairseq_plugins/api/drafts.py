"""Check drafts that callers give, for `--decoder reuse`, and cut them into subwords."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fairseq_plugins.api.inputs import whole_texts_of
from fairseq_plugins.errors import ConfigurationError

Drafts = str | Sequence[str] | None
"""Drafts of a sentence: one, several, or none."""


def cut_drafts(drafts: Any, cut: Callable[[str], list[str]]) -> list[list[list[str]]]:
    """Return the drafts of each sentence as subwords.

    Args:
        drafts: drafts of several sentences, as for `Model.translate`.
        cut: splits target text into subwords.

    Raises:
        ConfigurationError: for a single string, which cannot belong to several sentences, or half of a character.
        TypeError: for anything but strings.
    """
    if isinstance(drafts, str):
        raise ConfigurationError("drafts: are one string, and the text is a list; give a list, with None for no draft")
    if isinstance(drafts, bytes) or not isinstance(drafts, Iterable):
        raise TypeError(f"drafts: is {type(drafts).__name__}; give a string, several, or None for each sentence")
    by_sentence = [[] if given is None else whole_texts_of(given, f"drafts[{n}]") for n, given in enumerate(drafts)]
    return [[cut(draft) for draft in given] for given in by_sentence]


def check_drafts(drafts: Sequence[Any], sentences: int, decoder: str) -> None:
    """Raise ConfigurationError if the decoder takes no drafts, or if there are more or fewer than sentences."""
    if decoder != "reuse":
        raise ConfigurationError(f'drafts: are not for decoder {decoder}; load with decoder="reuse"')
    if len(drafts) != sentences:
        raise ConfigurationError(
            f"drafts: are for {len(drafts)} sentences, and the text has {sentences}; give one for each, or None"
        )
