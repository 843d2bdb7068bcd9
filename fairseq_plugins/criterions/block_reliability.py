"""Calibration of a drafter's probabilities in validation, for TensorBoard."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from fairseq.logging import metrics
from torch import Tensor

from fairseq_plugins.data.block_masking import Blocks
from fairseq_plugins.decoding.recording.reliability import Reliability

# Sums of bins. fairseq hides metrics that begin with an underscore.
_PREFIX = "_reliability_"


def reliability_counts(probabilities: Tensor, correct: Tensor, blocks: Blocks, pad: int) -> dict[str, Tensor]:
    """Count the predictions of a block up to its first wrong one, as sums [BINS] that workers can add up.

    These are the tokens that verification would look at.

    Args:
        probabilities: [n], probability of the prediction for every target of the blocks.
        correct: [n], whether the prediction is the target.
        blocks: fully masked blocks; glancing would change n.
        pad: padding symbol.
    """
    is_target = blocks.targets != pad
    right = torch.zeros_like(is_target)
    right[is_target] = correct
    wrong = (~right).view(len(right), -1, blocks.block_size).long()
    is_reached = (wrong.cumsum(2) - wrong == 0).view_as(right)[is_target]
    counts = Reliability.of(probabilities[is_reached], correct[is_reached])
    return {_PREFIX + name: value for name, value in vars(counts).items()}


def log_reliability(logging_outputs: Sequence[Mapping[str, Any]]) -> None:
    """Log the sums of `reliability_counts`, and `calibration_error` as a number from 0 to 1."""
    for name in Reliability.__dataclass_fields__:
        sums = [log[_PREFIX + name] for log in logging_outputs if _PREFIX + name in log]
        if not sums:
            return
        metrics.log_scalar_sum(_PREFIX + name, sum(sums).cpu())
    metrics.log_derived("calibration_error", _error)


def logged_reliability(meters: Mapping[str, Any]) -> Reliability | None:
    """Return the reliability logged to fairseq's meters, None without any."""
    sums = {name: meters[_PREFIX + name].sum for name in Reliability.__dataclass_fields__ if _PREFIX + name in meters}
    # A meter that was reset has the number 0.
    return Reliability.from_sums(sums) if sums and all(map(torch.is_tensor, sums.values())) else None


def _error(meters: Mapping[str, Any]) -> float:
    reliability = logged_reliability(meters)
    return 0.0 if reliability is None else round(reliability.error, 4)
