"""Test drafters without a model: drafts after an output, and runs with a scripted verifier."""

from typing import Any

import torch
import torch.nn.functional as F

from fairseq_plugins.decoding.reference.drafters import Drafter
from fairseq_plugins.decoding.reference.search import GreedySearch
from fairseq_plugins.decoding.reference.state import Verification
from tests.support import make_state

VOCABULARY = 50


def _start(drafter: Drafter, source: list[int]) -> None:
    drafter.start({"net_input": {"src_tokens": torch.tensor([source])}}, None)


def drafts_of(drafter: Drafter, source: list[int], outputs: list[list[int]]) -> list[list[int]]:
    """Return the drafts after each of these outputs of one sentence."""
    _start(drafter, source)
    result = []
    for output in outputs:
        tokens = torch.full((1, 60), 1)
        tokens[0, : len(output) + 1] = torch.tensor([2, *output])
        draft = drafter.draft(make_state(tokens, [len(output)], 50))
        result.append(draft.tokens[0, : int(draft.counts()[0])].tolist())
    return result


def blocks_of(drafter: Drafter, source: list[int], output: list[int]) -> list[int]:
    """Return the tokens emitted in every iteration with a verifier that always predicts `output`."""
    _start(drafter, source)
    tokens = torch.full((1, 80), 1)
    tokens[0, 0] = 2
    state, wanted, emitted = make_state(tokens, [0], 50), torch.tensor([[*output, *[2] * 60]]), []
    advance: Any = None
    while advance is None or not advance.finished[0]:
        draft = drafter.draft(state)
        done = state.host_lengths[0]
        best = wanted[:, done : done + draft.tokens.size(1) + 1]
        verification = Verification(F.one_hot(best, VOCABULARY).float().log_softmax(-1), best)
        advance = GreedySearch().advance(state, draft, verification)
        state.append(advance)
        drafter.observe(advance)
        emitted += advance.host_emitted
    assert state.tokens[0, 1 : state.host_lengths[0] + 1].tolist() == output
    return emitted
