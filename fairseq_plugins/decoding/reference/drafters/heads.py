"""The drafter of blockwise decoding: heads on the verifier draft the next tokens from its last verification."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.reference.drafters import Drafter
from fairseq_plugins.decoding.reference.encoder import EncoderOut
from fairseq_plugins.decoding.reference.sampling import Sampling
from fairseq_plugins.decoding.reference.state import Advance, DecodingState, Draft
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
        self.proposals = torch.empty(0, 0, dtype=torch.long)
        # Number of valid proposals, None for all; 0 for newly admitted sentences.
        self.num_proposed: Tensor | None = None
        self.noise_keys: Tensor | None = None

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        # Proposals need a first call of the model.
        source = sample["net_input"]["src_tokens"]
        self.proposals = source.new_empty(source.size(0), 0)
        self.num_proposed = None

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        present, width = self.proposals.shape
        new = sample["net_input"]["src_tokens"].size(0)
        counts = self.proposals.new_full((present,), width) if self.num_proposed is None else self.num_proposed
        self.num_proposed = F.pad(counts, (0, new))
        self.proposals = F.pad(self.proposals, (0, 0, 0, new))

    def draft(self, state: DecodingState) -> Draft:
        self.noise_keys = state.noise_keys
        proposals = self.proposals[:, : max(0, state.remaining)]
        return Draft(proposals, None if self.num_proposed is None else self.num_proposed.clamp(max=proposals.size(1)))

    def observe(self, advance: Advance) -> None:
        assert advance.hidden is not None
        states = self.decoder.head_states(advance.last(advance.hidden)[:, 0], 2, self.block_size)
        scores = self.decoder.project(states)
        self.proposals = scores.argmax(-1) if self.sampling is None else self._sample(advance, scores, self.sampling)
        self.num_proposed = None

    def _sample(self, advance: Advance, scores: Tensor, sampling: Sampling) -> Tensor:
        """Draw proposals [B, K] by scores [B, K, V] with the verifier's noise at their positions."""
        assert self.noise_keys is not None
        first = (advance.before + advance.num_emitted)[:, None]
        positions = first + torch.arange(scores.size(1), device=scores.device)
        scores = scores / sampling.temperature
        noise = sampling.noise(self.noise_keys, positions, scores.size(2))
        return sampling.choose(noise, sampling.normaliser(scores))(scores)

    def select_rows(self, rows: Tensor) -> None:
        self.proposals = self.proposals.index_select(0, rows)
        self.num_proposed = None if self.num_proposed is None else self.num_proposed.index_select(0, rows)
