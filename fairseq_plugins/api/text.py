"""Raw text, subwords and token ids of a model."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_plugins.commands.session import Session


class TextCoder:
    """Cuts raw text into a model's subwords, looks them up, and joins them again.

    Args:
        session: the model.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def tokenize(self, text: str) -> list[str]:
        """Cut raw text into subwords of the source."""
        if not isinstance(text, str):
            raise TypeError(f"text is {type(text).__name__}, not str: {text!r}")
        tokenizer, subwords = self._session.text_tools
        line = text.strip()
        line = tokenizer.encode(line) if tokenizer is not None else line
        line = subwords.encode(line) if subwords is not None else line
        return str(line).split()

    def source(self, tokens: Sequence[str]) -> Tensor:
        """Return the ids [S] of subwords of the source and of EOS."""
        if isinstance(tokens, str):
            raise TypeError(f"a sentence is one string, not a sequence of subwords: {tokens!r}; use translate")
        dictionary = self._session.task.source_dictionary
        return torch.tensor([*(dictionary.index(token) for token in tokens), dictionary.eos()])

    def target(self, tokens: Sequence[str]) -> list[int]:
        """Return the ids of subwords of the target."""
        index = self._session.task.target_dictionary.index
        return [index(token) for token in tokens]

    def symbols(self, ids: Sequence[int]) -> list[str]:
        """Return the subwords of the target that have these ids and are text."""
        dictionary = self._session.task.target_dictionary
        return [dictionary[index] for index in ids if index not in self._session.stripped]

    def join(self, ids: Sequence[int]) -> str:
        """Return raw text of the target."""
        return self._session.text(ids)
