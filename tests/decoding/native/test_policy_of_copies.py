"""The policy of drafters without a checkpoint starts without counts, and drafts nothing where that gains nothing."""

from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.native import kernels
from tests.decoding.native.test_policy import drafts_with_rate, linear, make_policy
from tests.strategies import SOURCES, TRANSFORMERS, UNSHRUNK, example_count
from tests.support import (
    Options,
    assert_same_output,
    fairseq_greedy,
    make_drafter,
    make_generator,
    make_sample,
    make_task,
    make_transformer,
)

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("iad", {}),
    ("iad", {"iad_lookup": "recent"}),
    ("reuse", {}),
    ("jacobi", {}),
    ("jacobi", {"jacobi_pool": True, "jacobi_init": "source"}),
    ("gs-jacobi", {"block_size": 3}),
    ("hybrid-jacobi", {"jacobi_length": 7, "jacobi_pool": True}),
]


def test_later_positions_are_reached_less_often() -> None:
    """Positions that no draft has been long enough for promise nothing if no draft reaches those before them."""
    policy = make_policy(draft=(1e-3, 0.0))
    drafted = numpy.zeros((2, *drafts_with_rate(0.5)[0].shape))
    drafted[0, 0, 0] = 500
    policy.learn(*drafted)
    assert policy.plan(1).rate < 1.05 * policy.plan(1).greedy_rate


def test_few_sentences_draft_before_there_are_counts() -> None:
    policy = make_policy(draft=(1e-3, 0.0), verify=(1.0, 1e-3))
    assert policy.plan(4).is_faster, "the prior is optimistic"
    assert [policy.should_draft(4, 10) for _ in range(4)] == [True, True, False, False]
    policy.learn(*drafts_with_rate(0.9, count=1))
    assert all(policy.should_draft(4, 10) for _ in range(4))


@pytest.mark.parametrize(("name", "options"), METHODS, ids=lambda value: str(value))
@settings(UNSHRUNK, max_examples=example_count(6))
@given(
    model=TRANSFORMERS,
    sources=SOURCES,
    seed=st.integers(0, 1000),
    step=st.sampled_from([0.5, 3.0, 20.0]),
    row=st.sampled_from([1e-3, 0.3, 5.0]),
)
def test_output_is_fairseqs_whatever_the_policy_chooses(
    name: str, options: dict[str, Any], model: dict[str, Any], sources: list[int], seed: int, step: float, row: float
) -> None:
    task = make_task(40)
    verifier = make_transformer(task, seed, **model)
    sample = make_sample(task, sources, seed)
    if name == "reuse":
        sample["drafts"] = [[row[:7].tolist(), row[2:].tolist()] for row in sample["net_input"]["src_tokens"]]
    expected = fairseq_greedy([verifier], task, sample, max_len_b=30)
    how = Options(name, fixed_width=False, **options)
    generator, _ = make_generator([verifier], task, how, max_len_b=30)
    if generator.backend.name == "native":
        costs = kernels().Costs(linear(step, row), linear(1e-3, 1e-4), linear(1.0, row))
        generator.backend.method.policy.costs = costs
    for _ in range(3):
        assert_same_output(generator.generate([verifier], sample), expected)


@pytest.mark.parametrize("can_be_free", [True, False])
def test_dear_drafter_does_not_forbid_copies_before_it(can_be_free: bool) -> None:
    """A drafter that drafts where nothing can be copied has a cost. Copies have none, which is learned."""
    task = make_task(60)
    verifier = make_transformer(task, 2)
    sample = make_sample(task, [9, 4, 12, 7])
    expected = fairseq_greedy([verifier], task, sample, max_len_b=30)
    sample["drafts"] = [[hypotheses[0]["tokens"].tolist()] for hypotheses in expected]
    how = Options("reuse", fixed_width=False, iad_fallback="gad")
    generator, stats = make_generator([verifier], task, how, make_drafter(task, 3), max_len_b=30)
    costs = kernels().Costs(linear(1.0, 0), linear(99.0, 0), linear(1.0, 0), can_be_free=can_be_free)
    generator.backend.method.policy.costs = costs
    for _ in range(2):
        assert_same_output(generator.generate([verifier], sample), expected)
    tokens, last = sum(len(row[0]["tokens"]) for row in expected), stats.recorded[-len(expected) :]
    iterations = sum(sentence.iterations for sentence in last)
    assert iterations < tokens / 5 if can_be_free else iterations == tokens


@pytest.mark.parametrize(("name", "options"), METHODS, ids=lambda value: str(value))
def test_drafts_end_where_rows_cost_as_much_as_steps(name: str, options: dict[str, Any]) -> None:
    """After a few trials, sentences decode as with `greedy`."""
    task = make_task(60)
    verifier = make_transformer(task, 2)
    sample = make_sample(task, [9, 4, 12, 7, 20, 15, 3, 30])
    if name == "reuse":
        sample["drafts"] = [[row.tolist()] for row in sample["net_input"]["src_tokens"]]
    generator, stats = make_generator([verifier], task, Options(name, fixed_width=False, **options), max_len_b=30)
    costs = kernels().Costs(linear(1.0, 1.0), linear(1e-3, 0), linear(1.0, 1.0))
    generator.backend.method.policy.costs = costs
    for _ in range(4):
        generator.generate([verifier], sample)
    last = stats.recorded[-len(sample["id"]) :]
    assert generator.backend.method.policy.counts()[0][0] > 0, "nothing was tried"
    assert sum(sum(sentence.emitted) for sentence in last) <= 1.05 * sum(sentence.iterations for sentence in last)
    assert not generator.backend.method.policy.plan(8).is_faster
