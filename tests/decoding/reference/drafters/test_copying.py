"""Suffix matches of a batch against their definition."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.reference.drafters.copying import (
    MAX_MATCH,
    continuation,
    endings,
    latest_match,
    suffix_match,
    unique_match,
)
from tests.strategies import DETERMINISTIC, example_count


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
    latest, any_match = latest_match(match)
    for row, (words, known) in enumerate(pairs):
        expected = slow_match(words, known)
        assert match[row, : len(words)].tolist() == expected
        assert match[row, len(words) :].sum() == 0
        # Algorithm 1, line 3: a suffix of the output occurs exactly once in the source.
        once = any(sum(length > q for length in expected) == 1 for q in range(len(known)))
        assert bool(is_unique[row]) == once
        if once:
            assert expected[int(unique[row])] == max(expected)
        assert bool(any_match[row]) == (max(expected) > 0)
        if max(expected) > 0:
            assert int(latest[row]) == len(words) - 1 - expected[::-1].index(max(expected))


def test_continuation_stops_at_the_end_of_the_text() -> None:
    text = torch.tensor([[4, 5, 6, -1, -1], [4, 5, 6, 7, -1]])
    tokens, counts = continuation(text, torch.tensor([0, 1]), torch.tensor([True, True]), 3)
    assert counts.tolist() == [2, 2] and tokens.tolist() == [[5, 6], [6, 7]]
    tokens, counts = continuation(text, torch.tensor([0, 1]), torch.tensor([False, False]), 3)
    assert counts.tolist() == [0, 0] and tokens.shape == (2, 0)
