"""Acceptance rules against the equations, by hand and by slow loops."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.reference.search.rules import (
    TopBeta,
    accept_all,
    accepted_prefix,
    exact,
    with_min_block,
    within_distance,
)
from fairseq_plugins.decoding.reference.state import Draft, Verification
from tests.strategies import DETERMINISTIC, example_count


def log_probs_of(*rows: list[float]) -> torch.Tensor:
    """Return log-probabilities of a sentence from probabilities."""
    return torch.tensor([rows]).log()


def verified(log_probs: torch.Tensor) -> Verification:
    """Return the verification with these log-probabilities [B, T, V]."""
    return Verification(log_probs, log_probs.argmax(-1))


def test_equations_8_and_9_by_hand() -> None:
    """Four positions with drafted tokens of the verifier's ranks 1, 2, 3 and 4; tau = 1 is a ratio of e = 2.718."""
    verification = verified(
        log_probs_of(
            [0.70, 0.20, 0.06, 0.04],
            [0.50, 0.30, 0.15, 0.05],  # 0.50 / 0.30 = 1.67: within tau
            [0.45, 0.30, 0.20, 0.05],  # 0.45 / 0.20 = 2.25: within tau, third
            [0.30, 0.28, 0.22, 0.20],  # 0.30 / 0.20 = 1.50: within tau, but fourth
            [0.25, 0.25, 0.25, 0.25],  # after the draft
        )
    )
    draft = Draft(torch.tensor([[0, 1, 2, 3]]))
    assert TopBeta(3, 1.0)(draft, verification).tolist() == [[True, True, True, False]]
    assert TopBeta(2, 1.0)(draft, verification).tolist() == [[True, True, False, False]]
    assert TopBeta(4, 0.5)(draft, verification).tolist() == [[True, False, False, True]]
    assert TopBeta(4, math.log(2.25) + 1e-4)(draft, verification).tolist() == [[True, True, True, True]]
    assert TopBeta(4, math.log(2.25) - 1e-4)(draft, verification).tolist() == [[True, True, False, True]]
    assert TopBeta(1, 0.0)(draft, verification).tolist() == exact(draft, verification).tolist()


def test_score_of_the_drafter_by_hand() -> None:
    """SpecDec eq. 6-7 taken literally: the drafter's probability of its token against the verifier's list."""
    verification = verified(log_probs_of([0.6, 0.3, 0.1], [0.6, 0.3, 0.1], [0.6, 0.3, 0.1]))
    # The drafter prefers token 2 at the first position, which the verifier ranks last, and is unsure at the second.
    draft = Draft(torch.tensor([[2, 2]]), log_probs=log_probs_of([0.1, 0.1, 0.8], [0.4, 0.35, 0.25]))
    assert TopBeta(2, 1.0, "drafter")(draft, verification).tolist() == [[True, False]]
    assert TopBeta(3, 1.0, "drafter")(draft, verification).tolist() == [[True, True]]
    assert TopBeta(3, 0.5, "drafter")(draft, verification).tolist() == [[True, False]]
    assert TopBeta(3, 1.0, "verifier")(draft, verification).tolist() == [[False, False]]


@settings(DETERMINISTIC, max_examples=example_count(60))
@given(
    beta=st.integers(1, 7),
    tau=st.one_of(st.floats(0, 4), st.just(math.inf)),
    seed=st.integers(0, 10_000),
    ties=st.booleans(),
)
def test_top_beta_equals_a_loop(beta: int, tau: float, seed: int, ties: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(3, 5, 7, generator=generator)
    if ties:
        scores = scores.round()
    scores[:, :, 1] = -math.inf
    verification = verified(scores.log_softmax(-1))
    drafted = torch.randint(7, (3, 4), generator=generator)
    log_probs = verification.log_probs
    expected = []
    for sentence in range(3):
        row = []
        for position in range(4):
            token = int(drafted[sentence, position])
            ranked = sorted(log_probs[sentence, position].tolist(), reverse=True)
            own = float(log_probs[sentence, position, token])
            in_beta = own >= ranked[beta - 1]
            in_gap = ranked[0] - own <= tau
            top_1 = token == int(verification.best[sentence, position])
            row.append(top_1 or (own > -math.inf and in_beta and in_gap))
        expected.append(row)
    near = (log_probs.amax(-1)[:, :4] - log_probs[:, :4].gather(2, drafted[:, :, None])[:, :, 0] - tau).abs() < 1e-5
    acceptable = TopBeta(beta, tau)(Draft(drafted), verification)
    assert torch.equal(acceptable | near, torch.tensor(expected) | near)


@settings(DETERMINISTIC, max_examples=example_count(40))
@given(rows=st.lists(st.tuples(st.lists(st.booleans(), min_size=5, max_size=5), st.integers(0, 5)), min_size=1))
def test_accepted_prefix_equals_a_loop(rows: list[tuple[list[bool], int]]) -> None:
    acceptable = torch.tensor([row for row, _ in rows])
    widths = torch.tensor([width for _, width in rows])
    expected = [next((i for i, ok in enumerate(row[:width]) if not ok), width) for row, width in rows]
    assert accepted_prefix(acceptable, widths).tolist() == expected


def test_empty_draft_accepts_nothing() -> None:
    assert accepted_prefix(torch.ones(3, 0, dtype=torch.bool), None).tolist() == [0, 0, 0]


def test_distance_and_minimum_block() -> None:
    """Stern et al. 2018, sections 5.2 and 5.3, over a dictionary of two words and the numbers 0 to 4."""
    values = torch.tensor([math.nan, math.nan, 0.0, 1.0, 2.0, 3.0, 4.0])
    scores = torch.full((1, 5, 7), -5.0)
    scores[0, torch.arange(5), torch.tensor([2, 4, 6, 1, 3])] = 0.0
    scores[0, 0, 0] = -math.inf
    verification = verified(scores)
    draft = Draft(torch.tensor([[3, 6, 6, 0]]))
    assert within_distance(1, values)(draft, verification).tolist() == [[True, False, True, False]]
    assert within_distance(2, values)(draft, verification).tolist() == [[True, True, True, False]]
    assert with_min_block(3, exact)(draft, verification).tolist() == [[True, True, True, False]]
    assert with_min_block(1, exact)(draft, verification).tolist() == exact(draft, verification).tolist()
    forbidden = Draft(torch.tensor([[0, 6, 6, 0]]))
    assert not with_min_block(3, exact)(forbidden, verification)[0, 0]


def test_accept_all() -> None:
    assert accept_all(Draft(torch.tensor([[4, 5]])), verified(torch.zeros(1, 3, 7))).all()
