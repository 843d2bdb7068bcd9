"""Input-guided aggressive decoding: what is copied, and who helps out."""

from typing import Any

import pytest

from fairseq_plugins.decoding.methods.iad import source_copy_drafter
from tests.decoding.methods.without_model import blocks_of, drafts_of
from tests.learned import learned_drafter, learned_rewriter
from tests.support import (
    Options,
    assert_same_output,
    decode,
    emitted_per_iteration,
    fairseq_greedy,
    ids,
    make_sample,
    make_task,
    make_transformer,
)


def test_first_copy_is_the_whole_source() -> None:
    assert drafts_of(source_copy_drafter(1), [10, 11, 12, 2], [[]]) == [[10, 11, 12, 2]]


def test_copy_after_a_unique_match_only() -> None:
    source = [10, 11, 12, 10, 13, 2]
    outputs = [[20], [20, 11], [20, 10], [20, 12, 10], [10, 11, 12, 10, 13, 2]]
    expected = [[], [12, 10, 13, 2], [], [13, 2], []]
    assert drafts_of(source_copy_drafter(1), source, outputs) == expected
    # The most recent of the longest matches, in source or output: 10 alone stands last at position 3.
    assert drafts_of(source_copy_drafter(1, "recent"), source, [[20, 10]]) == [[13, 2]]
    assert drafts_of(source_copy_drafter(1, "recent"), source, [[30, 31, 32, 30]]) == [[31, 32]]


def test_input_guided_blocks() -> None:
    """One insertion and one replacement: copy, one token at a time until a suffix matches again, copy."""
    source = [10, 11, 12, 13, 14, 15, 2]
    # Unchanged: one iteration. The EOS of the source is copied with it.
    assert blocks_of(source_copy_drafter(1), source, source) == [7]
    # 20 inserted after 11: bifurcation there; 20 matches nothing, 12 does.
    assert blocks_of(source_copy_drafter(1), source, [10, 11, 20, 12, 13, 14, 15, 2]) == [3, 1, 4]
    # 13 replaced by 21 and 15 by 22.
    assert blocks_of(source_copy_drafter(1), source, [10, 11, 12, 21, 14, 22, 2]) == [4, 1, 1, 1]


class Rewriting:
    """A model that copies its input but for a word here and there, and what it says."""

    def __init__(self) -> None:
        self.task = make_task(40)
        self.sample = make_sample(self.task, [4, 12, 7, 20, 3, 9, 15, 11])
        self.model = learned_rewriter(self.task, self.sample)
        self.expected = fairseq_greedy([self.model], self.task, self.sample, max_len_b=30)


@pytest.fixture(scope="module")
def rewriting() -> Rewriting:
    return Rewriting()


@pytest.mark.parametrize("lookup", ["unique", "recent"])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_batches_of_a_rewriting_model(rewriting: Rewriting, batch_size: int, lookup: str) -> None:
    source, drafted, stats = rewriting.sample["net_input"], [], []
    for begin in range(0, 8, batch_size):
        net_input = {name: value[begin : begin + batch_size] for name, value in source.items()}
        hypotheses, counted = decode(
            [rewriting.model], rewriting.task, {"net_input": net_input}, Options("iad", iad_lookup=lookup), max_len_b=30
        )
        drafted += hypotheses
        stats += counted
    assert_same_output(drafted, rewriting.expected)
    # A copy up to the changed word, the word after it, the rest.
    assert emitted_per_iteration(stats) > 4
    assert [sentence.iterations for sentence in stats[::2]] == [1, 1, 1, 1]


@pytest.mark.parametrize("lookup", ["unique", "recent"])
@pytest.mark.parametrize(
    "options", [{"drafter_attention": "full"}, {"share_encoder": True}, {"drafter_context": "features"}], ids=str
)
def test_with_a_fallback(lookup: str, options: dict[str, Any]) -> None:
    """A drafter that knows the outputs helps where nothing can be copied: the output stays, iterations are saved."""
    task = make_task(9)
    verifier = make_transformer(task, 3)
    sample = make_sample(task, [4, 0, 12, 7, 20, 3], 3)
    expected = fairseq_greedy([verifier], task, sample, max_len_b=30)
    drafter = learned_drafter(task, verifier, sample, ids(expected), block_size=6, **options)
    alone, copied = decode([verifier], task, sample, Options("iad", iad_lookup=lookup), max_len_b=30)
    helped, stats = decode(
        [verifier], task, sample, Options("iad", 6, iad_fallback="gad", iad_lookup=lookup), drafter, max_len_b=30
    )
    assert_same_output(alone, expected)
    assert_same_output(helped, expected)
    assert emitted_per_iteration(stats) > 1.1 * emitted_per_iteration(copied)
