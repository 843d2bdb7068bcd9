"""Sentences to decode as token ids: the source, with drafts and constraints that a call gives for it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fairseq.data import Dictionary
from torch import Tensor

from fairseq_plugins.api.inputs import whole_texts_of
from fairseq_plugins.errors import ConfigurationError

TargetTexts = str | Sequence[str] | None
"""Drafts of a sentence, or phrases that its output contains: one, several, or none."""
Subwords = Sequence[Sequence[Sequence[str]]]
"""Subwords of each target text of each sentence."""


@dataclass(frozen=True)
class Input:
    """A sentence to decode.

    Attributes:
        source: token ids [S] with EOS.
        drafts: target ids of its drafts; None if the call has none.
        constraints: target ids of the phrases that its output contains; None if the call has none.
        number: by which samples differ.
    """

    source: Tensor
    drafts: list[list[int]] | None = None
    constraints: list[list[int]] | None = None
    number: int = 0

    @property
    def is_blank(self) -> bool:
        """Whether it is EOS alone, for which a model hallucinates a sentence."""
        return len(self.source) == 1


def cut_texts(given: Any, argument: str, cut: Callable[[str], list[str]]) -> list[list[list[str]]]:
    """Return the target texts of several sentences, given as for `Model.translate`, as subwords.

    Raises ConfigurationError for a single string, which cannot belong to several sentences, or half of a character, and
    TypeError for anything but strings.
    """
    if isinstance(given, str):
        problem = "are one string, and the text is a list"
        raise ConfigurationError(argument, None, problem, "give a list, with None for a sentence without")
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise TypeError(f"{argument}: is {type(given).__name__}; give a string, several, or None for each sentence")
    texts = [[] if each is None else whole_texts_of(each, f"{argument}[{n}]") for n, each in enumerate(given)]
    return [[cut(text) for text in of_sentence] for of_sentence in texts]


def inputs_of(
    sources: Sequence[Tensor | None],
    drafts: Subwords | None,
    constraints: Subwords | None,
    numbers: Sequence[int] | None,
    target: Dictionary,
) -> list[Input]:
    """Return the sentences of a call.

    Args:
        sources: token ids [S] of each, with EOS; None for one that is left out.
        drafts, constraints: of each, also of those that are left out; None for none.
        numbers: of each, by which samples differ; None for 0, 1, 2 ...
        target: dictionary.

    Raises ConfigurationError if there are more or fewer drafts or constraints than sentences, and for a phrase that the
    model cannot write.
    """
    for option, given in (("--drafts", drafts), ("--constraints", constraints)):
        if given is not None and len(given) != len(sources):
            problem = f"are for {len(given)} sentences, and the text has {len(sources)}"
            raise ConfigurationError(option, None, problem, "give those of each sentence, or None")

    def ids(texts: Subwords | None, place: int) -> list[list[int]] | None:
        return None if texts is None else [[target.index(subword) for subword in text] for text in texts[place]]

    inputs = []
    for place, source in enumerate(sources):
        if source is not None:
            number = place if numbers is None else numbers[place]
            inputs.append(Input(source, ids(drafts, place), ids(constraints, place), number))
            for phrase in [] if constraints is None else constraints[place]:
                _check_phrase(phrase, f"constraints[{place}]", inputs[-1].is_blank, target)
    return inputs


def _check_phrase(phrase: Sequence[str], name: str, is_blank: bool, target: Dictionary) -> None:
    """Raise ConfigurationError for a phrase that an output cannot contain."""
    if is_blank:
        raise ConfigurationError(name, None, "the text is blank, so its translation is", "give None")
    if not phrase:
        raise ConfigurationError(name, None, "a phrase is empty", "leave it out")
    for subword in phrase:
        if subword not in target:
            problem = f"the target's dictionary lacks {subword!r}, so no output contains {' '.join(phrase)!r}"
            raise ConfigurationError(name, None, problem, "leave it out")
