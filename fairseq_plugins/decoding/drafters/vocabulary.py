"""Limit a drafter's vocabulary to the most frequent training targets (FR-Spec, Zhao et al. 2025, arXiv 2502.14856)."""

import torch
from torch import Tensor

# Leaving out 0.1 % of the targets hardly lowers acceptance; half of a joint dictionary is the other language.
DEFAULT_SHARE = 0.999


def frequent_tokens(counts: Tensor, share: float) -> Tensor:
    """Return the smallest set of most frequent tokens that makes up a share of all occurrences.

    Args:
        counts: [V], occurrences of each token, not all 0.
        share: in (0, 1].

    Returns:
        ids [N], ascending.
    """
    sorted_counts, ids = counts.double().sort(descending=True, stable=True)
    reached = sorted_counts.cumsum(0) / sorted_counts.sum()
    # Rounding must not add tokens that never occurred.
    size = int((reached < share - 1e-12).sum()) + 1
    return ids[:size].sort().values


def scatter_scores(scores: Tensor, vocabulary: Tensor | None, size: int) -> Tensor:
    """Scatter scores [..., N] of `vocabulary` into [..., V]; all other tokens get the type's lowest number."""
    if vocabulary is None:
        return scores
    lowest = scores.new_full((*scores.shape[:-1], size), torch.finfo(scores.dtype).min)
    return lowest.index_copy_(-1, vocabulary, scores)


def draft_vocabulary(counts: Tensor, share: float | None) -> Tensor | None:
    """Return ids [N] of the tokens to score; None for all: with a share of 1, or without counts.

    Args:
        counts: [V], `BlockNatDecoder.target_counts`.
        share: `--draft-vocabulary`, None for the default.
    """
    share = DEFAULT_SHARE if share is None else share
    return None if share == 1 or not counts.any() else frequent_tokens(counts, share)
