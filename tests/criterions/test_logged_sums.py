"""Accuracy by position in a block, and reliability of its probabilities, counted by hand and summed as in fairseq."""

import pytest
import torch
from fairseq.logging import metrics

from fairseq_plugins.criterions.logged_sums import (
    accuracy_by_position,
    log_accuracies,
    log_reliability,
    logged_reliability,
    reliability_counts,
    shown_positions,
)
from fairseq_plugins.data.block_masking import Blocks, sample_blocks

PAD, EOS = 1, 2


def test_accuracy_by_position_by_hand() -> None:
    target = torch.tensor([[5, 6, 7, 8, EOS], [9, EOS, PAD, PAD, PAD]])
    blocks = sample_blocks(target, target, 3, 1, "prefix-causal", pad=PAD, mask=20)
    blocks.targets = torch.tensor([[5, 6, 7], [9, EOS, PAD]])
    correct = torch.tensor([True, False, True, True, True])
    counts = {name: int(count) for name, count in accuracy_by_position(correct, blocks, PAD).items()}
    assert counts == {
        "correct_at_1": 2, "total_at_1": 2, "correct_at_2": 1, "total_at_2": 2, "correct_at_3": 1, "total_at_3": 1,
    }  # fmt: skip
    with metrics.aggregate(new_root=True) as meters:
        log_accuracies(
            [counts, counts, {"loss": 1.0}, {"correct_at_8": torch.tensor(0), "total_at_8": torch.tensor(0)}]
        )
    assert meters.get_smoothed_values() == {"accuracy_at_1": 100.0, "accuracy_at_2": 50.0, "accuracy_at_3": 100.0}


def test_shown_positions() -> None:
    assert [shown_positions(size) for size in (1, 4, 25)] == [[1], [1, 2, 4], [1, 2, 4, 8, 16, 25]]


def two_blocks() -> Blocks:
    """Return two blocks of three for each of two sentences; eight targets."""
    target = torch.tensor([[5, 6, 7, 8, EOS], [9, EOS, PAD, PAD, PAD]])
    blocks = sample_blocks(target, target, 3, 2, "prefix-causal", pad=PAD, mask=20)
    blocks.targets = torch.tensor([[5, 6, 7, 8, EOS, PAD], [9, EOS, PAD, EOS, PAD, PAD]])
    return blocks


SAID = torch.tensor([0.95, 0.55, 0.15, 0.92, 0.35, 0.75, 0.65, 0.05])
# In the first block the third target follows a wrong one; the second block is independent.
RIGHT = torch.tensor([True, False, True, True, False, False, True, True])
REACHED = [0, 1, 3, 4, 5, 7]


def test_counts_up_to_the_first_wrong_token_of_a_block() -> None:
    counts = reliability_counts(SAID, RIGHT, two_blocks(), PAD)
    assert counts["_reliability_tokens"].tolist() == [1, 0, 0, 1, 0, 1, 0, 1, 0, 2]
    assert counts["_reliability_right"].tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    sums = counts["_reliability_probability"]
    assert sums.tolist() == pytest.approx([0.05, 0, 0, 0.35, 0, 0.55, 0, 0.75, 0, 1.87])
    assert sums.sum() == pytest.approx(float(SAID[REACHED].sum()))


def test_counts_of_batches_and_workers_are_summed() -> None:
    """The error is over all tokens, not the mean over batches."""
    other = ~RIGHT
    logs = [reliability_counts(SAID, right, two_blocks(), PAD) for right in (RIGHT, other, RIGHT)]
    with metrics.aggregate(new_root=True) as meters:
        log_reliability(logs[:2])  # of two workers
        log_reliability([{"loss": 1.0}])  # a batch without counts
        log_reliability(logs[2:])
    counts = logged_reliability(meters)
    assert counts.total == sum(int(log["_reliability_tokens"].sum()) for log in logs)
    assert counts.right.sum() == sum(log["_reliability_right"].sum() for log in logs)
    shown = meters.get_smoothed_values()
    assert shown == {"calibration_error": round(counts.error, 4)}
    together = (counts.right - counts.probability).abs().sum() / counts.tokens.sum()
    assert shown["calibration_error"] == pytest.approx(float(together), abs=1e-4)
    meters.reset()
    assert logged_reliability(meters) is None
    assert meters.get_smoothed_values() == {"calibration_error": 0.0}
