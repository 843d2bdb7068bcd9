"""Drafts that callers bring, for `--decoder reuse`."""

from collections.abc import Callable, Sequence
from typing import Any

from fairseq_plugins.errors import ConfigurationError

Drafts = str | Sequence[str] | None
"""Drafts of a sentence: one, several, or none."""


def cut_drafts(drafts: Any, cut: Callable[[str], list[str]]) -> list[list[list[str]]]:
    """Return of every sentence its drafts, cut into subwords.

    Args:
        drafts: of several sentences, as for `Model.translate`.
        cut: cuts text of the target.

    Raises:
        ConfigurationError: for one string where there are several sentences.
    """
    if isinstance(drafts, str):
        raise ConfigurationError("drafts: are one string, and the text is a list; give a list, with None for no draft")
    each = ([] if some is None else [some] if isinstance(some, str) else some for some in drafts)
    return [[cut(draft) for draft in some] for some in each]


def check_drafts(drafts: Sequence[Any], sentences: int, decoder: str) -> None:
    """Refuse drafts of another number of sentences, or for a decoder that has its own.

    Raises:
        ConfigurationError: saying what to give.
    """
    if decoder != "reuse":
        raise ConfigurationError(f'drafts: are not for decoder {decoder}; load with decoder="reuse"')
    if len(drafts) != sentences:
        raise ConfigurationError(
            f"drafts: are for {len(drafts)} sentences, and the text has {sentences}; give one for each, or None"
        )
