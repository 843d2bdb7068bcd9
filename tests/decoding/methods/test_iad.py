"""Input-guided aggressive decoding: what is copied, and who helps out."""

from fairseq_plugins.decoding.methods.iad import source_copy_drafter
from tests.decoding.methods.without_model import blocks_of, drafts_of


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
