"""Counts of a reliability diagram, by hand."""

import pytest
import torch

from fairseq_plugins.decoding.recording.reliability import Reliability


def test_counts_by_hand() -> None:
    said = torch.tensor([0.95, 0.91, 1.0, 0.55, 0.51, 0.05], dtype=torch.float64)
    counts = Reliability.of(said, torch.tensor([True, True, False, False, True, True]))
    assert counts.total == 6
    assert counts.tokens.tolist() == [1, 0, 0, 0, 0, 2, 0, 0, 0, 3]
    assert counts.right.tolist() == [1, 0, 0, 0, 0, 1, 0, 0, 0, 2]
    lowest, middle, highest = counts.points()
    assert lowest == pytest.approx((0.05, 1, 1))
    assert middle == pytest.approx((0.53, 0.5, 2))
    assert highest == pytest.approx((2.86 / 3, 2 / 3, 3))
    # One token is off by 0.95, two by 0.03, three by 0.86 / 3.
    assert counts.error == pytest.approx((0.95 + 2 * 0.03 + 0.86) / 6)
    assert counts.rows() == [
        ["0 to 0.1", "1", "0.050", "1.000"],
        ["0.5 to 0.6", "2", "0.530", "0.500"],
        ["0.9 to 1", "3", "0.953", "0.667"],
    ]


def test_no_tokens() -> None:
    counts = Reliability.of(torch.zeros(0), torch.zeros(0, dtype=torch.bool))
    assert (counts.total, counts.error, counts.points(), counts.rows()) == (0, 0.0, [], [])
