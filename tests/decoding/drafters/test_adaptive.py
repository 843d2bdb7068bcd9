"""Adaptive verification: does what its policy says, tells it what that took, and never changes the output."""

from itertools import cycle
from typing import Any
from unittest import mock

import numpy
import pytest
import torch
from fairseq_plugins.decoding.drafters.adaptive import AdaptiveDrafter
from fairseq_plugins.decoding.drafters.policy import Policy
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.drafters import StatelessDrafter, adaptive
from fairseq_plugins.decoding.drafters import policy as policies
from fairseq_plugins.decoding.methods import gad
from fairseq_plugins.decoding.state import DecodingState, Draft
from tests.strategies import DRAFTERS, FEATURE_DRAFTERS, SOURCES, STEADY_MODELS, TRANSFORMERS, fitting, some
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


class Fixed(StatelessDrafter):
    """Drafts ones, with these survival probabilities."""

    def __init__(self, survival: list[list[float]]) -> None:
        self.survival = torch.tensor(survival)

    def draft(self, state: DecodingState) -> Draft:
        return Draft(torch.ones_like(self.survival, dtype=torch.long), survival=self.survival)


class Counted(StatelessDrafter):
    """Drafts nothing by itself: the kernels do."""

    width = 0


def counting_drafter() -> AdaptiveDrafter:
    """One whose policy has made enough drafts to judge them, which take next to nothing."""
    policy = Policy(3)
    policy.regime.drafted = policies._EXPLORED
    policy.regime.patience = 100
    for rows in (1, 40):
        policy.regime.verify_cost.observe(rows, 1e-3)
    policy.regime.draft_cost.observe(3, 1e-6)
    return AdaptiveDrafter(Counted(), policy)


def decode_with(drafter: AdaptiveDrafter, batch: int, calls: int) -> None:
    """As the kernels do, so many calls of a millisecond; all tokens of drafts are right, and these take little time."""
    counts = drafter.counting(batch)
    counts.structure.drafts += batch * calls * counts.drafts
    for place in range(len(counts.positions or ())):
        counts.positions[place] += batch * calls
    rows = batch * (1 + 3 * counts.drafts)
    for place, value in enumerate((1, rows, rows**2, 1e-3, 1e-3 * rows)):
        counts.structure.verify_sums[place] += calls * value
        counts.structure.draft_sums[place] += calls * (value if place < 3 else 1e-4 * value) * counts.drafts
    drafter.counted(batch)


def test_the_kernels_counts_are_learnt_from_some_at_a_time() -> None:
    """After so many iterations, at once where the number of sentences changes, and where another batch begins."""
    drafter, calls = counting_drafter(), adaptive._LEARNT_AT_ONCE // 2
    regime, begun = drafter.policy.regime, policies._EXPLORED
    drafter.begin(1, 20)
    decode_with(drafter, 1, calls)
    assert regime.drafted == begun
    decode_with(drafter, 1, calls)
    assert regime.drafted == begun + 2 * calls and drafter.counts is None
    decode_with(drafter, 1, calls)
    decode_with(drafter, 2, calls)
    assert regime.drafted == begun + 3 * calls
    # A sentence by itself is learnt from with others.
    drafter.policy.batch = 1
    drafter.begin(1, 20)
    assert drafter.counts is not None
    drafter.begin(2, 20)
    assert drafter.counts is None and regime.drafted == begun + 3 * calls + 2 * calls


def test_a_trial_is_learnt_from_at_once() -> None:
    """Steps without drafts are tried with the drafter ready: it drafts no token, and reads on."""
    drafter = counting_drafter()
    drafter.begin(8, 20)
    regime = drafter.policy.regime
    regime.paid, regime.trial, drafter.drafts = True, 6.0, True
    assert drafter.counting(8).budget == 6 and not drafter.counting(8).drafts and drafter.inner.width == 0
    decode_with(drafter, 8, 4)
    assert regime.step_cost.is_known and drafter.drafts and drafter.counting(8).budget == 2
    decode_with(drafter, 8, 2)
    assert drafter.drafts and regime.trial == 0
    # Drafts pay: nothing is being tried any more.
    assert drafter.counting(8).drafts and drafter.counting(8).budget is None and drafter.inner.width > 0


def test_drafting_stops_within_a_batch_where_it_is_seen_not_to_pay() -> None:
    drafter = counting_drafter()
    drafter.begin(8, 20)
    regime = drafter.policy.regime
    regime.step_cost.observe(8, 1e-9)
    assert not drafter.policy.may_pay(8)
    regime.paid, regime.trial, drafter.drafts = False, 4.0, True
    assert drafter.counting(8).drafts and drafter.counting(8).budget == policies._tried(8, True)
    decode_with(drafter, 8, 2)
    assert drafter.drafts
    decode_with(drafter, 8, 2)
    assert not drafter.drafts and not drafter.counting(8).drafts and drafter.counting(8).budget is None


@pytest.mark.parametrize("device, measured", [("cpu", True), ("cuda", False)])
def test_what_pays_is_measured_on_a_cpu_only(device: str, measured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
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
    turn = cycle(moods)

    class Moody(Policy):
        """Decides by chance, not by times."""

        def begin(self, batch: int, length: int) -> bool:
            return next(turn)[0]

        def goes_on(self, batch: int) -> bool:
            return next(turn)[0]

        def drafts_now(self) -> bool:
            self.regime.trial = float(next(turn)[1] * 8)
            return self.regime.trial < 4

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
    monkeypatch.setattr(Policy, "may_pay", lambda self, batch, length=None: True)
    monkeypatch.setattr(Policy, "_clearly_pays", lambda self, batch: True)
    monkeypatch.setattr(Policy, "threshold", lambda self, batch: 0.0)
    task = make_task(9)
    verifier = make_transformer(task, 1)
    drafter = make_drafter(task, 2, verifier=verifier, drafter_context="features")
    sample = make_sample(task, [4, 0, 12, 7, 20, 3], 1)
    how = Options("gad", 12, fixed_width=False)
    _, stats = decode([verifier], task, sample, how, drafter, max_len_b=30, min_len=20)
    assert emitted_per_iteration(stats) > 1.3
