"""Sums that losses log, for workers to add up: among them accuracy by position in a block, and calibration."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from fairseq import utils
from fairseq.criterions import FairseqCriterion
from fairseq.logging import metrics
from torch import Tensor

from fairseq_plugins.data.block_masking import Blocks
from fairseq_plugins.decoding.recording.reliability import Reliability


class SummedLoss(FairseqCriterion):
    """A loss whose logs are sums, which workers add up."""

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def log_mean(name: str, total: float, count: float, round: int = 3) -> None:
    """Log a mean, weighted by its count, if there is any; `round` is the number of decimals."""
    if count > 0:
        metrics.log_scalar(name, total / count, count, round=round)


def log_losses(total: Mapping[str, float], targets: float) -> None:
    """Log `loss` per unit of the sample size and `nll_loss` per target, in bits, and the perplexity."""
    log_mean("loss", total["loss"] / math.log(2), max(total["sample_size"], 1))
    log_mean("nll_loss", total["nll_loss"] / math.log(2), max(targets, 1))
    metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["nll_loss"].avg))


def add_up(logging_outputs: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, float]:
    """Return the sums of these entries on the host, 0 for missing ones; waits for the device once."""
    sums: dict[str, Any] = {name: sum(log.get(name, 0) for log in logging_outputs) for name in names}
    on_device = [name for name, value in sums.items() if torch.is_tensor(value)]
    if on_device:
        values = torch.stack([sums[name].double() for name in on_device]).tolist()
        sums.update(zip(on_device, values, strict=True))
    return sums


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


def log_accuracies(logging_outputs: Sequence[Mapping[str, Any]]) -> None:
    """Log `accuracy_X` in percent for all sums `correct_X` and `total_X`, such as those of `accuracy_by_position`."""
    names = dict.fromkeys(name for log in logging_outputs for name in log if name.startswith(("correct_", "total_")))
    sums = add_up(logging_outputs, names)
    for kind in [name.removeprefix("total_") for name in names if name.startswith("total_")]:
        log_mean(f"accuracy_{kind}", 100 * sums[f"correct_{kind}"], sums[f"total_{kind}"], round=2)


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
