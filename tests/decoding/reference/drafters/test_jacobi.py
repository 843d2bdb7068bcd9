"""The Jacobi family: fixed points, blocks and the pool."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.reference.drafters.jacobi import JacobiDrafter
from tests.decoding.methods.without_model import blocks_of
from tests.strategies import SOURCES, UNSHRUNK, example_count
from tests.support import (
    Options,
    assert_same_output,
    decode,
    fairseq_greedy,
    make_sample,
    make_task,
    make_transformer,
)

FAMILY = ["jacobi", "gs-jacobi", "hybrid-jacobi"]


def test_jacobi_worst_case_and_best_case() -> None:
    # A verifier that ignores its input converges one iteration later than with a right first guess.
    output = [10, 11, 12, 13, 14, 2]
    assert blocks_of(JacobiDrafter(1, None, None, 1), [5] * 5 + [2], output) == [1, 5]
    assert blocks_of(JacobiDrafter(1, 3, None, 1), [5] * 5 + [2], output) == [1, 2, 1, 2]
    assert blocks_of(JacobiDrafter(1, 3, 3, 1), [5] * 5 + [2], output) == [1, 2, 1, 1, 1]
    assert blocks_of(JacobiDrafter(1, 1, None, 1), [5] * 5 + [2], output) == [1] * 6


def test_jacobi_starts_from_the_source() -> None:
    source = [10, 11, 12, 13, 14, 2]
    assert blocks_of(JacobiDrafter(1, None, None, None), source, source) == [6]


@settings(UNSHRUNK, max_examples=example_count(25))
@given(
    decoder=st.sampled_from(FAMILY),
    pool=st.booleans(),
    initial=st.sampled_from(["pad", "source", "unk"]),
    prefix=st.lists(st.integers(4, 8), max_size=5),
    sources=SOURCES,
    seed=st.integers(0, 1000),
)
def test_given_prefix_is_the_first_draft(
    decoder: str, pool: bool, initial: str, prefix: list[int], sources: list[int], seed: int
) -> None:
    """`--prefix-size`: the drafter does not make the first draft, and stores nothing of it."""
    task = make_task(9)
    verifier = make_transformer(task, seed)
    sample = make_sample(task, sources, seed)
    tokens = torch.full((len(sources), max(1, len(prefix))), 1)
    # Every second sentence has the whole prefix, the others no or one token.
    for row in range(len(sources)):
        words = prefix if row % 2 == 0 else prefix[: row // 2 % 2]
        tokens[row, : len(words)] = torch.tensor(words, dtype=torch.long)
    search: dict[str, Any] = {"max_len_b": 20, "prefix_tokens": tokens}
    expected = fairseq_greedy([verifier], task, sample, **search)
    method = Options(decoder, jacobi_pool=pool, jacobi_init=initial)
    drafted, stats = decode([verifier], task, sample, method, **search)
    assert_same_output(drafted, expected)
    assert all(sentence.iterations <= sentence.tokens for sentence in stats)
