"""From the scores of a block to a draft: what both kinds of trained drafters do last."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from fairseq_plugins.decoding.drafters.masked_decoder import DraftOptions
from fairseq_plugins.decoding.drafters.vocabulary import spread
from fairseq_plugins.decoding.engine.engine import Engine
from fairseq_plugins.decoding.engine.native.path import NativePath
from fairseq_plugins.decoding.state import DecodingState, Draft
from fairseq_plugins.models.block_nat import BlockNatDecoder
from fairseq_plugins.models.transition import TransitionScores


def draft_maker(
    decoder: BlockNatDecoder,
    project: Callable[[Tensor], Tensor],
    engine: Engine,
    options: DraftOptions,
    vocabulary: Tensor | None,
) -> Callable[[Tensor, DecodingState], Draft]:
    """What makes a draft of a block's hidden states [B, K, D] and the state, with the decoder's weights of now.

    Args:
        decoder: the drafter's; with transition scores the tokens are chosen one after the other, else each by itself.
        project: scores [B, K, N] of hidden states.
        engine: what it runs on.
        options: what a draft is to bring along.
        vocabulary: ids [N] of the tokens that are scored, None for all.
    """
    transition = decoder.transition
    size = decoder.embed_tokens.num_embeddings
    if transition is None:

        def choose_each(hidden: Tensor, state: DecodingState) -> Draft:
            scores = project(hidden)
            best = engine.argmax(scores)
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
    choose = path_chooser(transition, engine, vocabulary)

    def follow(hidden: Tensor, state: DecodingState) -> Draft:
        scores, last = project(hidden), state.last_tokens()
        tokens, conditional = choose(scores, hidden, last[:, 0], options.with_survival)
        draft = Draft(tokens, survival=None if conditional is None else conditional.cumsum(1).exp())
        if options.keep_log_probs:
            along = transition.along(hidden, torch.cat([last, tokens[:, :-1]], dim=1))
            scores = spread(scores, vocabulary, size) + along @ transition.after.weight.t()
            draft.log_probs = scores.float().log_softmax(-1)
        return draft

    return follow


def path_chooser(
    transition: TransitionScores, engine: Engine, vocabulary: Tensor | None = None
) -> Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor | None]]:
    """`TransitionScores.choose` among these tokens, with the weights of now, on the kernels where they can run it."""
    size = transition.before.num_embeddings
    return compiled_path(transition, engine, vocabulary, size) or partial(transition.choose, vocabulary=vocabulary)


def compiled_path(
    transition: TransitionScores | None, engine: Engine, vocabulary: Tensor | None, size: int
) -> NativePath | None:
    """How the kernels choose a draft among the tokens of `vocabulary`, or all `size` ones; None where they cannot."""
    if engine.kernels is None:
        return None
    ids = torch.arange(size) if vocabulary is None else vocabulary
    return engine.kernels.path(transition, ids, engine.precision)
