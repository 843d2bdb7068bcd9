"""Accuracy by position in a block, counted by hand."""

import pytest
import torch

from fairseq_plugins.criterions.logged_sums import accuracies, accuracy_by_position, shown_positions
from fairseq_plugins.data.block_masking import sample_blocks


def test_accuracy_by_position_by_hand() -> None:
    pad, eos = 1, 2
    target = torch.tensor([[5, 6, 7, 8, eos], [9, eos, pad, pad, pad]])
    blocks = sample_blocks(target, target, 3, 1, "prefix-causal", pad=pad, mask=20)
    blocks.targets = torch.tensor([[5, 6, 7], [9, eos, pad]])
    correct = torch.tensor([True, False, True, True, True])
    counts = {name: int(count) for name, count in accuracy_by_position(correct, blocks, pad).items()}
    assert counts == {
        "correct_at_1": 2, "total_at_1": 2, "correct_at_2": 1, "total_at_2": 2, "correct_at_3": 1, "total_at_3": 1,
    }  # fmt: skip
    assert accuracies([counts, counts]) == {
        "accuracy_at_1": (100.0, 4), "accuracy_at_2": (50.0, 4), "accuracy_at_3": (100.0, 2),
    }  # fmt: skip


def test_positions_without_a_target_are_left_out() -> None:
    assert accuracies([{"correct_at_8": torch.tensor(0), "total_at_8": torch.tensor(0)}]) == {}
    assert accuracies([{"loss": 1.0}]) == {}


@pytest.mark.parametrize(("size", "positions"), [(1, [1]), (4, [1, 2, 4]), (25, [1, 2, 4, 8, 16, 25])])
def test_shown_positions(size: int, positions: list[int]) -> None:
    assert shown_positions(size) == positions
