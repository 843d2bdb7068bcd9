"""Edits between a sentence and its correction, against examples by hand and against the edit distance."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from fairseq_plugins.metrics.edits import EditCounts, compare_edits, corpus_edits, edits_between
from tests.strategies import DETERMINISTIC, example_count


def edits(source: str, target: str) -> list[tuple[int, int, str]]:
    return [(begin, end, " ".join(words)) for begin, end, words in edits_between(source.split(), target.split())]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("a b c", "a b c", []),
        ("", "", []),
        ("a b c", "a x c", [(1, 2, "x")]),
        ("a b c", "a c", [(1, 2, "")]),
        ("a c", "a b c", [(1, 1, "b")]),
        ("a", "", [(0, 1, "")]),
        ("", "a b", [(0, 0, "a b")]),
        # Adjacent operations are one edit.
        ("a b c d", "a x y d", [(1, 3, "x y")]),
        ("a b c d", "x b c y", [(0, 1, "x"), (3, 4, "y")]),
        ("a b c d", "a x y z d", [(1, 3, "x y z")]),
        # Of two equal words the first is matched from the left.
        ("a a b", "a b", [(1, 2, "")]),
        ("a b", "a a b", [(1, 1, "a")]),
        (
            "As a result , people have more time to enjoy advantage of modern life .",
            "As a result , people have more time to enjoy the advantages of modern life .",
            [(10, 11, "the advantages")],
        ),
        ("Він є єдиний лікар в місті .", "Він — єдиний лікар у місті .", [(1, 2, "—"), (4, 5, "у")]),
    ],
)
def test_edits_by_hand(source: str, target: str, expected: list[tuple[int, int, str]]) -> None:
    assert edits(source, target) == expected


WORDS = st.lists(st.sampled_from("abcd"), max_size=9)


@settings(DETERMINISTIC, max_examples=example_count(150))
@given(source=WORDS, target=WORDS)
def test_edits_turn_the_source_into_the_target(source: list[str], target: list[str]) -> None:
    edits = edits_between(source, target)
    result, place, cost = [], 0, 0
    for begin, end, words in edits:
        result += source[place:begin] + list(words)
        place, cost = end, cost + max(end - begin, len(words))
    assert result + source[place:] == target
    assert cost == Levenshtein.distance(source, target)
    assert all(before[1] < after[0] for before, after in zip(edits, edits[1:], strict=False))


def test_f_measure_by_hand() -> None:
    # 2 of 3 edits right, 2 of 5 found: P = 2/3, R = 2/5, F0.5 = 1.25 * 4/15 / (1/6 + 2/5).
    counts = EditCounts(right=2, wrong=1, missed=3)
    assert counts.precision == pytest.approx(2 / 3) and counts.recall == pytest.approx(2 / 5)
    assert counts.f() == pytest.approx((1.25 * 4 / 15) / (1 / 6 + 2 / 5))
    assert counts.f(1.0) == pytest.approx(0.5)
    # No edits needed and none made: perfect. Edits needed and none made: recall 0.
    assert EditCounts().f() == 1.0
    assert EditCounts(missed=2).f() == 0.0 and EditCounts(missed=2).precision == 1.0
    assert EditCounts(wrong=2).f() == 0.0


def test_same_words_elsewhere_are_another_edit() -> None:
    source = "a b a b".split()
    counts = compare_edits(edits_between(source, "x b a b".split()), edits_between(source, "a b x b".split()))
    assert counts == EditCounts(right=0, wrong=1, missed=1)


def test_corpus_by_hand() -> None:
    sources = ["he go to school", "she have cat", "all is well"]
    hypotheses = ["he goes to school", "she has cat", "all is good"]
    references = ["he goes to the school", "she has a cat", "all is well"]
    # 1: "goes" right, "the" missed. 2: "has" for "have", where the reference has "has a": wrong, and missed. 3: wrong.
    lines = [[line.split() for line in text] for text in (sources, hypotheses, references)]
    assert corpus_edits(lines[0], lines[1], [lines[2]]) == EditCounts(right=1, wrong=2, missed=2)
    # A second reference agrees with the second and third sentences and is used for these.
    second = [line.split() for line in ("he went to school", "she has cat", "all is good")]
    assert corpus_edits(lines[0], lines[1], [lines[2], second]) == EditCounts(right=3, wrong=0, missed=1)
    with pytest.raises(ValueError, match="zip"):
        corpus_edits(lines[0], lines[1][:2], [lines[2]])
