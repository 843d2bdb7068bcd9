"""`--draft-vocabulary`: fewer tokens to draft, and the same output."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.checks import check_fit
from fairseq_plugins.decoding.reference.cached_decoder import CachedDecoder
from fairseq_plugins.decoding.reference.drafters.path import DEFAULT_SHARE, draft_vocabulary, scatter_scores
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.models.block_nat import BlockNat
from tests.errors import error_about
from tests.strategies import DETERMINISTIC
from tests.support import Options, make_all, make_drafter, make_state, make_task

VOCABULARY = 40


def counted(model: BlockNat, tokens: list[int]) -> BlockNat:
    """Set the counts of training targets of a drafter, the first token most frequent."""
    for number, token in enumerate(tokens):
        model.decoder.target_counts[token] = 2 ** (len(tokens) - number)
    return model


@settings(DETERMINISTIC)
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=12), share=st.floats(0.01, 1, exclude_max=True))
def test_smallest_vocabulary_of_a_share(counts: list[int], share: float) -> None:
    if not any(counts):
        counts[0] = 1
    vocabulary = draft_vocabulary(torch.tensor(counts), share)
    assert vocabulary is not None
    chosen = vocabulary.tolist()
    assert chosen == sorted(set(chosen))
    kept = [counts[token] for token in chosen]
    others = [count for token, count in enumerate(counts) if token not in chosen]
    assert min(kept) > 0 and min(kept) >= max(others, default=0)
    assert sum(kept) >= (share - 1e-9) * sum(counts) > sum(kept) - min(kept) - 1e-6


def test_all_tokens_are_scored() -> None:
    counts = torch.tensor([0, 5, 1])
    assert draft_vocabulary(counts, 1) is None
    assert draft_vocabulary(torch.zeros(3), None) is None and DEFAULT_SHARE < 1
    vocabulary = draft_vocabulary(counts, None)
    assert vocabulary is not None and vocabulary.tolist() == [1, 2]


@pytest.mark.parametrize("options", [{}, {"drafter_context": "features"}, {"transition_rank": 3}])
@torch.no_grad()
def test_drafts_and_scores_are_limited_to_the_vocabulary(options: dict[str, Any]) -> None:
    task, verifier, sample = make_all(VOCABULARY, 3, [4, 7])
    drafter = counted(make_drafter(task, 4, verifier=verifier, **options), [9, 2, 30])
    chosen, drafts = [2, 9, 30], []
    for share in (1.0, 0.999):
        method = Options("gad", 5, draft_vocabulary=share).build([verifier], drafter, task)
        method.drafter.start(sample, method.verifier.start(sample))
        tokens = torch.full((2, 20), 1)
        tokens[:, 0] = 2
        drafts.append(method.drafter.draft(make_state(tokens, [0, 0], 15)).tokens)
    assert not set(drafts[0].flatten().tolist()) <= set(chosen)
    assert set(drafts[1].flatten().tolist()) <= set(chosen)
    hidden = torch.randn(2, 3, 16)
    everything = CachedDecoder(drafter.decoder, Engine()).project(hidden)
    some = CachedDecoder(drafter.decoder, Engine(), torch.tensor(chosen)).project(hidden)
    torch.testing.assert_close(some, everything[..., chosen])
    spread_out = scatter_scores(some, torch.tensor(chosen), VOCABULARY)
    assert torch.equal(spread_out[..., chosen], some)
    others = [token for token in range(VOCABULARY) if token not in chosen]
    assert (spread_out[..., others] == torch.finfo(torch.float32).min).all()


def test_checkpoints_without_counts() -> None:
    task = make_task(VOCABULARY)
    drafter = make_drafter(task, 4)
    old = {name: value for name, value in drafter.state_dict().items() if "target_counts" not in name}
    drafter.load_state_dict(old)
    plain, some = Options("gad"), Options("gad", draft_vocabulary=0.5)
    check_fit(plain.spec, plain.options, plain.context([], drafter, task))
    with error_about("--draft-vocabulary", "this drafter was trained before.*train it"):
        check_fit(some.spec, some.options, some.context([], drafter, task))
