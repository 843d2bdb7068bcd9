"""The drafter's loss: label-smoothed cross-entropy over masked blocks, after glancing."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from fairseq import utils
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from fairseq_plugins.criterions.logged_sums import (
    SummedLoss,
    accuracy_by_position,
    add_up,
    log_accuracies,
    log_losses,
    log_mean,
)
from fairseq_plugins.decoding.method import option
from fairseq_plugins.errors import ConfigurationError

# Sums that workers add up; everything logged is derived from them.
_SUMS = (
    *("loss", "nll_loss", "ntokens", "nsentences", "sample_size", "targets"),
    *("correct", "glanced_correct", "glanced_total", "glancing_ratio", "verifier_nll"),
)


@dataclass
class GlatLossConfig(FairseqDataclass):
    label_smoothing: float = option(0.1, "epsilon of label smoothing, 0 for none (GAD Table 10: 0.1)")
    position_decay: float = option(
        0.0,
        "GAMMA of the weight exp(-(i-1)/GAMMA) of the i-th token of a draft, which counts only if all "
        "before it are right (DFlash); 0: equal weights",
    )
    verifier_loss: float = option(
        1.0, "with --tune-verifier: weight of a token of the verifier's loss, relative to one of the drafter's"
    )


@register_criterion("glat_loss", dataclass=GlatLossConfig)
class GlatLoss(SummedLoss):
    """Cross-entropy of a drafter's blocks (GAD section 3.1) with glancing (Qian et al. 2021).

    The loss is a sum, and `sample_size` the sum of the targets' weights (their number without a decay). fairseq
    divides the gradient by its total over `--update-freq` and all workers, so that gradients do not depend on how a
    batch is split.
    """

    def __init__(
        self, task: FairseqTask, label_smoothing: float, position_decay: float = 0.0, verifier_loss: float = 1.0
    ) -> None:
        super().__init__(task, label_smoothing)
        if not 0 <= position_decay < math.inf:
            raise ConfigurationError("--position-decay", position_decay, remedy="give 0 (no decay) or more")
        if not 0 <= verifier_loss < math.inf:
            remedy = "give 0 (the drafter's loss alone) or more"
            raise ConfigurationError("--verifier-loss", verifier_loss, remedy=remedy)
        self.position_decay = position_decay
        self.verifier_loss = verifier_loss

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int | Tensor, dict[str, Any]]:
        """Compute the loss of a batch to which the task added `blocks` and `glancing_ratio`.

        Returns:
            the summed loss, the sum of the targets' weights, and the logging output.
        """
        net_input = sample["net_input"]
        output = model(
            src_tokens=net_input["src_tokens"],
            src_lengths=net_input["src_lengths"],
            blocks=sample["blocks"],
            glancing_ratio=sample["glancing_ratio"],
        )
        targets = output["targets"]
        log_probs = utils.log_softmax(output["logits"], dim=-1)
        loss, nll_loss = self._token_losses(log_probs, targets)
        sample_size: int | Tensor = targets.numel()
        if self.position_decay > 0:
            weight = torch.exp((1 - output["draft_positions"]) / self.position_decay)
            loss, sample_size = loss * weight, weight.sum()
        loss, nll_loss = loss.sum(), nll_loss.sum()
        verifier_nll = nll_loss.new_zeros(())
        if "verifier_logits" in output:
            of_verifier = utils.log_softmax(output["verifier_logits"], dim=-1).flatten(0, 1)
            verifier_loss, verifier_nll = map(torch.sum, self._token_losses(of_verifier, sample["target"].flatten()))
            loss = loss + self.verifier_loss * sample_size / sample["ntokens"] * verifier_loss
        correct = log_probs.argmax(-1) == targets
        logging_output = {
            "loss": loss.detach(),
            "nll_loss": nll_loss.detach(),
            "verifier_nll": verifier_nll.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["target"].size(0),
            "sample_size": sample_size,
            "targets": targets.numel(),
            "correct": correct.sum(),
            "glanced_correct": output["glanced_correct"],
            "glanced_total": output["glanced_total"],
            "glancing_ratio": sample["glancing_ratio"] * sample["target"].size(0),
        }
        if not model.training and sample["glancing_ratio"] == 0:  # every target was predicted
            logging_output |= accuracy_by_position(correct, sample["blocks"], self.padding_idx)
        return loss, sample_size, logging_output

    def _token_losses(self, log_probs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the label-smoothed and the plain loss of each target, both [n], from log_probs [n, V]."""
        losses = label_smoothed_nll_loss(
            log_probs, targets[:, None], self.label_smoothing, ignore_index=self.padding_idx, reduce=False
        )
        loss, nll_loss = (loss.squeeze(1) for loss in losses)
        return loss, nll_loss

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Log loss, accuracy of the masked tokens, and glancing."""
        total = add_up(logging_outputs, _SUMS)
        log_losses(total, total["targets"])
        if total["verifier_nll"] > 0:
            log_mean("verifier_nll_loss", total["verifier_nll"] / math.log(2), total["ntokens"])
        log_mean("accuracy", 100 * total["correct"], max(total["targets"], 1), round=2)
        log_accuracies(logging_outputs)
        if total["glanced_total"] > 0:
            log_mean("glancing_accuracy", 100 * total["glanced_correct"], total["glanced_total"], round=2)
            log_mean("glancing_ratio", total["glancing_ratio"], total["nsentences"])
