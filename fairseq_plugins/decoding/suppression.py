"""Suppressed tokens, as in Hugging Face's `generate`: `--suppress-tokens`, `--begin-suppress-tokens`."""

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_plugins.errors import ConfigurationError, flag


class SuppressedTokens(NamedTuple):
    """Ids in ascending order.

    Attributes:
        everywhere: tokens that are never chosen.
        at_beginning: tokens that are not the first one of an output, after a prefix.
    """

    everywhere: tuple[int, ...] = ()
    at_beginning: tuple[int, ...] = ()

    def set_in(self, generator: Any) -> None:
        """Set them in a generator of ours, or fairseq's, which has nothing for the beginning."""
        generator.token_indices_to_suppress = torch.tensor(self.everywhere) if self.everywhere else None
        generator.begin_suppressed = self.at_beginning


def suppressed_tokens(options: dict[str, Any], target: Dictionary) -> SuppressedTokens:
    """Return the tokens of the options `suppress_tokens` and `begin_suppress_tokens`.

    Each is a list of tokens, or a string with spaces between; None for none. Raises ConfigurationError for a token that
    the target's dictionary lacks.
    """
    return SuppressedTokens(
        *(_ids(options[name], target, name) for name in ("suppress_tokens", "begin_suppress_tokens"))
    )


def check_end(suppressed: Collection[int], eos: int) -> None:
    """Raise ConfigurationError if fairseq's own search could end no hypothesis, where it fails an assertion."""
    if eos in suppressed:
        problem = "ends sentences, without which fairseq's own search fails"
        raise ConfigurationError("--suppress-tokens", "</s>", problem, "use {--decoder fast-beam}")


def _ids(tokens: str | Sequence[str] | None, target: Dictionary, name: str) -> tuple[int, ...]:
    tokens = tokens.split() if isinstance(tokens, str) else tokens or ()
    for token in tokens:
        if token not in target:
            problem = "is not in the target's dictionary"
            raise ConfigurationError(flag(name), token, problem, "give tokens of dict.LANGUAGE.txt")
    return tuple(sorted({target.index(token) for token in tokens}))


@lru_cache(maxsize=64)
def id_tensor(ids: tuple[int, ...], device: torch.device) -> Tensor:
    """Return ids as a tensor, which CUDA graphs may read: the same one for each call."""
    with torch.inference_mode(False):
        return torch.tensor(ids, device=device)
