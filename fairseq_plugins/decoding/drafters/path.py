"""From the scores of a block to a draft: what both kinds of trained drafters do last."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from fairseq_plugins.decoding.drafters.vocabulary import spread
from fairseq_plugins.decoding.engine.engine import Engine
from fairseq_plugins.decoding.state import DecodingState, Draft
from fairseq_plugins.models.block_nat import BlockNatDecoder
from fairseq_plugins.models.transition import TransitionScores


def draft_maker(
    decoder: BlockNatDecoder, engine: Engine, vocabulary: Tensor | None, keep_log_probs: bool
) -> Callable[[Tensor, DecodingState], Draft]:
    """What makes a draft of scores [B, K, N] and the state, with the decoder's weights of now.

    Args:
        decoder: the drafter's; with transition scores the tokens are chosen one after the other, else each by itself.
        engine: what it runs on.
        vocabulary: ids [N] of the tokens that are scored, None for all.
        keep_log_probs: hand log-probabilities on in `Draft.log_probs`, transitions along the path included.
    """
    transition = decoder.transition
    size = decoder.embed_tokens.num_embeddings
    if transition is None:

        def choose_each(scores: Tensor, state: DecodingState) -> Draft:
            tokens = engine.argmax(scores)
            if vocabulary is not None:
                tokens = vocabulary[tokens]
            log_probs = spread(scores, vocabulary, size).float().log_softmax(-1) if keep_log_probs else None
            return Draft(tokens, log_probs=log_probs)

        return choose_each
    choose = path_chooser(transition, engine, vocabulary)

    def follow(scores: Tensor, state: DecodingState) -> Draft:
        last = state.last_tokens()
        tokens = choose(scores, last[:, 0])
        if not keep_log_probs:
            return Draft(tokens)
        along = transition(spread(scores, vocabulary, size), torch.cat([last, tokens[:, :-1]], dim=1))
        return Draft(tokens, log_probs=along.float().log_softmax(-1))

    return follow


def path_chooser(
    transition: TransitionScores, engine: Engine, vocabulary: Tensor | None = None
) -> Callable[[Tensor, Tensor], Tensor]:
    """`TransitionScores.choose` among these tokens, with the weights of now, on the kernels where they can run it."""
    compiled = None
    if engine.kernels is not None:
        after = transition.after.weight if vocabulary is None else transition.after.weight[vocabulary]
        compiled = engine.kernels.path_chooser(transition.before.weight, after, vocabulary)
    return compiled or partial(transition.choose, vocabulary=vocabulary)
