"""Limit a drafter's vocabulary to the most frequent training targets (FR-Spec, Zhao et al. 2025, arXiv 2502.14856)."""

import torch
from torch import Tensor

# Leaving out 0.1 % of the targets hardly lowers acceptance; half of a joint dictionary is the other language.
DEFAULT_SHARE = 0.999


def scatter_scores(scores: Tensor, vocabulary: Tensor | None, size: int) -> Tensor:
    """Scatter scores [..., N] of `vocabulary` into [..., V]; all other tokens get the type's lowest number."""
    if vocabulary is None:
        return scores
    lowest = scores.new_full((*scores.shape[:-1], size), torch.finfo(scores.dtype).min)
    return lowest.index_copy_(-1, vocabulary, scores)


def draft_vocabulary(counts: Tensor, share: float | None) -> Tensor | None:
    """Return ids [N], ascending, of the most frequent tokens that make up a share of all occurrences `counts` [V].

    A share of None is the default. All tokens are scored, which is None, with a share of 1 or without counts.
    """
    share = DEFAULT_SHARE if share is None else share
    if share == 1 or not counts.any():
        return None
    sorted_counts, ids = counts.double().sort(descending=True, stable=True)
    reached = sorted_counts.cumsum(0) / sorted_counts.sum()
    # Rounding must not add tokens that never occurred.
    size = int((reached < share - 1e-12).sum()) + 1
    return ids[:size].sort().values
