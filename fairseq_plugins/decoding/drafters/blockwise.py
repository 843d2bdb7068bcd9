"""Blockwise decoding: heads on the verifier propose the next tokens out of its last verification."""

from typing import Any

import torch
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

    def start(self, sample: dict[str, Any], encoder_out: dict[str, list[Tensor]] | None) -> None:
        # Before the first call of the model there is nothing to propose.
        source = sample["net_input"]["src_tokens"]
        self.proposals = source.new_empty(source.size(0), 0)

    def draft(self, state: DecodingState) -> Draft:
        return Draft(self.proposals[:, : max(0, state.max_len - state.span.shortest)])

    def observe(self, verdict: Verdict) -> None:
        assert verdict.hidden is not None
        place = verdict.accepted[:, None, None].expand(-1, 1, verdict.hidden.size(2))
        states = self.decoder.head_states(verdict.hidden.gather(1, place)[:, 0], 2, self.block_size)
        self.proposals = self.decoder.project(states).argmax(-1)

    def keep(self, rows: Tensor) -> None:
        self.proposals = self.proposals.index_select(0, rows)
