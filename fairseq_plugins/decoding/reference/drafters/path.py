"""Choose the tokens of a draft from the scores of a block.

A drafter scores the most frequent training targets only (FR-Spec, Zhao et al. 2025, arXiv 2502.14856).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_plugins.decoding.reference.sampling import Sampling
from fairseq_plugins.decoding.reference.state import Draft
from fairseq_plugins.models.block_nat import BlockNatDecoder


@dataclass(frozen=True)
class DraftOptions:
    """Options of both kinds of trained drafters."""

    keep_log_probs: bool = False  # fill `Draft.log_probs`
    with_survival: bool = False  # fill `Draft.survival`
    vocabulary: Tensor | None = None  # ids [N] of the tokens to score, None for all
    sampling: Sampling | None = None  # of the verifier, whose noise the drafter's scores share


def draft_of(
    decoder: BlockNatDecoder,
    scores: Tensor,
    hidden: Tensor,
    last: Tensor,
    options: DraftOptions,
    noise_at: tuple[Tensor, Tensor] | None = None,
) -> Draft:
    """Choose the tokens of a draft: with transition scores one after the other, else independently.

    Args:
        decoder: of the drafter.
        scores: [B, K, N], of the tokens of `options.vocabulary` in a block.
        hidden: [B, K, D], the block's states that gave the scores.
        last: [B, 1], the token before the block.
        options: contents of the draft.
        noise_at: keys [B, 4] and positions [B, K] of the verifier's noise, which sampling adds.
    """
    transition, vocabulary, sampling = decoder.transition, options.vocabulary, options.sampling
    size = decoder.embed_tokens.num_embeddings
    noise = None if sampling is None or noise_at is None else sampling.noise(*noise_at, size, vocabulary)

    def best(scores: Tensor, noise: Tensor | None) -> Tensor:
        """Return the best tokens [...] by scores [..., N] and noise [..., N]."""
        if sampling is None or noise is None:
            return scores.argmax(-1)
        scores = scores / sampling.temperature
        return sampling.choose(noise, sampling.normaliser(scores))(scores)

    conditional = None
    if transition is None:
        chosen = best(scores, noise)
        tokens = chosen if vocabulary is None else vocabulary[chosen]
        if options.with_survival:
            # Half precision is too coarse for the sum over a vocabulary.
            conditional = scores.gather(2, chosen[:, :, None]).squeeze(2) - scores.float().logsumexp(2)
    else:
        best_at = None if noise is None else lambda total, position: best(total, noise[:, position])
        tokens, conditional = transition.choose(scores, hidden, last[:, 0], options.with_survival, vocabulary, best_at)
    draft = Draft(tokens, survival=None if conditional is None else conditional.cumsum(1).exp())
    if options.keep_log_probs:
        scores = scatter_scores(scores, vocabulary, size)
        if transition is not None:
            factors = transition.factors(hidden, torch.cat([last, tokens[:, :-1]], dim=1))
            scores = scores + factors @ transition.after.weight.t()
        draft.log_probs = scores.float().log_softmax(-1)
    return draft


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
    size = int((reached < share).sum()) + 1
    return ids[:size].sort().values
