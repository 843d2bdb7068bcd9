"""Methods without trained drafters: fairseq's output, in fewer iterations than tokens."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import SEARCHES, SOURCES, TRANSFORMERS, UNSHRUNK, example_count
from tests.support import (
    Options,
    assert_same_output,
    decode,
    emitted_per_iteration,
    fairseq_greedy,
    make_sample,
    make_task,
    make_transformer,
)

# The methods, and the minimum tokens per iteration in `test_batch_sizes`. Its random model never copies (see
# test_iad.py), and blocks of one are greedy decoding.
LEAST = [
    (Options("iad"), 1.0),
    (Options("iad", iad_lookup="recent"), 1.2),
    (Options("jacobi"), 1.2),
    (Options("jacobi", jacobi_init="source"), 1.2),
    (Options("jacobi", jacobi_init="unk", jacobi_pool=True), 1.7),
    (Options("gs-jacobi"), 1.4),
    (Options("gs-jacobi", block_size=1), 1.0),
    (Options("gs-jacobi", block_size=7, jacobi_pool=True), 2.1),
    (Options("hybrid-jacobi", block_size=3, jacobi_length=10), 1.02),
    (Options("hybrid-jacobi", jacobi_length=1), 1.0),
]
METHODS = [method for method, _ in LEAST]


@settings(UNSHRUNK, max_examples=example_count(40))
@given(
    method=st.sampled_from(METHODS),
    options=TRANSFORMERS,
    vocabulary=st.sampled_from([9, 40]),
    sources=SOURCES,
    search=SEARCHES,
    seed=st.integers(0, 1000),
)
def test_untrained_methods_equal_fairseq(
    method: Options, options: dict[str, Any], vocabulary: int, sources: list[int], search: dict[str, Any], seed: int
) -> None:
    task = make_task(vocabulary)
    verifier = make_transformer(task, seed, **options)
    sample = make_sample(task, sources, seed)
    expected = fairseq_greedy([verifier], task, sample, **search)
    drafted, _ = decode([verifier], task, sample, method, **search)
    assert_same_output(drafted, expected)


@pytest.mark.parametrize("batch_size", [1, 7, 32])
@pytest.mark.parametrize(("method", "least"), LEAST, ids=str)
def test_batch_sizes(method: Options, least: float, batch_size: int) -> None:
    task = make_task(9)
    verifier = make_transformer(task, 8)
    sample = make_sample(task, [0, 1, 33, 7, 2, 19, 0, *range(25)][:batch_size])
    expected = fairseq_greedy([verifier], task, sample, max_len_b=30)
    drafted, stats = decode([verifier], task, sample, method, max_len_b=30)
    assert_same_output(drafted, expected)
    assert emitted_per_iteration(stats) >= least
