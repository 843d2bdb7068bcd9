"""Adaptive verification: verifies what pays, drafts where it pays, and never changes the output."""

from typing import Any
from unittest import mock

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.drafters import StatelessDrafter, adaptive
from fairseq_plugins.decoding.drafters.adaptive import AdaptiveDrafter, Calibration, Cost, Policy
from fairseq_plugins.decoding.methods import gad
from fairseq_plugins.decoding.state import DecodingState, Draft
from tests.strategies import DRAFTERS, FEATURE_DRAFTERS, SOURCES, STEADY, STEADY_MODELS, TRANSFORMERS, fitting, some
from tests.support import (
    Options,
    ScriptedDrafter,
    assert_same_output,
    decode,
    emitted_per_iteration,
    fairseq_greedy,
    ids,
    make_drafter,
    make_sample,
    make_task,
    make_transformer,
)


@settings(STEADY)
@given(
    fixed=st.floats(1e-4, 1.0),
    each=st.floats(1e-5, 1.0),
    rows=st.lists(st.integers(1, 60), min_size=3, max_size=30),
    doubt=st.floats(1e-2, 10.0),
)
def test_a_line_is_found(fixed: float, each: float, rows: list[int], doubt: float) -> None:
    """It goes through the mean, and is as steep as the calls say the more their rows differ, and else as guessed."""
    cost, before, guess = Cost(doubt), Cost(doubt), (4.0, 1.0)
    for count in [*rows, 1, 40]:
        cost.observe(count, fixed + each * count)
    found_fixed, found_each = cost.line(guess)
    number, total, squares, seconds, _ = cost.sums
    mean = total / number
    assert found_fixed + mean * found_each == pytest.approx(fixed + mean * each, rel=1e-2)
    for _ in range(int(number)):
        before.observe(mean, seconds / number)
    guessed = before.line(guess)[1]
    spread = squares / number / mean**2 - 1
    expected = (spread * each + doubt * guessed) / (spread + doubt)
    assert found_each == pytest.approx(expected, rel=0.02, abs=0.011 * seconds / total)


def test_cost_before_there_is_data_and_of_always_as_many_rows() -> None:
    cost = Cost(0.5)
    assert cost.line((4.0, 1.0)) == (4.0, 1.0)
    for _ in range(5):
        cost.observe(4, 0.016)
    assert cost.line((4.0, 1.0)) == pytest.approx((0.008, 0.002))
    assert cost.line((400.0, 100.0)) == pytest.approx((0.008, 0.002))


def test_a_further_token_of_a_draft_is_taken_for_as_dear_as_a_row_of_a_verification() -> None:
    """As long as drafts are all as long."""
    policy = Policy(5)
    for rows in (1, 6, 2, 5, 3, 4) * 20:
        policy.verify_cost.observe(rows, 0.010 + 0.002 * rows)
        policy.draft_cost.observe(5, 0.010)
    verify = policy.verify_cost.line(adaptive._GUESS)
    assert verify == pytest.approx((0.010, 0.002), rel=0.2)
    fixed, each = policy.draft_cost.line(verify)
    assert fixed + 5 * each == pytest.approx(0.010) and fixed / each == pytest.approx(verify[0] / verify[1])


def test_calibration_by_hand() -> None:
    calibration = Calibration()
    survival = numpy.array([[0.95, 0.95 * 0.55, 0.95 * 0.55 * 0.55]])
    # The first token stands, the second does not, after which nothing was tried; then all three stand; then none.
    for accepted in (1, 3, 0):
        calibration.observe(survival, *numpy.array([[3], [accepted + 1], [accepted]]))
    memory, prior = adaptive._MEMORY_OF_TOKENS, adaptive._PRIOR
    assert calibration.tried[9] == pytest.approx(1 + memory + memory**2)
    assert calibration.right[9] == pytest.approx(memory + memory**2)
    assert calibration.tried[5] == pytest.approx(2 * memory + memory**2)
    assert calibration.right[5] == pytest.approx(2 * memory)
    first, second, _ = calibration(survival)[0]
    assert first == pytest.approx((0.95 * prior + calibration.right[9]) / (prior + calibration.tried[9]))
    assert second == pytest.approx(first * (0.55 * prior + calibration.right[5]) / (prior + calibration.tried[5]))


def test_what_is_not_verified_any_more_is_taken_for_what_the_drafter_says() -> None:
    """Or a few wrong tokens would keep all that are alike from being verified ever again."""
    calibration = Calibration()
    calibration.add([0.0] * 5 + [50.0] + [0.0] * 4, [0.0] * 10)
    assert calibration.right_rate[5] < 0.1
    calibration.add([0.0] * 10, [0.0] * 10, iterations=5000)
    assert calibration.right_rate[5] == pytest.approx(0.55, abs=0.01)


class Fixed(StatelessDrafter):
    """Drafts ones, with these survival probabilities."""

    def __init__(self, survival: list[list[float]]) -> None:
        self.survival = torch.tensor(survival)

    def draft(self, state: DecodingState) -> Draft:
        return Draft(torch.ones_like(self.survival, dtype=torch.long), survival=self.survival)


def widths(drafter: AdaptiveDrafter, batch: int) -> list[int]:
    """How many tokens of each sentence are to be verified."""
    drafter.start({"net_input": {"src_tokens": torch.ones(batch, 3)}}, None)
    state = DecodingState(torch.ones(batch, 40, dtype=torch.long), torch.zeros(batch), [0] * batch, None, None)
    draft = drafter.draft(state)
    count = draft.num_drafted
    return [draft.tokens.size(1)] * batch if count is None else count.tolist()


def cost(fixed: float, each: float) -> Cost:
    """One that knows what calls take."""
    known = Cost(1e-9)
    for rows in (1, 2, 3):
        known.observe(rows, fixed + each * rows)
    return known


def test_rows_are_verified_as_far_as_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    sure, unsure = [0.99**k for k in range(1, 6)], [0.3**k for k in range(1, 6)]
    # A row costs as much as a call: one pays only where it is likely to be of use. And rows for next to nothing.
    for each, expected in ((1.0, [5, 0]), (1e-6, [5, 5])):
        policy = Policy(5)
        policy.calibration.add([0.0] * 9 + [1e3], [0.0] * 9 + [1e3])
        monkeypatch.setattr(adaptive, "_GUESS", (1.0, each))
        assert widths(AdaptiveDrafter(Fixed([sure, unsure]), policy), 2) == expected


def test_drafts_are_as_long_as_promises_most() -> None:
    """And one token longer; when drafting is tried again, so are the first ones, but what they say counts more."""
    for each, expected in ((0.15, 3), (1e-6, 6), (1000.0, 2)):
        policy = Policy(6)
        assert policy.width == 6
        policy.calibration.right, policy.calibration.tried = [1e9] * 10, [1e9] * 10
        # The drafter is sure of its own, and right: of 10 sentences all have a first token, 5 a second and 1 the rest.
        policy.calibration.right = [number / 9 * 1e9 for number in range(10)]
        policy.verify_cost, policy.draft_cost = cost(1.0, 1e-9), cost(1.0, each)
        survival = numpy.zeros((10, 6))
        survival[:, 0], survival[:5, 1], survival[0] = 1.0, 1.0, 1.0
        for _ in range(300):
            policy.worth_verifying(survival[:, : policy.width])
            policy.choose_width(1)
        assert policy.width == expected
        promised = policy.promised
        policy.drafted, policy.paid, policy.since = 1000.0, False, 10**6
        policy.step_cost.observe(1, 1e-6)
        assert policy.pays(1, 20) and policy.of_drafts == [adaptive._KEPT_DRAFTS] * 6
        policy.choose_width(1)
        assert policy.width == expected and policy.promised == pytest.approx(promised)


def test_what_is_done_once_for_a_sentence_counts() -> None:
    """The more the shorter its output, and nothing when it has been done."""
    policy = Policy(3)
    policy.drafted = 1000.0
    policy.verify_cost = policy.draft_cost = cost(1.0, 0.01)
    assert policy.may_pay(1, 20) and policy.may_pay(1)
    policy.prepared(1, 20.0)
    assert not policy.may_pay(1, 20) and policy.may_pay(1, 200) and policy.may_pay(1)
    for _ in range(20):
        policy.prepared(4, 4.0)
    assert policy.preparation == pytest.approx(1.0, rel=0.3) and policy.may_pay(1, 20)


def runs(chosen: list[bool]) -> list[tuple[int, int]]:
    """Where others begin than the first one, and how many of them follow each other."""
    found: list[tuple[int, int]] = []
    for place, value in enumerate(chosen):
        if value != chosen[0] and chosen[place - 1] == chosen[0]:
            found.append((place, 1))
        elif value != chosen[0]:
            found[-1] = found[-1][0], found[-1][1] + 1
    return found


def test_it_stops_drafting_where_that_does_not_pay_and_tries_again() -> None:
    policy = Policy(50)
    policy.drafted = adaptive._EXPLORED
    policy.survival = [0.01] * 50
    policy.step_cost.observe(1, 1.0)
    drafter = AdaptiveDrafter(Fixed([[0.5, 0.25]]), policy)
    first, trial = adaptive._TRY_AGAIN, adaptive._TRIAL
    drafted = [max(widths(drafter, 1)) > 0 or drafter.given is not None for _ in range(4 * first + 2 * trial)]
    # Twice as many batches pass each time.
    assert not drafted[0] and runs(drafted) == [(first, trial), (first + trial + 2 * first, trial)]


def test_where_drafting_pays_some_batches_without_drafts_say_now_and_then_what_that_takes() -> None:
    policy = Policy(50)
    policy.drafted = adaptive._EXPLORED
    # Drafts are all right, but every further token takes nearly as long as a call.
    policy.verify_cost, policy.draft_cost = cost(1.0, 0.1), cost(1.0, 0.8)
    first, trial = adaptive._TRY_AGAIN, adaptive._TRIAL
    drafted = [policy.pays(1, 20)]
    policy.step_cost.observe(1, 5.0)
    drafted += [policy.pays(1, 20) for _ in range(4 * first + 3 * trial)]
    assert not any(drafted[:trial])
    assert runs(drafted[trial:]) == [(first, trial), (first + trial + 2 * first, trial)]
    # A step is much faster than it was: the verdict changes, and drafts are what is tried.
    policy.step_cost, policy.trial = cost(1e-3, 1e-3), 0
    drafted = [policy.pays(1, 20) for _ in range(first + trial + 1)]
    assert not drafted[0] and runs(drafted) == [(first, trial)]


def test_where_drafting_clearly_pays_nothing_else_is_tried() -> None:
    """Steps without drafts verify a token of each sentence, and what that takes is known."""
    policy = Policy(50)
    policy.drafted = adaptive._EXPLORED
    policy.verify_cost = policy.draft_cost = cost(1.0, 1e-3)
    assert all(policy.pays(8, 20) for _ in range(20 * adaptive._TRY_AGAIN))


def test_an_output_that_is_too_short_for_drafts_says_what_steps_without_them_take() -> None:
    """So it is no change of the verdict on others, nor is anything else tried as long as there are such."""
    policy = Policy(3)
    policy.drafted = adaptive._EXPLORED
    policy.verify_cost = policy.draft_cost = cost(1.0, 0.1)
    policy.step_cost = cost(1.0, 0.1)
    policy.prepared(1, 20.0)
    lengths = [500, 500, 2] * 4 * adaptive._TRY_AGAIN
    assert [policy.pays(1, length) for length in lengths] == [length == 500 for length in lengths]


def test_the_kernels_counts_are_learnt_from_some_at_a_time() -> None:
    """At once in a trial and where the number of sentences changes, else after so many iterations."""
    policy = Policy(3)
    policy.drafted = adaptive._EXPLORED
    drafter = AdaptiveDrafter(Fixed([[0.5, 0.25]]), policy)
    calls = adaptive._LEARNT_AT_ONCE // 2

    def decode_with(batch: int) -> None:
        counts = drafter.counting(batch)
        counts.structure.drafts += calls
        for place in range(len(counts.positions or ())):
            counts.positions[place] += calls  # all tokens were right
        for place, value in enumerate((calls, 4.0 * calls, 16.0 * calls, 1e-3 * calls, 4e-3 * calls)):
            counts.structure.verify_sums[place] += value
            counts.structure.draft_sums[place] += value
        drafter.counted(batch)

    decode_with(1)
    assert policy.drafted == adaptive._EXPLORED and not policy.verify_cost.is_known
    decode_with(1)
    assert policy.drafted == adaptive._EXPLORED + 2 * calls and policy.verify_cost.is_known
    decode_with(1)
    decode_with(2)
    assert policy.drafted == adaptive._EXPLORED + 3 * calls
    # A batch without drafts counts for itself.
    drafter.drafts = False
    decode_with(2)
    assert policy.drafted == adaptive._EXPLORED + 4 * calls and not policy.step_cost.is_known
    # In a trial all is learnt from at once.
    policy.drafted, drafter.drafts = 0.0, True
    decode_with(2)
    assert policy.drafted == calls and drafter.counts is None


@pytest.mark.parametrize("device, measured", [("cpu", True), ("cuda", False)])
def test_what_pays_is_measured_on_a_cpu_only(
    device: str, measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU times would be those of capturing graphs: all that is drafted is verified."""
    weight = mock.Mock(device=torch.device(device))
    model = mock.Mock()
    model.decoder.embed_tokens.weight = weight
    asked = []
    monkeypatch.setattr(gad, "trained_drafter", lambda *given, adaptive: asked.append(adaptive))
    monkeypatch.setattr(gad, "_method", lambda *given: None)
    gad._build(mock.Mock(models=[model]), gad.ExactOptions())
    assert asked == [measured]


@settings(STEADY_MODELS, max_examples=some(25))
@given(
    options=TRANSFORMERS,
    drafter_options=st.one_of(DRAFTERS, FEATURE_DRAFTERS),
    sources=SOURCES,
    seed=st.integers(0, 1000),
    moods=st.lists(st.tuples(st.booleans(), st.floats(0, 1)), min_size=1, max_size=5),
)
def test_output_is_fairseqs(
    options: dict[str, Any],
    drafter_options: dict[str, Any],
    sources: list[int],
    seed: int,
    moods: list[tuple[bool, float]],
) -> None:
    """Whatever is drafted and however ragged it is verified."""
    task = make_task(40)
    verifier = make_transformer(task, seed, **options)
    drafter = make_drafter(task, seed + 1, verifier=verifier, **fitting(drafter_options, options))
    sample = make_sample(task, sources, seed)
    expected = fairseq_greedy([verifier], task, sample, max_len_b=30)
    drafted, _ = decode([verifier], task, sample, Options("gad", 12, fixed_width=False), drafter, max_len_b=30)
    assert_same_output(drafted, expected)
    turn = iter(moods * 100)

    class Moody(Policy):
        """Decides by chance, not by times."""

        def pays(self, batch: int, length: int) -> bool:
            return next(turn)[0]

        def threshold(self, batch: int) -> float:
            return next(turn)[1]

        def choose_width(self, batch: int) -> None:
            self.width = 1 + int(next(turn)[1] * (self.block_size - 1))

        def worth_verifying(self, survival: numpy.ndarray) -> numpy.ndarray:
            generator = numpy.random.default_rng(int(next(turn)[1] * 100))
            return generator.integers(0, survival.shape[1] + 1, len(survival))

    with mock.patch("fairseq_plugins.decoding.drafters.trained.Policy", Moody):
        drafted, _ = decode([verifier], task, sample, Options("gad", 12, fixed_width=False), drafter, max_len_b=30)
    assert_same_output(drafted, expected)


class Sure(ScriptedDrafter):
    """Says of every token that it is right in 95 of 100 cases."""

    def draft(self, state: DecodingState) -> Draft:
        draft = super().draft(state)
        draft.survival = torch.full(draft.tokens.shape, 0.95).cumprod(1)
        return draft


def test_the_end_of_a_sentence_counts_as_right_where_it_was_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Policy, "threshold", lambda self, batch: 0.0)
    task = make_task(40)
    verifier = make_transformer(task, 1)
    sample = make_sample(task, [4, 9], 1)
    outputs = ids(fairseq_greedy([verifier], task, sample, max_len_b=30))
    policy = Policy(50)
    drafter = AdaptiveDrafter(Sure(lambda sentence, done, width: outputs[sentence][done:], 50), policy)
    decode([verifier], task, sample, drafter, max_len_b=50)
    assert policy.calibration.tried[-1] == pytest.approx(sum(map(len, outputs)))
    assert policy.calibration.right[-1] == pytest.approx(policy.calibration.tried[-1])


def test_its_drafts_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pays", "may_pay"):
        monkeypatch.setattr(Policy, name, lambda self, batch, length=None: True)
    monkeypatch.setattr(Policy, "threshold", lambda self, batch: 0.0)
    task = make_task(9)
    verifier = make_transformer(task, 1)
    drafter = make_drafter(task, 2, verifier=verifier, drafter_context="features")
    sample = make_sample(task, [4, 0, 12, 7, 20, 3], 1)
    how = Options("gad", 12, fixed_width=False)
    _, stats = decode([verifier], task, sample, how, drafter, max_len_b=30, min_len=20)
    assert emitted_per_iteration(stats) > 1.3
