"""From the scores of a block to a draft: what both kinds of trained drafters do last."""

from collections.abc import Callable

import torch
from torch import Tensor

from fairseq_plugins.decoding.drafters.masked_decoder import DraftOptions
from fairseq_plugins.decoding.drafters.vocabulary import spread
from fairseq_plugins.decoding.state import DecodingState, Draft
from fairseq_plugins.models.block_nat import BlockNatDecoder


def draft_maker(
    decoder: BlockNatDecoder,
    project: Callable[[Tensor], Tensor],
    options: DraftOptions,
    vocabulary: Tensor | None,
) -> Callable[[Tensor, DecodingState], Draft]:
    """What makes a draft of a block's hidden states [B, K, D] and the state, with the decoder's weights of now.

    Args:
        decoder: the drafter's; with transition scores the tokens are chosen one after the other, else each by itself.
        project: scores [B, K, N] of hidden states.
        options: what a draft is to bring along.
        vocabulary: ids [N] of the tokens that are scored, None for all.
    """
    transition = decoder.transition
    size = decoder.embed_tokens.num_embeddings
    if transition is None:

        def choose_each(hidden: Tensor, state: DecodingState) -> Draft:
            scores = project(hidden)
            best = scores.argmax(-1)
            survival = log_probs = None
            if options.with_survival:
                chosen = scores.gather(2, best[:, :, None]).squeeze(2)
                # In half precision the sum of a vocabulary has no digits left for what is likely.
                survival = (chosen - scores.float().logsumexp(2)).cumsum(1).exp()
            if options.keep_log_probs:
                log_probs = spread(scores, vocabulary, size).float().log_softmax(-1)
            tokens = best if vocabulary is None else vocabulary[best]
            return Draft(tokens, log_probs=log_probs, survival=survival)

        return choose_each

    def follow(hidden: Tensor, state: DecodingState) -> Draft:
        scores, last = project(hidden), state.last_tokens()
        tokens, conditional = transition.choose(scores, hidden, last[:, 0], options.with_survival, vocabulary)
        draft = Draft(tokens, survival=None if conditional is None else conditional.cumsum(1).exp())
        if options.keep_log_probs:
            along = transition.along(hidden, torch.cat([last, tokens[:, :-1]], dim=1))
            scores = spread(scores, vocabulary, size) + along @ transition.after.weight.t()
            draft.log_probs = scores.float().log_softmax(-1)
        return draft

    return follow
