"""Suffix matches of a batch against their definition, and copies of the compiled kernels against those of PyTorch."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.method import KernelMethod, Method, MethodContext
from fairseq_plugins.decoding.native import kernels
from fairseq_plugins.decoding.reference.drafters.copying import (
    MAX_MATCH,
    continuation,
    endings,
    suffix_match,
    unique_match,
)
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.search import GreedySearch
from fairseq_plugins.decoding.reference.search.rules import TopBeta
from tests.strategies import DETERMINISTIC, UNSHRUNK, example_count
from tests.support import Options, assert_same_output, decode, make_all


def slow_match(text: list[int], output: list[int]) -> list[int]:
    """Return common suffixes by their definition."""
    lengths = []
    for end in range(1, len(text) + 1):
        length = 0
        while length < min(end, len(output)) and text[end - 1 - length] == output[-1 - length]:
            length += 1
        lengths.append(length)
    return lengths


WORDS = st.lists(st.integers(4, 7), min_size=1, max_size=9)


@settings(DETERMINISTIC, max_examples=example_count(80))
@given(pairs=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4))
def test_suffix_match_equals_a_loop(pairs: list[tuple[list[int], list[int]]]) -> None:
    width, longest = max(len(text) for text, _ in pairs), max(len(output) for _, output in pairs)
    text = torch.tensor([text + [-1] * (width - len(text)) for text, _ in pairs])
    output = torch.tensor([output + [9] * (longest - len(output)) for _, output in pairs])
    lengths = torch.tensor([len(output) - 1 for _, output in pairs])
    match = suffix_match(endings(text, MAX_MATCH), output, lengths)
    unique, is_unique = unique_match(match)
    for row, (words, known) in enumerate(pairs):
        expected = slow_match(words, known)
        assert match[row, : len(words)].tolist() == expected
        assert match[row, len(words) :].sum() == 0
        # Algorithm 1, line 3: a suffix of the output occurs exactly once in the source.
        once = any(sum(length > q for length in expected) == 1 for q in range(len(known)))
        assert bool(is_unique[row]) == once
        if once:
            assert expected[int(unique[row])] == max(expected)


def test_continuation_stops_at_the_end_of_the_text() -> None:
    text = torch.tensor([[4, 5, 6, -1, -1], [4, 5, 6, 7, -1]])
    tokens, counts = continuation(text, torch.tensor([0, 1]), torch.tensor([True, True]), 3)
    assert counts.tolist() == [2, 2] and tokens.tolist() == [[5, 6], [6, 7]]
    tokens, counts = continuation(text, torch.tensor([0, 1]), torch.tensor([False, False]), 3)
    assert counts.tolist() == [0, 0] and tokens.shape == (2, 0)


def accepting(how: Options, beta: int) -> Options:
    """Return a decoder that accepts the best `beta` tokens, so that outputs consist of longer and shorter copies."""
    spec = how.spec
    assert spec.build is not None and spec.build_kernels is not None

    def build(context: MethodContext, options: Any) -> Method:
        return replace(spec.build(context, options), search=GreedySearch(TopBeta(beta, math.inf)))

    def build_kernels(context: MethodContext, options: Any) -> KernelMethod:
        accepts = kernels().accept_top_beta(beta, math.inf)
        return replace(spec.build_kernels(context, options), acceptance=accepts)

    how.spec = replace(spec, build=build, build_kernels=build_kernels)
    return how


@pytest.mark.parametrize("lookup", ["unique", "nearest"])
@settings(UNSHRUNK, max_examples=example_count(40))
@given(
    words=st.sampled_from([2, 3, 5]),
    beta=st.sampled_from([2, 3]),
    sources=st.lists(st.one_of(st.integers(0, 12), st.integers(0, 60)), min_size=1, max_size=4),
    drafts=st.lists(st.lists(st.lists(st.integers(0, 4), max_size=40), max_size=3), min_size=4, max_size=4),
    longest=st.sampled_from([15, 90]),
    width=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_kernels_copy_as_pytorch(
    lookup: str,
    words: int,
    beta: int,
    sources: list[int],
    drafts: list[list[list[int]]],
    longest: int,
    width: int,
    seed: int,
) -> None:
    """Texts of few words have many matches, some longer than the longest that counts."""
    task, model, sample = make_all(4 + words, seed, sources, seed, max_target_positions=200)
    how = Options("reuse", width) if lookup == "nearest" else Options("iad", width)
    sample["drafts"] = [[[4 + word % words for word in text] for text in some] for some in drafts[: len(sources)]]
    search = {"max_len_b": longest, "min_len": longest // 2}
    both = [decode([model], task, sample, accepting(how, beta), engine=engine, **search) for engine in (Engine(), None)]
    (expected, stats), (ours, same) = both
    assert_same_output(ours, expected)
    assert [sentence.emitted for sentence in same] == [sentence.emitted for sentence in stats]
