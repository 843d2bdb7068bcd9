"""Test drafters without a model: drafts after an output, and runs of the loop with a scripted verifier."""

from collections.abc import Callable
from typing import Any

import torch

from fairseq_plugins.decoding.method import Method
from fairseq_plugins.decoding.reference.drafters import Drafter
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.search import GreedySearch
from fairseq_plugins.decoding.reference.state import DecodingState, Draft, Verification
from fairseq_plugins.decoding.reference.verifier import verification
from tests.support import SpecDecTask, decode, ids, make_sample, make_state, make_task, make_transformer

# (position, whether all before it is right) -> the verifier token
Wish = Callable[[int, bool], int]


def drafts_of(drafter: Drafter, source: list[int], outputs: list[list[int]]) -> list[list[int]]:
    """Return the drafts after each of these outputs of one sentence."""
    drafter.start({"net_input": {"src_tokens": torch.tensor([source])}}, None)
    result = []
    for output in outputs:
        tokens = torch.full((1, 60), 1)
        tokens[0, : len(output) + 1] = torch.tensor([2, *output])
        draft = drafter.draft(make_state(tokens, [len(output)], 50))
        result.append(draft.tokens[0, : int(draft.counts()[0])].tolist())
    return result


class ScriptedVerifier:
    """Predicts the token of a function at every position; its state is the number of the position."""

    def __init__(self, output: list[int], size: int, wish: Wish | None = None) -> None:
        self.engine = Engine()
        self.output = output
        self.size = size
        self.wish = wish or (lambda position, right: output[min(position, len(output) - 1)])

    def start(self, sample: dict[str, Any]) -> None:
        pass

    def select_rows(self, rows: torch.Tensor) -> None:
        pass

    def scores(self, begin: int, drafted: list[int]) -> torch.Tensor:
        """Return scores [T, V] after `begin` tokens and after each drafted one."""
        scores = torch.full((len(drafted) + 1, self.size), -20.0)
        for column in range(len(scores)):
            right = drafted[:column] == self.output[begin : begin + column]
            scores[column, self.wish(begin + column, right)] = 0.0
        return scores

    def verify(self, state: DecodingState, draft: Draft) -> Verification:
        begin = state.host_lengths[0]
        scores = self.scores(begin, draft.tokens[0].tolist())[None]
        positions = begin + torch.arange(scores.size(1), dtype=torch.float)
        return verification(state, scores.log_softmax(-1), positions[None, :, None])


def blocks_of(
    drafter: Drafter, source: list[int], output: list[int], wish: Wish | None = None, task: SpecDecTask | None = None
) -> list[int]:
    """Check the output with a scripted verifier; return the tokens emitted in every iteration."""
    task = task or make_task(100)
    sample = make_sample(task, [len(source) - 1])
    sample["net_input"]["src_tokens"] = torch.tensor([source])
    method = Method(ScriptedVerifier(output, len(task.target_dictionary), wish), drafter, GreedySearch())
    hypotheses, (stats,) = decode([make_transformer(task, ending=False)], task, sample, method, max_len_b=60)
    assert ids(hypotheses)[0] == output
    return stats.emitted
