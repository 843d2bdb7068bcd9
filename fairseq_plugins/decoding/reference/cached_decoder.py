"""Run several tokens at once through a fairseq Transformer decoder, with a KV cache that can be rolled back.

fairseq's incremental decoding takes one token per call and appends it to the cache, so a rejected draft cannot be
undone. Here the caller chooses the cache slots of each step: the mask hides stale entries, and later steps overwrite
them.
"""

import logging
from functools import partial

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerDecoderBase
from torch import Tensor

from fairseq_plugins.decoding.reference.attention import BeamAttention, ChainAttention
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.fixed_shapes import FixedAttention, in_row_blocks
from fairseq_plugins.decoding.reference.layout import BeamLayout, Chain, Span
from fairseq_plugins.decoding.reference.mask_embeddings import MaskTable
from fairseq_plugins.decoding.reference.rows import cat_padded, may_have_padding, padding_last, rows_of
from fairseq_plugins.decoding.weights import (
    embeddings,
    linear,
    norm,
    quantized_if,
    quantized_layer,
    read_decoder_layer,
    vocabulary_projection,
)
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.fairseq_parts import position_table
from fairseq_plugins.models.support import unsupported_reason

logger = logging.getLogger(__name__)

# The cache grows by this many slots at a time: growing copies it and fragments memory.
SLOT_INCREMENT = 32


class CachedDecoder:
    """Decode several tokens per call with a KV cache, each sentence from its own length.

    Reads the weights of a fairseq `TransformerDecoder` in eval mode, which still works afterwards; `project` scores the
    tokens `vocabulary` [N], None for all, and each sentence has `beam` rows of the cache, for steps with a
    `BeamLayout`. Raises ConfigurationError for a decoder with an unsupported feature.
    """

    def __init__(
        self, decoder: TransformerDecoderBase, engine: Engine, vocabulary: Tensor | None = None, beam: int = 1
    ) -> None:
        reason = unsupported_reason(decoder)
        if reason is not None:
            problem = f"this model cannot be decoded by drafting: {reason}"
            raise ConfigurationError(None, None, problem, "use {--decoder beam}")
        self.decoder = decoder
        self.engine = engine
        self.beam = beam
        self.layers = [read_decoder_layer(layer) for layer in decoder.layers]
        projection = vocabulary_projection(decoder)
        # Output layers other than a linear one can only score all tokens.
        self.vocabulary = None if projection is None else vocabulary
        if projection is not None and vocabulary is not None:
            weight, bias = projection
            projection = weight[vocabulary], None if bias is None else bias[vocabulary]
        if engine.int8:
            self.layers = [quantized_layer(layer) for layer in self.layers]
            if projection is None:
                logger.warning("--int8: the vocabulary projection of %s stays in fp32", type(decoder).__name__)
        self.embedding = embeddings(decoder.embed_tokens.weight, engine.int8)
        self.positions = position_table(decoder, decoder.max_positions())
        self.embedding_norm = norm(decoder.layernorm_embedding)
        self.final_norm = norm(decoder.layer_norm)
        if projection is None:
            self.output_layer = in_row_blocks(decoder.output_layer) if engine.batch_invariant else decoder.output_layer
        else:
            self.output_layer = engine.linear(quantized_if(projection, engine.int8))
        self.project_in = decoder.project_in_dim and engine.linear(linear(decoder.project_in_dim))
        self.project_out = decoder.project_out_dim and engine.linear(linear(decoder.project_out_dim))
        # Keys and values: self-attention [layers, B * beam, slots, 2, H, D / H], cross-attention [layers, B, S, ...].
        self.cache: Tensor | None = None
        self.cross: Tensor | None = None
        self.cross_mask: Tensor | None = None

    def start(self, encoder_out: dict[str, list[Tensor]]) -> None:
        """Begin a batch: clear the cache, compute cross-attention keys and values of all layers.

        Args:
            encoder_out: a fairseq encoder's `encoder_out` [S, B, D] and `encoder_padding_mask` [B, S].
        """
        padding = encoder_out["encoder_padding_mask"]
        self._start(encoder_out["encoder_out"][0].transpose(0, 1), padding[0] if padding else None)

    def _start(self, states: Tensor, padding: Tensor | None) -> None:
        """Begin a batch from encoder states [B, S, D] and their padding [B, S]."""
        self.cross, padding = self._source_kv(states, padding)
        has_padding = padding is not None and may_have_padding(padding)
        self.cross_mask = ~padding[:, None, None, :] if has_padding and padding is not None else None
        self._clear_cache(states.size(0))

    def _source_kv(self, states: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return cross-attention keys and values [layers, B, S, 2, H, D / H], and the padding [B, S] in their order."""
        if self.engine.batch_invariant and padding is not None:
            # Padding last: the order of additions must not depend on the longest source of a batch.
            order = padding_last(padding)
            states = states.gather(1, order[:, :, None].expand_as(states))
            padding = padding.gather(1, order)
        key_values = []
        for layer in self.layers:
            assert layer.cross_key_value is not None
            key_values.append(self.engine.apply(states, layer.cross_key_value))
        return torch.stack(key_values).unflatten(-1, (2, self.layers[0].heads, -1)), padding

    def _clear_cache(self, sentences: int) -> None:
        """Make a cache of no slots."""
        assert self.cross is not None
        self.cache = self.cross.new_zeros(len(self.layers), sentences * self.beam, 0, *self.cross.shape[3:])

    def append_rows(self, encoder_out: dict[str, list[Tensor]]) -> None:
        """Append sentences, whose padded length may differ; `encoder_out` as for `start`."""
        cache, cross, mask = self.cache, self.cross, self.cross_mask
        assert cache is not None and cross is not None, "call start() first"
        self.start(encoder_out)
        assert self.cache is not None and self.cross is not None
        old, new = cross_mask_of(mask, cross), cross_mask_of(self.cross_mask, self.cross)
        self.cross_mask = cat_padded(old, new, dim=3, value=False)
        self.cross = cat_padded(cross, self.cross, dim=2, batch_dim=1)
        self.cache = torch.cat([cache, cache.new_zeros(len(cache), self.cache.size(1), *cache.shape[2:])], dim=1)

    def select_rows(self, rows: Tensor) -> None:
        """Keep only these sentences, indices [B'] into the current batch."""
        assert self.cache is not None and self.cross is not None
        self.cache = self.cache.index_select(1, rows if self.beam == 1 else rows_of(rows, self.beam))
        self.cross = self.cross.index_select(1, rows)
        if self.cross_mask is not None:
            self.cross_mask = self.cross_mask.index_select(0, rows)

    def step(
        self,
        tokens: Tensor,
        layout: Chain | BeamLayout,
        states: list[Tensor] | None = None,
        mask_embeddings: MaskTable | None = None,
        added: Tensor | None = None,
    ) -> Tensor:
        """Run the rows of a step and write their keys and values.

        Args:
            tokens: ids, [B, T] with a `Chain` and [R] with a `BeamLayout`; the id after the dictionary is a mask.
            layout: positions and slots of the rows.
            states: a list to which the states [B, T, D] or [R, D] before the first and after every layer are added.
            mask_embeddings: embeddings of the masks; None without masks.
            added: [B, 1, D] or [B, T, D], added to the embedded input of a chain.

        Returns:
            hidden states [B, T, D] or [R, D] as they enter the output projection.
        """
        assert self.cache is not None and self.cross is not None, "call start() first"
        self._grow(layout.slots)
        mask_table = None if mask_embeddings is None else mask_embeddings.table(self.cache.size(1), layout.slots)
        position = self._position_embeddings(layout)
        x = self._embed(tokens, layout, mask_table)
        if position is not None:
            x = x + position
        if added is not None:
            x = x + added
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        if states is not None:
            states.append(x)
        attention = self._attention(layout, x.dtype, self.cross.size(2))
        for index, layer in enumerate(self.layers):
            x = self.engine.layer(
                layer,
                x,
                partial(attention.self_attention, heads=layer.heads, cache=self.cache[index]),
                partial(attention.cross_attention, heads=layer.heads, cross=self.cross[index]),
            )
            if states is not None:
                states.append(x)
        if self.final_norm is not None:
            x = self.final_norm(x)
        return x if self.project_out is None else self.project_out(x)

    def _attention(
        self, layout: Chain | BeamLayout, dtype: torch.dtype, source: int
    ) -> ChainAttention | BeamAttention | FixedAttention:
        if isinstance(layout, BeamLayout):
            return BeamAttention(layout, self.cross_mask, dtype)
        if self.engine.batch_invariant:
            return FixedAttention(layout, self.cross_mask, source)
        return ChainAttention(layout, self.cross_mask, dtype)

    def write_kv(self, key_value: Tensor, lengths: Tensor, span: Span) -> None:
        """Write keys and values [L, B, T, 2, H, D / H] of all L layers into T slots, starting at `lengths` [B]."""
        assert self.cache is not None, "call start() first"
        batch, width = key_value.shape[1:3]
        self._grow(span.longest + width)
        rows = torch.arange(batch, device=lengths.device)[:, None]
        self.cache[:, rows, lengths[:, None] + torch.arange(width, device=lengths.device)] = key_value

    def project(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V] of hidden states [..., D], or [..., N] of the tokens of `vocabulary`."""
        # Flattened, because PyTorch multiplies strided rows sentence by sentence.
        return self.output_layer(hidden.flatten(0, -2)).reshape(*hidden.shape[:-1], -1)

    @property
    def capacity(self) -> int:
        """Number of slots of the cache."""
        return 0 if self.cache is None else self.cache.size(2)

    def _grow(self, slots: int) -> None:
        assert self.cache is not None
        old = self.cache
        if slots > self.capacity:
            slots += -slots % SLOT_INCREMENT
            # Zeros, because a masked NaN times a weight of 0 would still be NaN.
            self.cache = old.new_zeros(*old.shape[:2], slots, *old.shape[3:])
            self.cache[:, :, : old.size(2)] = old

    def _position_embeddings(self, layout: Chain | BeamLayout) -> Tensor | None:
        """Return position embeddings [B, T, D] or [R, D] of the rows; None if the model has none."""
        if self.positions is None:
            return None
        # Tokens beyond the table's end are never accepted, so any embedding will do.
        position = layout.slot() if isinstance(layout, Chain) else layout.lengths
        return self.positions[position.clamp(max=len(self.positions) - 1)]

    def _embed(self, tokens: Tensor, layout: Chain | BeamLayout, mask_table: Tensor | None) -> Tensor:
        """Return the embeddings of tokens, and of masks from their table [B, P, D] or [D]."""
        decoder = self.decoder
        weight = self.embedding
        if mask_table is None:
            x = F.embedding(tokens, weight) * decoder.embed_scale
        else:
            mask_id = weight.size(0)
            x = F.embedding(tokens.clamp(max=mask_id - 1), weight) * decoder.embed_scale
            x = torch.where((tokens == mask_id)[..., None], _at(mask_table, layout), x)
        return x if self.project_in is None else self.project_in(x)


def _at(table: Tensor, layout: Chain | BeamLayout) -> Tensor:
    """Return the rows of a table [B, P, D] at the positions of a layout; a table [D] is the same everywhere."""
    if table.dim() == 1:
        return table
    assert not isinstance(layout, BeamLayout), "hypotheses of a beam have no masks"
    return table.gather(1, layout.slot()[:, :, None].expand(-1, -1, table.size(2)))


def cross_mask_of(mask: Tensor | None, cross: Tensor) -> Tensor:
    """Return the mask [B, 1, 1, S] of source positions that may be read; all True for None."""
    return cross.new_ones(cross.size(1), 1, 1, cross.size(2), dtype=torch.bool) if mask is None else mask
