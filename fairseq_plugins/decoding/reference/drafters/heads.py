"""The drafter of blockwise decoding: heads on the verifier draft the next tokens from its last verification."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.reference.drafters import Drafter
from fairseq_plugins.decoding.reference.encoder import EncoderOut
from fairseq_plugins.decoding.reference.sampling import Sampling
from fairseq_plugins.decoding.reference.state import Advance, DecodingState, Draft, no_draft
from fairseq_plugins.models.blockwise_transformer import BlockwiseTransformer


class BlockwiseDrafter(Drafter):
    """Drafts with heads 2 .. `block_size` from the verifier's state at the last accepted token (Stern, section 4).

    Verification and the next draft take one call of the model: head 1 verifies the proposals, and the other heads read
    the state at the bifurcation.
    """

    def __init__(self, model: BlockwiseTransformer, block_size: int, sampling: Sampling | None = None) -> None:
        self.decoder = model.decoder
        self.sampling = sampling
        self.block_size = block_size
        # The verifier's states [B, D] that predicted the last tokens, None before the first call of the model.
        self.hidden: Tensor | None = None
        # Whether a sentence has a state [B], None if all have; newly admitted ones have none.
        self.has_state: Tensor | None = None

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        self.hidden = self.has_state = None

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        if self.hidden is None:
            return
        present, new = self.hidden.size(0), sample["net_input"]["src_tokens"].size(0)
        has_state = self.hidden.new_ones(present, dtype=torch.bool) if self.has_state is None else self.has_state
        self.has_state = F.pad(has_state, (0, new))
        self.hidden = F.pad(self.hidden, (0, 0, 0, new))

    def draft(self, state: DecodingState) -> Draft:
        width = min(self.block_size - 1, state.remaining)
        if self.hidden is None or width <= 0:
            return no_draft(state)
        scores = self.decoder.project(self.decoder.head_states(self.hidden, 2, width + 1))
        proposals = scores.argmax(-1) if self.sampling is None else self._sample(state, scores, self.sampling)
        return Draft(proposals, None if self.has_state is None else width * self.has_state)

    def observe(self, advance: Advance) -> None:
        assert advance.hidden is not None
        self.hidden, self.has_state = advance.last(advance.hidden)[:, 0], None

    @staticmethod
    def _sample(state: DecodingState, scores: Tensor, sampling: Sampling) -> Tensor:
        """Draw proposals [B, K] by scores [B, K, V] with the verifier's noise at their positions."""
        assert state.noise_keys is not None
        positions = state.lengths[:, None] + torch.arange(scores.size(1), device=scores.device)
        scores = scores / sampling.temperature
        noise = sampling.noise(state.noise_keys, positions, scores.size(2))
        return sampling.choose(noise, sampling.normaliser(scores))(scores)

    def select_rows(self, rows: Tensor) -> None:
        self.hidden = None if self.hidden is None else self.hidden.index_select(0, rows)
        self.has_state = None if self.has_state is None else self.has_state.index_select(0, rows)
