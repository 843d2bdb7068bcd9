"""Which tokens a drafter scores: those it was often trained to say (FR-Spec, Zhao et al. 2025, arXiv 2502.14856)."""

import torch
from torch import Tensor

# To never draft one token in a thousand costs next to nothing, and half of a joint dictionary is the other language.
DEFAULT_SHARE = 0.999


def frequent_tokens(counts: Tensor, share: float) -> Tensor:
    """The most frequent tokens that make up a share of all, as few as do.

    Args:
        counts: [V] how often each token occurred, at least one more than never.
        share: above 0, to 1.

    Returns:
        their ids [N], ascending.
    """
    sorted_counts, ids = counts.double().sort(descending=True, stable=True)
    reached = sorted_counts.cumsum(0) / sorted_counts.sum()
    # Rounding must not add tokens that never occurred.
    enough = int((reached < share - 1e-12).sum()) + 1
    return ids[:enough].sort().values


def spread(scores: Tensor, vocabulary: Tensor | None, size: int) -> Tensor:
    """Scores [..., V] of all tokens from those [..., N] of `vocabulary`; the others get the lowest number there is."""
    if vocabulary is None:
        return scores
    lowest = scores.new_full((*scores.shape[:-1], size), torch.finfo(scores.dtype).min)
    return lowest.index_copy_(-1, vocabulary, scores)


def draft_vocabulary(counts: Tensor, share: float | None) -> Tensor | None:
    """Ids [N] of the tokens to score; None for all: with a share of 1, and for a drafter that has not counted.

    Args:
        counts: [V] of `BlockNatDecoder.target_counts`.
        share: `--draft-vocabulary`, None for the default.
    """
    share = DEFAULT_SHARE if share is None else share
    return None if share == 1 or not counts.any() else frequent_tokens(counts, share)
