"""Transition scores: paths, and training with the true previous token."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.data.block_masking import sample_blocks
from fairseq_plugins.decoding.reference.drafters.path import DraftOptions, draft_of, scatter_scores
from fairseq_plugins.models.transition import TransitionScores
from tests.strategies import DETERMINISTIC, example_count
from tests.support import make_drafter, make_task, make_transformer

WIDTH = 6


def make_scores(vocabulary: int, rank: int, state: int, seed: int) -> TransitionScores:
    torch.manual_seed(seed)
    transition = TransitionScores(vocabulary, rank, WIDTH, state).eval()
    for parameter in transition.parameters():
        torch.nn.init.normal_(parameter)
    return transition


@settings(DETERMINISTIC, max_examples=example_count(60))
@given(
    vocabulary=st.integers(2, 200),
    rank=st.integers(1, 20),
    state=st.sampled_from([0, 1, 8, 19]),
    seed=st.integers(0, 99),
)
@torch.no_grad()
def test_unscored_tokens_are_never_chosen(vocabulary: int, rank: int, state: int, seed: int) -> None:
    transition = make_scores(vocabulary, rank, state, seed)
    ids = torch.randperm(vocabulary)[: vocabulary // 2 + 1].sort().values
    scores, hidden = 3 * torch.randn(3, 5, len(ids)), torch.randn(3, 5, WIDTH)
    first, given = torch.randint(vocabulary, (3,)), scores.clone()
    among_some, log_probs = transition.choose(scores, hidden, first, True, ids)
    everywhere, same = transition.choose(scatter_scores(scores, ids, vocabulary), hidden, first, True)
    assert torch.equal(among_some, everywhere) and torch.equal(scores, given)
    torch.testing.assert_close(log_probs, same, rtol=1e-4, atol=1e-4)
    assert transition.choose(scores, hidden, first, False, ids)[1] is None


@pytest.mark.parametrize("state", [0, 5])
@torch.no_grad()
def test_path_is_greedy(state: int) -> None:
    """The path considers all tokens, by the scores that the loss trains."""
    transition = make_scores(50, 4, state, 1)
    logits, hidden, first = torch.randn(3, 5, 50), torch.randn(3, 5, WIDTH), torch.tensor([0, 3, 7])
    tokens, log_probs = transition.choose(logits, hidden, first, with_log_probs=True)
    previous = torch.cat([first[:, None], tokens[:, :-1]], dim=1)
    trained = logits + transition.after(transition.factors(hidden, previous))
    assert torch.equal(tokens, trained.argmax(2))
    expected = trained.log_softmax(2).gather(2, tokens[:, :, None])[:, :, 0]
    torch.testing.assert_close(log_probs, expected, rtol=1e-4, atol=1e-5)
    ranks = (logits > logits.gather(2, tokens[:, :, None])).sum(2)
    assert ranks.max() >= 8


@pytest.mark.parametrize("rank", [0, 4])
@torch.no_grad()
def test_survival_is_exact_in_half_precision(rank: int) -> None:
    """In bfloat16 the log of the sum over a vocabulary is rounded to 1/16, which would shift all probabilities."""
    decoder = make_drafter(make_task(30), 1, transition_rank=rank).decoder.bfloat16()
    if rank:
        torch.nn.init.zeros_(decoder.transition.after.weight)
    scores = torch.zeros(1, 3, 30, dtype=torch.bfloat16)
    scores[:, :, 7] = 8 - 3 * torch.arange(3)
    hidden = torch.zeros(1, 3, 16, dtype=torch.bfloat16)
    survival = draft_of(decoder, scores, hidden, torch.tensor([[2]]), DraftOptions(with_survival=True)).survival
    expected = scores.double().softmax(2).amax(2).cumprod(1).float()
    torch.testing.assert_close(survival, expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize("state", [0, 5])
@torch.no_grad()
def test_training_equals_decoding(state: int) -> None:
    """Along the true path, the scores of a draft are those of a training block."""
    task = make_task(30)
    options = {"drafter_context": "features", "transition_rank": 4, "transition_state": state}
    model = make_drafter(task, 1, verifier=make_transformer(task), **options)
    decoder = model.decoder
    target, previous = torch.tensor([[5, 6, 7, 8, 2]]), torch.tensor([[2, 5, 6, 7, 8]])
    blocks = sample_blocks(target, previous, 3, 1, "features", 1, decoder.mask_id, torch.Generator().manual_seed(4))
    hidden = torch.randn(1, 3, 16)
    is_target = blocks.targets != 1
    trained = decoder.block_logits(hidden, blocks, is_target.flatten().nonzero()[:, 0])
    plain = decoder.output_layer(hidden)
    true_path = 100 * torch.nn.functional.one_hot(blocks.targets, 30)  # so that no other token is drafted
    draft = draft_of(decoder, plain + true_path, hidden, blocks.masks[:, :1], DraftOptions(keep_log_probs=True))
    assert torch.equal(draft.tokens, blocks.targets)
    assert is_target.any()
    expected = (trained + true_path[is_target]).log_softmax(-1)
    torch.testing.assert_close(draft.log_probs[is_target], expected, rtol=0, atol=1e-4)
    assert not torch.allclose(trained, plain[is_target])
