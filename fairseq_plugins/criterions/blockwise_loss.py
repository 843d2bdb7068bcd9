"""Loss of the heads of blockwise decoding: of one head drawn per batch, or the mean over all."""

import math
import operator
from dataclasses import dataclass
from typing import Any

import torch
from fairseq import utils
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from fairseq_plugins.checkpoint.loading import unwrap
from fairseq_plugins.criterions.logged_sums import SummedLoss, add_up, log_accuracies, log_losses
from fairseq_plugins.decoding.method import option
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.blockwise_transformer import BlockwiseTransformer


@dataclass
class BlockwiseLossConfig(FairseqDataclass):
    label_smoothing: float = option(0.1, "epsilon of label smoothing, 0 for none")
    head_loss: ChoiceEnum(["sampled", "mean"]) = option(  # type: ignore[valid-type]
        "sampled",
        "sampled = the loss of one head, drawn for every batch (Stern et al. 2018, section 6); mean = of all heads",
    )
    first_head_weight: float = option(
        1.0,
        "the loss of head 1, which decides the output, counts this many times (sampled: it is drawn this "
        "many times as often); k - 1 gives it half of the loss",
    )


@register_criterion("blockwise_loss", dataclass=BlockwiseLossConfig)
class BlockwiseLoss(SummedLoss):
    """Cross-entropy of the heads p_1 .. p_k; head i predicts the i-th next token (Stern et al. 2018, section 6).

    With a frozen base and an identity first head, head 1 has no weights to train: heads 2 .. k are trained.
    """

    def __init__(self, task: FairseqTask, label_smoothing: float, head_loss: str, first_head_weight: float) -> None:
        super().__init__(task, label_smoothing)
        if not 0 < first_head_weight < math.inf:
            raise ConfigurationError("--first-head-weight", first_head_weight, remedy="give a number above 0")
        self.head_loss = str(head_loss)
        self.first_head_weight = first_head_weight

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, float, dict[str, Any]]:
        """Return the summed loss of a batch, the number of targets of the trained heads, and the logging output."""
        net_input, target = sample["net_input"], sample["target"]
        blockwise = unwrap(model)
        assert isinstance(blockwise, BlockwiseTransformer)
        first = 2 if blockwise.base_is_frozen and blockwise.decoder.identity_first_head else 1
        heads = list(range(first, blockwise.decoder.heads + 1))
        # Not model.training: a frozen base stays in eval mode while its heads are trained.
        weights = [self.first_head_weight if head == 1 else 1.0 for head in heads]
        if self.head_loss == "sampled" and torch.is_grad_enabled():
            drawn = int(torch.multinomial(torch.tensor(weights), 1))
            heads, weights = [heads[drawn]], [1.0]
        logging_output: dict[str, Any] = {"ntokens": sample["ntokens"], "nsentences": target.size(0)}
        # Position t of head i predicts target t + i - 1, if the sentence has one.
        padded = torch.nn.functional.pad(target, (0, heads[-1] - 1), value=self.padding_idx)
        shifted = [padded[:, head - 1 : head - 1 + target.size(1)].flatten() for head in heads]
        is_target = torch.stack(shifted) != self.padding_idx
        sizes = is_target.sum(1).tolist()
        positions = is_target.nonzero()[:, 1].split(sizes)
        all_scores = model(**net_input, heads=heads, positions=positions)
        losses = []
        for head, scores, of_head, chosen in zip(heads, all_scores, shifted, positions, strict=True):
            targets = of_head[chosen]
            losses.append(label_smoothed_nll_loss(utils.log_softmax(scores, dim=-1), targets, self.label_smoothing))
            if not torch.is_grad_enabled():
                logging_output[f"correct_{head}"] = (scores.argmax(-1) == targets).sum()
                logging_output[f"total_{head}"] = len(targets)
        loss, nll_loss = (sum(map(operator.mul, weights, of_heads)) for of_heads in zip(*losses, strict=True))
        size = sum(map(operator.mul, weights, sizes))
        logging_output.update(loss=loss.detach(), nll_loss=nll_loss.detach(), sample_size=size)
        return loss, size, logging_output

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Log the loss, and in validation the accuracy of every head."""
        total = add_up(logging_outputs, ("loss", "nll_loss", "sample_size"))
        log_losses(total, total["sample_size"])
        log_accuracies(logging_outputs)
