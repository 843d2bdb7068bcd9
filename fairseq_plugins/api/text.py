"""Raw text, subwords and token ids of a model."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_plugins.checkpoint.session import TaskSession
from fairseq_plugins.data.sentences import is_blank


class TextCoder:
    """Converts between raw text, a model's subwords and their token ids.

    Args:
        session: the model.
    """

    def __init__(self, session: TaskSession) -> None:
        self._session = session

    def tokenize(self, text: str) -> list[str]:
        """Cut raw text into subwords of the source; none if it shows nothing."""
        if is_blank(text):
            return []
        tokenizer, subwords = self._session.text_tools
        line = text.strip()
        line = tokenizer.encode(line) if tokenizer is not None else line
        line = subwords.encode(line) if subwords is not None else line
        return str(line).split()

    def source(self, tokens: Sequence[str]) -> Tensor:
        """Return the ids [S] of source subwords, followed by EOS."""
        dictionary = self._session.task.source_dictionary
        return torch.tensor([*(dictionary.index(token) for token in tokens), dictionary.eos()])

    def target(self, tokens: Sequence[str]) -> list[int]:
        """Return the ids of target subwords, without EOS."""
        index = self._session.task.target_dictionary.index
        return [index(token) for token in tokens]

    def symbols(self, ids: Sequence[int]) -> list[str]:
        """Return the target subwords of these ids, without EOS and language tokens."""
        dictionary = self._session.task.target_dictionary
        return [dictionary[index] for index in ids if index not in self._session.stripped]

    def join(self, ids: Sequence[int]) -> str:
        """Return the raw text of target token ids."""
        return self._session.text(ids)
