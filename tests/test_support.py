"""Comparisons with fairseq's search leave out what only rounding decides."""

import pytest
import torch

from tests.decoding.native.test_rules import with_fixed_scores
from tests.support import assert_same_hypotheses, fairseq_beam, make_sample, make_task, make_transformer


@pytest.mark.parametrize(("gap", "is_tie"), [(2e-6, True), (1e-3, False)])
def test_only_near_ties_may_be_decided_otherwise(gap: float, is_tie: bool) -> None:
    """Words 5 and 6 are nearly as likely as each other."""
    task = make_task(10)
    sample = make_sample(task, [3, 2])

    def hypotheses(first: int, second: int) -> list:
        scores = torch.tensor([-9.0, -9, -3, -9, -1, -2, -4, -5, -6, -7])
        scores[first], scores[second] = 0, -gap
        return fairseq_beam([with_fixed_scores(make_transformer(task, 1), scores)], task, sample, 1, max_len_b=3)

    ours, theirs = hypotheses(5, 6), hypotheses(6, 5)
    assert ours[0][0]["tokens"].tolist() != theirs[0][0]["tokens"].tolist()
    assert_same_hypotheses(theirs, theirs)
    if is_tie:
        assert_same_hypotheses(ours, theirs)
    else:
        with pytest.raises(AssertionError):
            assert_same_hypotheses(ours, theirs)
