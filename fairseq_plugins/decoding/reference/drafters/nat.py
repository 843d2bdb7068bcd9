"""The trained drafter of GAD and SpecDec: a non-autoregressive model that fills a block of masks in one pass."""

from typing import Any

import torch
from torch import Tensor

from fairseq_plugins.decoding.reference.captured.graphed_encoder import fused_encoder
from fairseq_plugins.decoding.reference.captured.graphed_masked_decoder import masked_decoder
from fairseq_plugins.decoding.reference.drafters import Drafter
from fairseq_plugins.decoding.reference.drafters.path import DraftOptions
from fairseq_plugins.decoding.reference.encoder import EncoderOut
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.layout import Chain, Span
from fairseq_plugins.decoding.reference.state import Advance, DecodingState, Draft, no_draft
from fairseq_plugins.models.block_nat import BlockNat


class NatDrafter(Drafter):
    """Draft `block_size` tokens with a `block_nat` model (GAD section 3.1, SpecDec section 3.1).

    With prefix-causal attention the drafter caches accepted tokens: an iteration runs the newly emitted tokens and the
    masks only. With full attention every iteration runs the whole prefix. `without_verifier` it decodes alone, and no
    verifier adds a token after the draft.
    """

    def __init__(
        self,
        model: BlockNat,
        block_size: int,
        engine: Engine,
        options: DraftOptions,
        without_verifier: bool = False,
    ) -> None:
        self.model = model
        self.engine = engine
        self.block_size = block_size
        self.without_verifier = without_verifier
        self.mask_id = model.decoder.mask_id
        self.caches_prefix = model.decoder.drafter_attention == "prefix-causal"
        # A shared encoder belongs to the verifier, which runs it.
        is_shared = model.shares_encoder and not without_verifier
        self.encoder = None if is_shared else fused_encoder(model.encoder, engine)
        self.decoder = masked_decoder(model.decoder, engine, block_size, options)
        # Valid slots of the drafter's cache, and the most tokens of a sentence that are not cached.
        self.lengths = torch.empty(0, dtype=torch.long)
        self.span = Span(0, 0)
        self.num_uncached = 1

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        self.decoder.start(self._encode(sample, encoder_out))
        source = sample["net_input"]["src_tokens"]
        self.lengths = torch.zeros(source.size(0), dtype=torch.long, device=source.device)
        self.span = Span(0, 0)
        self.num_uncached = 1

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        self.decoder.append_rows(self._encode(sample, encoder_out))
        new = sample["net_input"]["src_tokens"].size(0)
        self.lengths = torch.cat([self.lengths, self.lengths.new_zeros(new)])
        self.span = Span(0, self.span.longest)
        self.num_uncached = max(self.num_uncached, 1)

    def draft(self, state: DecodingState) -> Draft:
        span = state.span
        width = min(self.block_size, state.remaining + self.without_verifier)
        if width <= 0:
            return no_draft(state)
        # Input of every sentence: its uncached tokens, then the masks.
        num_uncached = self.num_uncached if self.caches_prefix else span.longest + 1
        lengths = state.lengths[:, None]
        # An ended row has no uncached token. It runs its last one again, because a block must follow a token.
        first = self.lengths[:, None].minimum(lengths)
        slot = first + torch.arange(num_uncached + width, device=state.tokens.device)
        known = state.tokens.gather(1, slot.clamp(max=state.tokens.size(1) - 1))
        is_mask = slot > lengths
        tokens = known.masked_fill(is_mask, self.mask_id)
        # Another row may have more tokens left: what a row sees does not depend on it.
        visible = (lengths + width).clamp(max=state.max_len + self.without_verifier)
        if self.caches_prefix:
            visible = torch.where(is_mask, visible, slot)
        layout = Chain(slot[:, 0], self.span, slot.size(1), visible.expand_as(slot))
        draft = self.decoder.draft(width, [tokens], layout, ends=state.lengths, keys=state.noise_keys)
        if self.caches_prefix:
            self.lengths = state.lengths + 1
            self.span = Span(span.shortest + 1, span.longest + 1)
            self.num_uncached = 0
        return draft

    def observe(self, advance: Advance) -> None:
        self.num_uncached += advance.tokens.size(1)

    def select_rows(self, rows: Tensor) -> None:
        self.lengths = self.lengths.index_select(0, rows)
        self.decoder.select_rows(rows)

    def _encode(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> EncoderOut:
        """Return the verifier's encoder output if the drafter shares it, else that of the drafter's encoder."""
        if self.encoder is not None:
            return self.encoder(sample["net_input"])
        assert encoder_out is not None
        return encoder_out
