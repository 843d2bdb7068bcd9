"""Phrases that outputs must contain, as fairseq-interactive's `--constraints`."""

from collections.abc import Sequence

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_plugins.errors import ConfigurationError

Phrases = str | Sequence[str] | None
"""Phrases of the output of a sentence: one, several, or none."""


def constraint_ids(
    phrases: Sequence[Sequence[Sequence[str]]], sentences: int, target: Dictionary
) -> list[list[Tensor]]:
    """Return the token ids of the phrases of each sentence.

    Args:
        phrases: subwords of each phrase of each sentence.
        sentences: number of sentences.
        target: dictionary.

    Raises:
        ConfigurationError: if there are more or fewer entries than sentences, for an empty phrase, and for one that
            the model cannot write.
    """
    if len(phrases) != sentences:
        problem = f"are for {len(phrases)} sentences, and the text has {sentences}"
        raise ConfigurationError("--constraints", None, problem, "give phrases for each, or None")
    for number, of_sentence in enumerate(phrases):
        for phrase in of_sentence:
            if not phrase:
                raise ConfigurationError(f"constraints[{number}]", None, "a phrase is empty", "leave it out")
            for subword in phrase:
                if subword not in target:
                    problem = f"the target's dictionary lacks {subword!r}, so no output contains {' '.join(phrase)!r}"
                    raise ConfigurationError(f"constraints[{number}]", None, problem, "leave it out")
    return [[torch.tensor([target.index(subword) for subword in phrase]) for phrase in each] for each in phrases]
