"""The trained drafter of GAD and SpecDec: a non-autoregressive model that fills a block of masks in one pass."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fairseq_plugins.decoding.drafters.masked_decoder import DraftOptions, MaskedDecoder
from fairseq_plugins.decoding.drafters.path import draft_maker
from fairseq_plugins.decoding.engine.encoder import EncoderOut, FusedEncoder
from fairseq_plugins.decoding.engine.engine import Engine
from fairseq_plugins.decoding.engine.layout import Chain, Span
from fairseq_plugins.decoding.state import Advance, DecodingState, Draft, no_draft
from fairseq_plugins.models.block_nat import BlockNat


class NatDrafter:
    """Draft `block_size` tokens with a `block_nat` model (GAD section 3.1, SpecDec section 3.1).

    With prefix-causal attention the accepted tokens stay in the drafter's cache, and an iteration runs only the
    newly accepted tokens and the masks; with full attention the whole prefix runs again every time.

    Args:
        model: the drafter.
        block_size: tokens per draft, k; `width` may be set to fewer of the next ones.
        engine: what it runs on.
        options: how to draft.
        alone: no verifier adds a token of its own after the draft.
    """

    def __init__(
        self,
        model: BlockNat,
        block_size: int,
        engine: Engine,
        options: DraftOptions | None = None,
        alone: bool = False,
    ) -> None:
        options = options or DraftOptions(keep_log_probs=alone)
        self.model = model
        self.engine = engine
        self.block_size = self.width = block_size
        self.alone = alone
        self.mask_id = model.decoder.mask_id
        self.caches_prefix = model.decoder.drafter_attention == "prefix-causal"
        self.decoder = MaskedDecoder(model.decoder, engine, options.vocabulary)
        scored = self.decoder.cached.vocabulary
        self.make_draft = draft_maker(model.decoder, self.decoder.project, options, scored)
        # Valid slots of the drafter's cache, and the most that it lacks of any sentence's tokens.
        self.lengths = torch.empty(0, dtype=torch.long)
        self.span = Span(0, 0)
        self.lacking = 1

    @cached_property
    def encoder(self) -> FusedEncoder:
        """The model's encoder, read when it is needed: a shared one has been read for the verifier."""
        return FusedEncoder(self.model.encoder, self.engine)

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        self.decoder.start(self._encode(sample, encoder_out))
        source = sample["net_input"]["src_tokens"]
        self.lengths = torch.zeros(source.size(0), dtype=torch.long, device=source.device)
        self.span = Span(0, 0)
        self.lacking = 1

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        self.decoder.append_rows(self._encode(sample, encoder_out))
        new = sample["net_input"]["src_tokens"].size(0)
        self.lengths = torch.cat([self.lengths, self.lengths.new_zeros(new)])
        self.span = Span(0, self.span.longest)
        self.lacking = max(self.lacking, 1)

    def draft(self, state: DecodingState) -> Draft:
        span = state.span
        width = min(self.width, state.max_len - span.shortest + self.alone)
        if width <= 0:
            return no_draft(state)
        # Input of every sentence: what its cache lacks, up to the last token, then the masks.
        aligned = self.span.uniform and span.uniform
        if aligned:
            tokens, slot = self._aligned_input(state, width)
        else:
            tokens, slot = self._ragged_input(state, width)
        lengths = state.lengths[:1, None] if aligned else state.lengths[:, None]
        visible = torch.where(slot <= lengths, slot if self.caches_prefix else lengths + width, lengths + width)
        hidden = self.decoder.step(tokens, Chain(self.lengths, self.span, tokens.size(1), visible))
        if aligned:
            hidden = hidden[:, -width:]
        else:
            first = (lengths + 1 - self.lengths[:, None])[:, :, None]
            columns = first + torch.arange(width, device=slot.device)[:, None]
            hidden = hidden.gather(1, columns.expand(-1, -1, hidden.size(2)))
        if self.caches_prefix:
            self.lengths = state.lengths + 1
            self.span = Span(span.shortest + 1, span.longest + 1)
            self.lacking = 0
        return self.make_draft(hidden, state)

    def observe(self, advance: Advance) -> None:
        self.lacking += advance.tokens.size(1)

    def select_rows(self, rows: Tensor) -> None:
        self.lengths = self.lengths.index_select(0, rows)
        self.decoder.select_rows(rows)

    def _encode(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> EncoderOut:
        """The verifier's encoder output where it is shared and there is one, else that of the drafter's own."""
        if self.model.shares_encoder and encoder_out is not None:
            return encoder_out
        return self.encoder(sample["net_input"])

    def _aligned_input(self, state: DecodingState, width: int) -> tuple[Tensor, Tensor]:
        begin, end = self.span.longest, state.host_lengths[0] + 1
        known = state.tokens[:, begin:end]
        tokens = torch.cat([known, known.new_full((known.size(0), width), self.mask_id)], dim=1)
        return tokens, torch.arange(begin, end + width, device=known.device)[None]

    def _ragged_input(self, state: DecodingState, width: int) -> tuple[Tensor, Tensor]:
        lacking = self.lacking if self.caches_prefix else state.span.longest + 1
        offsets = torch.arange(lacking + width, device=state.tokens.device)
        slot = self.lengths[:, None] + offsets
        known = state.tokens.gather(1, slot.clamp(max=state.tokens.size(1) - 1))
        return torch.where(slot <= state.lengths[:, None], known, self.mask_id), slot
