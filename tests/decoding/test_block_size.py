"""--auto-block-size: chooses what pays, and never changes the output."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding import block_size
from fairseq_plugins.decoding.block_size import BlockSizeChooser
from tests.strategies import DRAFTERS, FEATURE_DRAFTERS, SOURCES, STEADY_MODELS, TRANSFORMERS, fitting
from tests.support import (
    Options,
    assert_same_output,
    decode,
    emitted_per_iteration,
    fairseq_greedy,
    make_drafter,
    make_sample,
    make_task,
    make_transformer,
)


def run(
    monkeypatch: pytest.MonkeyPatch, fixed: float, each: float, accepted: int, most: int, iterations: int = 80
) -> list[int]:
    """Sizes chosen where an iteration takes `fixed + each * k` seconds and up to `accepted` tokens are accepted."""
    now = 0.0
    monkeypatch.setattr(block_size.time, "perf_counter", lambda: now)
    chooser, sizes = BlockSizeChooser(most), []
    chooser.start()
    for _ in range(iterations):
        sizes.append(chooser.choose())
        chooser.observe(sizes[-1], [min(accepted, sizes[-1]) + 1])
        now += fixed + each * sizes[-1]
    return sizes


def test_short_drafts_where_little_is_accepted_and_tokens_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(run(monkeypatch, 1.0, 0.5, accepted=0, most=20)[-20:]) == {1}
    assert max(run(monkeypatch, 1.0, 0.2, accepted=2, most=20)[-20:]) <= 6


def test_long_drafts_where_they_cost_nothing_or_all_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(run(monkeypatch, 1.0, 0.0, accepted=2, most=20)[-20:]) == {20}
    assert set(run(monkeypatch, 1.0, 0.05, accepted=20, most=20)[-20:]) == {20}


def test_the_cost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(block_size.time, "perf_counter", lambda: now)
    chooser = BlockSizeChooser(12)
    chooser.start()
    for _ in range(60):
        size = chooser.choose()
        chooser.observe(size, [3, 1])
        now += 0.004 + 0.0005 * size
    assert chooser._cost() == pytest.approx((0.004, 0.0005), rel=1e-6)


def test_the_rate_counts_what_was_tried() -> None:
    chooser = BlockSizeChooser(5)
    chooser.start()
    chooser.tried = chooser.stood = 0.0
    # Three of five accepted: four tried. All five: five tried. None: one tried.
    chooser.observe(5, [4, 6, 1])
    assert chooser.rate == pytest.approx(8 / 10)
    chooser.observe(0, [1])
    assert chooser.rate == pytest.approx(8 / 10)


@settings(STEADY_MODELS, max_examples=25)
@given(
    options=TRANSFORMERS,
    drafter_options=st.one_of(DRAFTERS, FEATURE_DRAFTERS),
    sources=SOURCES,
    seed=st.integers(0, 1000),
)
def test_output_is_fairseqs(
    options: dict[str, Any], drafter_options: dict[str, Any], sources: list[int], seed: int
) -> None:
    task = make_task(40)
    verifier = make_transformer(task, seed, **options)
    drafter = make_drafter(task, seed + 1, verifier=verifier, **fitting(drafter_options, options))
    sample = make_sample(task, sources, seed)
    expected = fairseq_greedy([verifier], task, sample, max_len_b=30)
    drafted, _ = decode([verifier], task, sample, Options("gad", 12, auto_block_size=True), drafter, max_len_b=30)
    assert_same_output(drafted, expected)


def test_its_drafts_are_accepted() -> None:
    task = make_task(9)
    verifier = make_transformer(task, 1)
    drafter = make_drafter(task, 2, verifier=verifier, drafter_context="features")
    sample = make_sample(task, [4, 0, 12, 7, 20, 3], 1)
    how = Options("gad", 12, auto_block_size=True)
    _, stats = decode([verifier], task, sample, how, drafter, max_len_b=30, min_len=20)
    assert emitted_per_iteration(stats) > 1.5
