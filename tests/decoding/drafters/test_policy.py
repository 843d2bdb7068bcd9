"""The policy of adaptive verification: verifies what pays, drafts where it pays, and tries the other now and then."""

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.drafters import policy as policies
from fairseq_plugins.decoding.drafters.estimates import Cost
from fairseq_plugins.decoding.drafters.policy import Policy
from tests.strategies import STEADY


def cost(fixed: float, each: float) -> Cost:
    """One that knows what calls take."""
    known = Cost(1e-9)
    for rows in (1, 2, 3):
        known.observe(rows, fixed + each * rows)
    return known


def knowing(
    verify: tuple[float, float], draft: tuple[float, float], step: tuple[float, float] | None = None, width: int = 50
) -> Policy:
    """A policy that has made enough drafts to judge them, and knows what calls take."""
    policy = Policy(width)
    policy.regime.drafted = policies._EXPLORED
    policy.regime.verify_cost, policy.regime.draft_cost = cost(*verify), cost(*draft)
    if step is not None:
        policy.regime.step_cost = cost(*step)
    return policy


def modes(policy: Policy, batches: int, batch: int = 1, iterations: int = 4) -> list[str]:
    """What batches of so many iterations are decoded with: d drafts, s steps without, a letter for each batch.

    In a trial of steps the drafter is ready, which is S; no time is counted.
    """
    found = []
    for _ in range(batches):
        ready = policy.begin(batch, 20)
        drafts = ready and policy.drafts_now()
        found.append("d" if drafts else "S" if ready else "s")
        policy.count_calls(iterations, iterations * batch, int(drafts))
    return found


def runs(found: list[str]) -> list[tuple[str, int]]:
    """The letters, and how often each comes one after the other."""
    counted: list[tuple[str, int]] = []
    for letter in found:
        number = counted.pop()[1] if counted and counted[-1][0] == letter else 0
        counted.append((letter, number + 1))
    return counted


def test_a_further_token_of_a_draft_is_taken_for_as_dear_as_a_row_of_a_verification() -> None:
    """As long as drafts are all as long."""
    regime = Policy(5).regime
    for rows in (1, 6, 2, 5, 3, 4) * 20:
        regime.verify_cost.observe(rows, 0.010 + 0.002 * rows)
        regime.draft_cost.observe(5, 0.010)
    assert regime.verification == pytest.approx((0.010, 0.002), rel=0.2)
    fixed, each = regime.draft
    assert fixed + 5 * each == pytest.approx(0.010)
    assert fixed / each == pytest.approx(regime.verification[0] / regime.verification[1])


def test_rows_are_verified_as_far_as_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    survival = numpy.array([[0.99**k for k in range(1, 6)], [0.3**k for k in range(1, 6)]])
    # A row costs as much as a call: one pays only where it is likely to be of use. And rows for next to nothing.
    for each, expected in ((1.0, [5, 0]), (1e-6, [5, 5])):
        policy = Policy(5)
        policy.calibration.add([0.0] * 9 + [1e3], [0.0] * 9 + [1e3])
        monkeypatch.setattr(policies, "_GUESS", (1.0, each))
        assert policy.worth_verifying(survival).tolist() == expected


def test_drafts_are_as_long_as_promises_most() -> None:
    """And one token longer; when drafting is tried again, so are the first ones, but what they say counts more."""
    for each, expected in ((0.15, 3), (1e-6, 6), (1000.0, 2)):
        policy = knowing((1.0, 1e-9), (1.0, each), width=6)
        assert policy.width == 6
        # The drafter is sure of its own, and right: of 10 sentences all have a first token, 5 a second and 1 the rest.
        policy.calibration.tried = [1e9] * 10
        policy.calibration.right = [number / 9 * 1e9 for number in range(10)]
        survival = numpy.zeros((10, 6))
        survival[:, 0], survival[:5, 1], survival[0] = 1.0, 1.0, 1.0
        for _ in range(300):
            policy.worth_verifying(survival[:, : policy.width])
            policy.choose_width(1)
        assert policy.width == expected
        promised = policy.promised
        policy.regime.paid, policy.regime.since = False, 10**6
        policy.regime.step_cost = cost(1e-9, 1e-9)
        assert policy.begin(1, 20) and max(policy.of_drafts) == policies._KEPT_DRAFTS
        policy.choose_width(1)
        assert abs(policy.width - expected) <= 1 and policy.promised == pytest.approx(promised, rel=0.2)


@settings(STEADY)
@given(rates=st.lists(st.floats(0.0, 1.0), max_size=8), drafts=st.integers(1, 1000))
def test_what_later_positions_gain_is_guessed_of_the_first(rates: list[float], drafts: int) -> None:
    """Tokens are then as likely to be right as those before, all of them where nothing is known."""
    policy = Policy(8)
    counted = drafts * numpy.cumprod(rates)
    policy._count_positions(1, counted.tolist(), counted.tolist(), drafts)
    found = [survives for survives, _ in policy._positions()]
    known = len(rates)
    for position in range(known):
        before = found[position - 1] ** ((position + 1) / position) if position else 1.0
        assert found[position] == pytest.approx((counted[position] + before) / (drafts + 1))
    rate = found[known - 1] ** (1 / known) if known else 1.0
    assert found[known:] == pytest.approx([rate ** (position + 1) for position in range(known, 8)])
    assert list(policy._positions()) == [(survives, survives) for survives in found]


def test_what_is_done_once_for_a_sentence_counts() -> None:
    """The more the shorter its output, and nothing when it has been done."""
    policy = knowing((1.0, 0.01), (1.0, 0.01), (1.0, 0.01), width=3)
    assert policy.may_pay(1, 20) and policy.may_pay(1)
    policy.regime.prepared(1, 20.0)
    assert not policy.may_pay(1, 20) and policy.may_pay(1, 200) and policy.may_pay(1)
    for _ in range(20):
        policy.regime.prepared(4, 4.0)
    assert policy.regime.preparation == pytest.approx(1.0, rel=0.3) and policy.may_pay(1, 20)


@pytest.mark.parametrize("batch, tried", [(1, 8), (4, 2), (16, 1)])
def test_it_stops_drafting_where_that_does_not_pay_and_tries_again(batch: int, tried: int) -> None:
    """For some iterations of one or more batches; twice as many batches pass each time."""
    policy = knowing((1.0, 1.0), (100.0, 1.0), (1.0, 1e-3))
    found = runs(modes(policy, 70, batch))
    first = policies._TRY_AGAIN
    assert found[:4] == [("s", first), ("d", tried), ("s", 2 * first), ("d", tried)]


@pytest.mark.parametrize("batch, letter, tried", [(1, "s", 32), (4, "S", 8), (16, "S", 2)])
def test_where_drafting_pays_some_steps_without_drafts_say_now_and_then_what_these_take(
    batch: int, letter: str, tried: int
) -> None:
    """The first are as soon as there are enough drafts; in batches the drafter is ready all the while."""
    # Drafts are all right, but every further token takes nearly as long as a call.
    policy = knowing((1.0, 0.1 / batch), (1.0, 0.9 / batch))
    assert modes(policy, tried, batch) == [letter] * tried
    policy.regime.step_cost = cost(5.0, 1.0 / batch)
    first = policies._TRY_AGAIN
    expected = [("d", first), (letter, tried), ("d", 2 * first), (letter, tried)]
    assert runs(modes(policy, 100, batch))[:4] == expected
    # A step is much faster than it was: the verdict changes, and drafts are what is tried.
    policy.regime.step_cost, policy.regime.trial = cost(1e-3, 1e-3), 0.0
    assert runs(modes(policy, first + 1, batch)) == [("s", first), ("d", 1)]


def test_the_verdict_on_what_did_not_pay_is_changed_by_a_trial_only() -> None:
    """And where it promises more than what was done by more than chance."""
    policy = knowing((1.0, 1.0), (100.0, 1.0), (1.0, 1e-3))
    first = policies._TRY_AGAIN
    assert modes(policy, 1) == ["s"]
    policy.regime.draft_cost, policy.regime.step_cost = cost(1e-3, 1e-3), cost(100.0, 1.0)
    assert runs(modes(policy, 100))[:2] == [("s", first - 1), ("d", 101 - first)]
    for margin in (0.99, 1.02, 1.05):
        policy = knowing((1.0, 1e-3), (1.0, 1e-3), width=1)
        with_drafts = policy._with_drafts(1)[0]
        policy.regime.paid, policy.regime.patience, policy.regime.since = False, first, first
        policy.regime.step_cost = cost(margin / with_drafts, 1e-9)
        assert runs(modes(policy, 30))[0] == ("d", 8 + first * (margin > policies._MARGIN))


def test_steps_without_drafts_are_tried_within_the_first_batch() -> None:
    policy = Policy(5)
    assert policy.begin(8, 20) and policy.drafts_now()
    policy.regime.verify_cost, policy.regime.draft_cost = cost(1.0, 0.0125), cost(1.0, 0.0625)
    assert policy.goes_on(8) and policy.drafts_now()
    policy.regime.count_drafts(8, 4)
    policy.regime.count_drafts(8, 4)
    policy.regime.count_drafts(100, 1)
    assert policy.goes_on(8) and not policy.drafts_now()
    policy.count_calls(policies._tried(8, False), 8, 0)
    policy.regime.step_cost = cost(1e-3, 1e-3)
    assert policy.drafts_now() and not policy.goes_on(8)


def test_where_drafting_clearly_pays_nothing_else_is_tried() -> None:
    """Steps without drafts verify a token of each sentence, and what that takes is known."""
    policy = knowing((1.0, 1e-3), (1.0, 1e-3))
    assert runs(modes(policy, 200, 8)) == [("d", 200)]


def test_an_output_that_is_too_short_for_drafts_says_what_steps_without_them_take() -> None:
    """So it is no change of the verdict on others, nor is anything else tried as long as there are such."""
    policy = knowing((1.0, 0.1), (1.0, 0.1), (1.0, 0.1), width=3)
    policy.regime.prepared(1, 20.0)
    lengths = [500, 500, 2] * 4 * policies._TRY_AGAIN
    assert [policy.begin(1, length) for length in lengths] == [length == 500 for length in lengths]


def test_of_batches_of_another_magnitude_it_is_guessed_what_they_take() -> None:
    """Where drafts are then not worth their time they are tried after some batches, and else, or for fewer, at once."""
    small, first = (1.0, 0.5), policies._TRY_AGAIN
    policy = knowing(small, small, small, width=5)
    policy.regime.patience = first
    assert policy.begin(1, 20)
    alone = policy.regime
    assert modes(policy, 1, 64) == ["s"]
    assert policy.regime is not alone and policy.regime.verification == pytest.approx(small)
    policy.regime.step_cost = cost(*small)
    assert runs(modes(policy, first, 64)) == [("s", first - 1), ("d", 1)]
    assert modes(policy, 1) == ["d"] and policy.regime is alone
    assert modes(policy, 2, 100) == ["s", "s"]
    assert modes(policy, 1, 8) == ["d"] and not policy.regime.is_explored


def test_that_some_sentences_end_before_others_counts() -> None:
    """Fewer of a batch share a call then, and with drafts the more so."""
    policy = knowing((1.0, 1e-3), (0.05, 1e-3), (1.0, 1e-3), width=1)
    policy.calibration.tried = [1e9] * 10
    policy.survival, policy.worthy, policy.of_drafts = [10.0], [100.0], [100.0]
    policy.begin(8, 20)
    for share, pays in ((0.5, False), (1.0, True)):
        for _ in range(30):
            policy.count_calls(10, 80, 0)
            policy._count_unfinished()
            policy.count_calls(10, 80 * share, 1)
            policy._count_unfinished()
            # A batch of both says nothing of either.
            policy.count_calls(10, 8, 1)
            policy.count_calls(10, 8, 0)
            policy._count_unfinished()
        assert policy.regime.unfinished == pytest.approx([1.0, share], abs=0.01)
        policy._forget()
        assert policy.may_pay(8) == pays
