"""From the scores of a block to a draft: what both kinds of trained drafters do last."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from fairseq_plugins.decoding import native
from fairseq_plugins.decoding.drafters import DecodingState, Draft
from fairseq_plugins.decoding.drafters.vocabulary import spread
from fairseq_plugins.models.block_nat import BlockNatDecoder
from fairseq_plugins.models.transition import CANDIDATES, TransitionScores


def draft_maker(
    decoder: BlockNatDecoder, vocabulary: Tensor | None, keep_logits: bool
) -> Callable[[Tensor, DecodingState], Draft]:
    """What makes a draft of scores [B, K, N] and the state, with the decoder's weights of now.

    Args:
        decoder: the drafter's; with transition scores the tokens are chosen one after the other, else each by itself.
        vocabulary: ids [N] of the tokens that are scored, None for all.
        keep_logits: hand the scores on in `Draft.logits`, with those of the transitions along the path.
    """
    transition = decoder.transition
    size = decoder.embed_tokens.num_embeddings
    if transition is None:

        def choose_each(scores: Tensor, state: DecodingState) -> Draft:
            tokens = native.argmax(scores)
            if vocabulary is not None:
                tokens = vocabulary[tokens]
            return Draft(tokens, logits=spread(scores, vocabulary, size) if keep_logits else None)

        return choose_each
    choose = chooser(transition, vocabulary)

    def follow(scores: Tensor, state: DecodingState) -> Draft:
        last = state.last_tokens()
        tokens = choose(scores, last[:, 0])
        if not keep_logits:
            return Draft(tokens)
        logits = spread(scores, vocabulary, size)
        return Draft(tokens, logits=transition(logits, torch.cat([last, tokens[:, :-1]], dim=1)))

    return follow


def chooser(transition: TransitionScores, vocabulary: Tensor | None = None) -> Callable[[Tensor, Tensor], Tensor]:
    """`transition.choose` among these tokens, with the weights of now, on the CPU kernels where they can run it."""
    after = transition.after.weight if vocabulary is None else transition.after.weight[vocabulary]
    compiled = native.path_chooser(transition.before.weight, after, vocabulary, CANDIDATES)
    return compiled or partial(transition.choose, vocabulary=vocabulary)
