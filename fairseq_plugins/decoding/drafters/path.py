"""From the scores of a block to a draft: what both kinds of trained drafters do last."""

from collections.abc import Callable

import torch
from torch import Tensor

from fairseq_plugins.decoding.drafters import DecodingState, Draft
from fairseq_plugins.models.block_nat import BlockNatDecoder


def draft_maker(decoder: BlockNatDecoder, keep_logits: bool) -> Callable[[Tensor, DecodingState], Draft]:
    """What makes a draft of scores [B, K, V] and the state, with the decoder's weights of now.

    Args:
        decoder: the drafter's; with transition scores the tokens are chosen one after the other, else each by itself.
        keep_logits: hand the scores on in `Draft.logits`, with those of the transitions along the path.
    """
    transition = decoder.transition
    if transition is None:
        return lambda logits, state: Draft(logits.argmax(-1), logits=logits if keep_logits else None)
    choose = transition.chooser()

    def follow(logits: Tensor, state: DecodingState) -> Draft:
        last = state.last_tokens()
        tokens = choose(logits, last[:, 0])
        if not keep_logits:
            return Draft(tokens)
        return Draft(tokens, logits=transition(logits, torch.cat([last, tokens[:, :-1]], dim=1)))

    return follow
