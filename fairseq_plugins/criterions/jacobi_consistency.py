"""Consistency training: a verifier whose Jacobi iterations (Santilli et al. 2023) converge early."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from fairseq import utils
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import FairseqDecoder
from fairseq.models.transformer import TransformerModelBase
from fairseq.tasks import FairseqTask
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fairseq_plugins.checkpoint.loading import unwrap
from fairseq_plugins.criterions.logged_sums import SummedLoss, add_up, log_losses, log_mean
from fairseq_plugins.decoding.method import option
from fairseq_plugins.decoding.reference.drafters.jacobi import first_window
from fairseq_plugins.decoding.reference.rows import padding_last
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.block_nat import BlockNat

_SUMS = ("loss", "nll_loss", "consistency", "rows", "ntokens", "nsentences", "sample_size", "tokens", "iterations")


@dataclass
class JacobiConsistencyConfig(FairseqDataclass):
    label_smoothing: float = option(0.1, "epsilon of label smoothing, 0 for none")
    consistency_weight: float = option(
        1.0, "weight of a token of the consistency loss, relative to one of the ordinary loss; 0: off"
    )
    trajectory_length: int = option(
        2,
        "states of a Jacobi trajectory from which one is drawn for every batch: the first guess and those "
        "after 1, 2, ... iterations, each a decoder pass without gradient",
    )
    trajectory_block: int = option(0, "tokens after the converged ones that the consistency loss counts; 0: to the end")
    trajectory_init: ChoiceEnum(["unk", "source"]) = option(  # type: ignore[valid-type]
        "unk", "the first guess for every token; decode with the same --jacobi-init"
    )


@register_criterion("jacobi_consistency", dataclass=JacobiConsistencyConfig)
class JacobiConsistency(SummedLoss):
    """Cross-entropy of the targets, and of a Jacobi state's predictions against those at the fixed point.

    The consistency loss is that of Kou et al. 2024 (arXiv 2403.00835): soft targets are the model's own distributions
    at the fixed point, without gradient. Trajectories are computed on the fly. The target serves as fixed point up to
    the first position where the model predicts another token; later positions are left out. Train on the model's own
    translations, where differences are rare.
    """

    def __init__(
        self,
        task: FairseqTask,
        label_smoothing: float,
        consistency_weight: float = 1.0,
        trajectory_length: int = 2,
        trajectory_block: int = 0,
        trajectory_init: str = "unk",
    ) -> None:
        super().__init__(task)
        if not consistency_weight >= 0:
            raise ConfigurationError(
                "--consistency-weight", consistency_weight, remedy="give 0 (ordinary loss alone) or more"
            )
        if trajectory_length < 1:
            raise ConfigurationError("--trajectory-length", trajectory_length, remedy="give at least 1 state")
        if trajectory_block < 0:
            raise ConfigurationError(
                "--trajectory-block", trajectory_block, remedy="give 0 (to the end) or a number of tokens"
            )
        self.label_smoothing = label_smoothing
        self.consistency_weight = consistency_weight
        self.trajectory_length = trajectory_length
        self.trajectory_block = trajectory_block
        self.unk, self.eos = task.target_dictionary.unk(), task.target_dictionary.eos()
        self.from_source = str(trajectory_init) == "source"

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Return the summed loss of a batch, the number of its targets, and the logging output.

        Validation counts Jacobi iterations instead of the consistency loss.

        Raises:
            ConfigurationError: for a drafter or another model than a Transformer, and for PyTorch's
                DistributedDataParallel, which does not see calls of encoder and decoder.
        """
        if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
            problem = "with several workers"
            raise ConfigurationError("--criterion", "jacobi_consistency", problem, "give {--ddp-backend legacy_ddp}")
        net_input, target = sample["net_input"], sample["target"]
        network = unwrap(model)
        if not isinstance(network, TransformerModelBase) or isinstance(network, BlockNat):
            remedy = "give {--arch transformer} or similar"
            raise ConfigurationError("--criterion", "jacobi_consistency", "trains a verifier", remedy)
        source, previous = net_input["src_tokens"], net_input["prev_output_tokens"]
        encoder_out = network.encoder(source, src_lengths=net_input["src_lengths"])
        is_target = target != self.padding_idx
        # Waits for the device, as does choosing rows below; nothing else does.
        targets = is_target.flatten().nonzero()[:, 0]
        scores = _scores(network.decoder, previous, encoder_out, targets)
        log_probs = utils.log_softmax(scores, dim=-1)
        loss, nll_loss = label_smoothed_nll_loss(log_probs, target.flatten()[targets, None], self.label_smoothing)
        logging_output: dict[str, Any] = {
            "nll_loss": nll_loss.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": target.size(0),
            "sample_size": sample["ntokens"],
            # All workers must log the same names.
            **dict.fromkeys(("consistency", "rows", "tokens", "iterations"), 0),
        }
        if not model.training:
            guess = self._first_guess(source, first_window(source))
            tokens, iterations = count_iterations(network.decoder, encoder_out, guess, self.eos, self.padding_idx)
            logging_output |= {"tokens": tokens.sum(), "iterations": iterations.sum()}
        elif self.consistency_weight > 0:
            best = _best_tokens(target, targets, scores.detach(), self.padding_idx)
            converged, state = self._draw_state(network.decoder, source, previous, target, encoder_out, targets)
            rows = consistent_rows(target, best, state, converged, self.padding_idx, self.trajectory_block)
            chosen = rows.flatten()[targets].nonzero()[:, 0]
            if len(chosen):
                shifted = _shifted(previous, state).masked_fill(~is_target, self.padding_idx)
                predicted = utils.log_softmax(_scores(network.decoder, shifted, encoder_out, targets[chosen]), dim=-1)
                consistency = -(log_probs.detach()[chosen].exp() * predicted).sum()
                loss = loss + self.consistency_weight * consistency
                logging_output |= {"consistency": consistency.detach(), "rows": len(chosen)}
        logging_output["loss"] = loss.detach()
        return loss, sample["ntokens"], logging_output

    @torch.no_grad()
    def _draw_state(
        self,
        decoder: FairseqDecoder,
        source: Tensor,
        previous: Tensor,
        target: Tensor,
        encoder_out: Any,
        targets: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Draw the number of converged tokens [B, 1], and a state [B, T] of the trajectory from there.

        `targets` are the indices [n] of the targets in [B * T].
        """
        is_target = target != self.padding_idx
        converged = (torch.rand(len(target), 1, device=target.device) * is_target.sum(1, keepdim=True)).long()
        is_open = is_target & (torch.arange(target.size(1), device=target.device) >= converged)
        state = torch.where(is_open, self._first_guess(source, target.size(1)), target)
        for _ in range(int(torch.randint(self.trajectory_length, ()))):
            shifted = _shifted(previous, state).masked_fill(~is_target, self.padding_idx)
            scores = _scores(decoder, shifted, encoder_out, targets)
            state = torch.where(is_open, _best_tokens(target, targets, scores, self.padding_idx), state)
        return converged, state

    def _first_guess(self, source: Tensor, width: int) -> Tensor:
        """Return the first state [B, width]: unknown words, or the source's tokens and then unknown words."""
        guess = source.new_full((len(source), width), self.unk)
        if self.from_source:
            tokens = source.gather(1, padding_last(source == self.padding_idx))[:, :width]
            guess[:, : tokens.size(1)] = tokens.masked_fill(tokens == self.padding_idx, self.unk)
        return guess

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Log both losses, and in validation the tokens per iteration of Jacobi decoding."""
        total = add_up(logging_outputs, _SUMS)
        log_losses(total, total["sample_size"])
        log_mean("consistency_loss", total["consistency"] / math.log(2), total["rows"])
        if total["iterations"] > 0:
            log_mean("tokens_per_iteration", total["tokens"], total["iterations"])
            log_mean("jacobi_iterations", total["iterations"], total["nsentences"], round=2)


def consistent_rows(target: Tensor, best: Tensor, state: Tensor, converged: Tensor, pad: int, block: int = 0) -> Tensor:
    """Return the positions [B, T] that the consistency loss trains.

    They start after the first wrong token of the state, since earlier predictions equal those at the fixed point. They
    end at the first position where the model does not predict the target: its fixed point differs from there on.

    Args:
        target: [B, T], right-padded.
        best: [B, T], the model's best tokens after those of the target.
        state: [B, T], a state of the trajectory.
        converged: [B, 1], number of tokens that equal the target in every state.
        pad: padding symbol.
        block: number of positions after `converged` to train; 0: all.
    """
    position = torch.arange(target.size(1), device=target.device)
    is_open = (position >= converged) & (target != pad)
    rows = is_open & (_before((state != target) & is_open) > 0) & (_before((best != target) & is_open) == 0)
    return rows & (position < converged + block) if block else rows


@torch.no_grad()
def count_iterations(
    decoder: FairseqDecoder, encoder_out: Any, state: Tensor, eos: int, pad: int
) -> tuple[Tensor, Tensor]:
    """Iterate all positions of `state` [B, W] until EOS has converged; return tokens and iterations [B].

    Counts as `--decoder jacobi` does: an iteration emits the predictions up to the first one that differs from the
    state.
    """
    sentences = torch.arange(len(state), device=state.device)
    tokens, iterations = torch.zeros_like(sentences), torch.zeros_like(sentences)
    is_active = torch.ones_like(sentences, dtype=torch.bool)
    first = state.new_full((len(state), 1), eos)
    everywhere = torch.arange(state.numel(), device=state.device)
    while is_active.any():
        scores = _scores(decoder, _shifted(first, state), encoder_out, everywhere)
        predicted = _best_tokens(state, everywhere, scores, pad)
        length = state.size(1)
        emitted = ((predicted == state).long().cumprod(1).sum(1) + 1).clamp(max=length)
        is_end = predicted == eos
        end = torch.where(is_end.any(1), is_end.long().argmax(1) + 1, length)
        iterations += is_active
        tokens = torch.where(is_active, torch.minimum(emitted, end), tokens)
        is_active &= emitted < end
        state = predicted
    return tokens, iterations


def _shifted(first: Tensor, state: Tensor) -> Tensor:
    """Shift a state [B, T] right: the first column of `first`, then the state without its last column."""
    return torch.cat([first[:, :1], state[:, :-1]], 1)


def _scores(decoder: FairseqDecoder, previous: Tensor, encoder_out: Any, rows: Tensor) -> Tensor:
    """Return scores [n, V] after the tokens `previous` [B, T], at the indices `rows` [n] in [B * T]."""
    features, _ = decoder(previous, encoder_out=encoder_out, features_only=True)
    return decoder.output_layer(features.flatten(0, 1)[rows])


def _best_tokens(like: Tensor, rows: Tensor, scores: Tensor, pad: int) -> Tensor:
    """Return the best tokens, never padding, of scores [n, V] at the indices `rows` of [B, T]; padding elsewhere."""
    best = like.new_full(like.shape, pad)
    best.view(-1)[rows] = scores.index_fill(1, best.new_full((1,), pad), -math.inf).argmax(1)
    return best


def _before(is_event: Tensor) -> Tensor:
    """Return the number of events [B, T] before each position."""
    return is_event.long().cumsum(1) - is_event.long()
