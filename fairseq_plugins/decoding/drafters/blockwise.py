"""Blockwise decoding: heads on the verifier propose the next tokens out of its last verification."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.drafters import DecodingState, Draft, Verdict
from fairseq_plugins.models.blockwise_transformer import BlockwiseTransformer


class BlockwiseDrafter:
    """Proposals of heads 2 .. k, from the verifier's state at the last accepted token (Stern et al. 2018, section 4).

    Verification and the next prediction are one call of the model: its head 1 verifies the proposals, and the state
    that it computed at the bifurcation is what the other heads read.

    Args:
        model: the verifier, with its heads.
        block_size: tokens per iteration, k: at most the number of heads.
    """

    def __init__(self, model: BlockwiseTransformer, block_size: int) -> None:
        self.decoder = model.decoder
        self.block_size = block_size
        self.proposals = torch.empty(0, 0, dtype=torch.long)
        # How many of them are meant, None for all: of sentences that have just come in, none.
        self.widths: Tensor | None = None

    def start(self, sample: dict[str, Any], encoder_out: dict[str, list[Tensor]] | None) -> None:
        # Before the first call of the model there is nothing to propose.
        source = sample["net_input"]["src_tokens"]
        self.proposals = source.new_empty(source.size(0), 0)
        self.widths = None

    def join(self, sample: dict[str, Any], encoder_out: dict[str, list[Tensor]] | None) -> None:
        present, width = self.proposals.shape
        new = sample["net_input"]["src_tokens"].size(0)
        widths = self.proposals.new_full((present,), width) if self.widths is None else self.widths
        self.widths = F.pad(widths, (0, new))
        self.proposals = F.pad(self.proposals, (0, 0, 0, new))

    def draft(self, state: DecodingState) -> Draft:
        proposals = self.proposals[:, : max(0, state.max_len - state.span.shortest)]
        return Draft(proposals, None if self.widths is None else self.widths.clamp(max=proposals.size(1)))

    def observe(self, verdict: Verdict) -> None:
        assert verdict.hidden is not None
        place = verdict.accepted[:, None, None].expand(-1, 1, verdict.hidden.size(2))
        states = self.decoder.head_states(verdict.hidden.gather(1, place)[:, 0], 2, self.block_size)
        self.proposals = self.decoder.project(states).argmax(-1)
        self.widths = None

    def keep(self, rows: Tensor) -> None:
        self.proposals = self.proposals.index_select(0, rows)
        self.widths = None if self.widths is None else self.widths.index_select(0, rows)
