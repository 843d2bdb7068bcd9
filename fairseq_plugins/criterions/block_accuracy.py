"""Accuracy by position in a drafter's block, for TensorBoard."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_plugins.criterions.sums import add_up
from fairseq_plugins.data.block_masking import Blocks


def accuracy_by_position(correct: Tensor, blocks: Blocks, pad: int) -> dict[str, Tensor]:
    """Count right predictions at the positions 1, 2, 4, 8 ... k of a block, as sums that workers can add up.

    Args:
        correct: [n], for every target of the blocks whether it was predicted.
        blocks: fully masked blocks; glancing would change n.
        pad: padding symbol.
    """
    is_target = blocks.targets != pad
    position = blocks.draft_positions.expand_as(is_target)[is_target] - 1
    totals = torch.bincount(position, minlength=blocks.block_size)
    rights = torch.bincount(position[correct], minlength=blocks.block_size)
    counts = {}
    for number in shown_positions(blocks.block_size):
        counts[f"correct_at_{number}"] = rights[number - 1]
        counts[f"total_at_{number}"] = totals[number - 1]
    return counts


def shown_positions(block_size: int) -> list[int]:
    """Return the powers of two up to the block size, and the last position."""
    return sorted({1 << power for power in range(block_size.bit_length())} | {block_size})


def accuracies(logging_outputs: Sequence[dict[str, Any]]) -> dict[str, tuple[float, int]]:
    """Return percentage and weight of `accuracy_at_1` and so on, from the sums of `accuracy_by_position`."""
    sums = add_up(logging_outputs, dict.fromkeys(name for log in logging_outputs for name in log if "_at_" in name))
    result = {}
    for name, total in sums.items():
        position = name.removeprefix("total_at_")
        if name != position and total > 0:
            result[f"accuracy_at_{position}"] = (100 * sums[f"correct_at_{position}"] / total, int(total))
    return result
