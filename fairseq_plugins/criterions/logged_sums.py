"""Sums that losses log, for workers to add up: among them accuracy by position in a block."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from fairseq import utils
from fairseq.criterions import FairseqCriterion
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask
from torch import Tensor

from fairseq_plugins.data.block_masking import Blocks
from fairseq_plugins.errors import ConfigurationError


class SummedLoss(FairseqCriterion):
    """A loss with label smoothing whose logs are sums, which workers add up.

    Raises ConfigurationError for a `label_smoothing` outside of [0, 1).
    """

    def __init__(self, task: FairseqTask, label_smoothing: float) -> None:
        super().__init__(task)
        if not 0 <= label_smoothing < 1:
            remedy = "give a number from 0 to below 1"
            raise ConfigurationError("--label-smoothing", label_smoothing, remedy=remedy)
        self.label_smoothing = label_smoothing

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


def counted_positions(block_size: int) -> list[int]:
    """Return the positions 1, 2, 4, 8 ... and k of a block of k."""
    return sorted({1 << power for power in range(block_size.bit_length())} | {block_size})


def accuracy_by_position(correct: Tensor, blocks: Blocks, pad: int) -> dict[str, Tensor]:
    """Count right predictions at `counted_positions`, as sums that workers can add up.

    `correct` [n] says for every target of the blocks whether it was predicted. The blocks are fully masked: glancing
    would change n.
    """
    is_target = blocks.targets != pad
    position = blocks.draft_positions.expand_as(is_target)[is_target] - 1
    totals = torch.bincount(position, minlength=blocks.block_size)
    rights = torch.bincount(position[correct], minlength=blocks.block_size)
    counts = {}
    for number in counted_positions(blocks.block_size):
        counts[f"correct_at_{number}"] = rights[number - 1]
        counts[f"total_at_{number}"] = totals[number - 1]
    return counts


def log_accuracies(logging_outputs: Sequence[Mapping[str, Any]]) -> None:
    """Log `accuracy_X` in percent for all sums `correct_X` and `total_X`, such as those of `accuracy_by_position`."""
    names = dict.fromkeys(name for log in logging_outputs for name in log if name.startswith(("correct_", "total_")))
    sums = add_up(logging_outputs, names)
    for kind in [name.removeprefix("total_") for name in names if name.startswith("total_")]:
        log_mean(f"accuracy_{kind}", 100 * sums[f"correct_{kind}"], sums[f"total_{kind}"], round=2)
