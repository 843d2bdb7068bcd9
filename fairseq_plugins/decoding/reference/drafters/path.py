"""Choose the tokens of a draft from the scores of a block.

A drafter scores the most frequent training targets only (FR-Spec, Zhao et al. 2025, arXiv 2502.14856).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fairseq_plugins.decoding.reference.drafters.masked_decoder import DraftOptions, MakeDraft
from fairseq_plugins.decoding.reference.state import Draft
from fairseq_plugins.models.block_nat import BlockNatDecoder


def draft_maker(
    decoder: BlockNatDecoder,
    project: Callable[[Tensor], Tensor],
    options: DraftOptions,
    vocabulary: Tensor | None,
) -> MakeDraft:
    """Return a function that makes a draft from a block's hidden states [B, K, D] and the last tokens [B, 1].

    With transition scores the decoder chooses tokens one after the other, else independently. `project` computes scores
    [B, K, N] of the tokens `vocabulary` [N], None for all. With sampling, the verifier's noise is added to scores.
    """
    transition = decoder.transition
    size = decoder.embed_tokens.num_embeddings
    sampling = options.sampling

    def noise(at: tuple[Tensor, Tensor] | None) -> Tensor | None:
        return None if sampling is None or at is None else sampling.noise(*at, size, vocabulary)

    def choose(scores: Tensor, added: Tensor | None) -> Tensor:
        """Return the best tokens [...] by scores [..., N] and noise [..., N]."""
        if sampling is None or added is None:
            return scores.argmax(-1)
        scores = scores / sampling.temperature
        return sampling.choose(added, sampling.normaliser(scores))(scores)

    if transition is None:

        def choose_independently(hidden: Tensor, last: Tensor, noise_at: tuple[Tensor, Tensor] | None = None) -> Draft:
            scores = project(hidden)
            best = choose(scores, noise(noise_at))
            survival = log_probs = None
            if options.with_survival:
                chosen = scores.gather(2, best[:, :, None]).squeeze(2)
                # Half precision is too coarse for the sum over a vocabulary.
                survival = (chosen - scores.float().logsumexp(2)).cumsum(1).exp()
            if options.keep_log_probs:
                log_probs = scatter_scores(scores, vocabulary, size).float().log_softmax(-1)
            tokens = best if vocabulary is None else vocabulary[best]
            return Draft(tokens, log_probs=log_probs, survival=survival)

        return choose_independently

    def choose_path(hidden: Tensor, last: Tensor, noise_at: tuple[Tensor, Tensor] | None = None) -> Draft:
        scores, added = project(hidden), noise(noise_at)
        best = None if added is None else lambda total, position: choose(total, added[:, position])
        tokens, conditional = transition.choose(scores, hidden, last[:, 0], options.with_survival, vocabulary, best)
        draft = Draft(tokens, survival=None if conditional is None else conditional.cumsum(1).exp())
        if options.keep_log_probs:
            factors = transition.factors(hidden, torch.cat([last, tokens[:, :-1]], dim=1))
            scores = scatter_scores(scores, vocabulary, size) + factors @ transition.after.weight.t()
            draft.log_probs = scores.float().log_softmax(-1)
        return draft

    return choose_path


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
