"""Accuracy by position in a block, counted by hand and summed as in fairseq."""

import torch
from fairseq.logging import metrics

from fairseq_plugins.criterions.logged_sums import accuracy_by_position, log_accuracies
from fairseq_plugins.data.block_masking import sample_blocks

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
