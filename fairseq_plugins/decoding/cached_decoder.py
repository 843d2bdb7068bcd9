"""Run many tokens at once through a fairseq Transformer decoder, with a key/value cache that can be rolled back.

fairseq's incremental decoding takes one token a call and appends to its cache, so a rejected draft cannot be undone.
Here every call says from which length each sentence goes on: stale entries are hidden by the mask and overwritten.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerDecoderBase
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor, nn

from fairseq_plugins.decoding import native
from fairseq_plugins.decoding.memory import new_empty, new_zeros
from fairseq_plugins.decoding.weights import Layer, Linear, Precision, fused, linear, norm, quantized, quantized_layer
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.positions import position_table
from fairseq_plugins.models.supported import unsupported_reason

logger = logging.getLogger(__name__)

# Places that a cache grows by: with every step it would be copied, and leave holes in memory that fit nothing else.
ROOM = 32


@dataclass(frozen=True)
class Span:
    """Shortest and longest of the lengths of a batch, known on the host so that shapes need no synchronisation."""

    shortest: int
    longest: int

    @property
    def uniform(self) -> bool:
        return self.shortest == self.longest


class CachedDecoder:
    """Key/value cached decoding of several tokens per call, every sentence from its own length.

    Reads the weights of a fairseq `TransformerDecoder`; fairseq's module stays as it is.

    Args:
        decoder: decoder of a trained fairseq Transformer, in eval mode.
        vocabulary: ids [N] of the tokens that `project` scores, None for all.
        precision: of its linear layers and of a plain vocabulary projection.

    Raises:
        ConfigurationError: naming what the decoder uses that cannot be run here.
    """

    def __init__(
        self,
        decoder: TransformerDecoderBase,
        vocabulary: Tensor | None = None,
        precision: Precision = Precision.FP32,
    ) -> None:
        reason = unsupported_reason(decoder)
        if reason is not None:
            raise ConfigurationError(f"this model cannot be decoded by drafting: {reason}; use --decoder beam")
        self.decoder = decoder
        self.layers = [_read_layer(layer) for layer in decoder.layers]
        plain_output = _plain_projection(decoder)
        # Where the projection is not plain, to score all tokens is the only way.
        self.vocabulary = None if plain_output is None else vocabulary
        if plain_output is not None and vocabulary is not None:
            weight, bias = plain_output
            plain_output = weight[vocabulary], None if bias is None else bias[vocabulary]
        if precision is Precision.INT8_WEIGHTS:
            self.layers = [quantized_layer(layer) for layer in self.layers]
            if plain_output is None:
                logger.warning("--int8: the vocabulary projection of %s stays in fp32", type(decoder).__name__)
            else:
                plain_output = quantized(plain_output)
        self.positions = position_table(decoder, decoder.max_positions())
        self.embedding_norm = norm(decoder.layernorm_embedding)
        self.final_norm = norm(decoder.layer_norm)
        # Only drafters have these two: see models/block_nat.py.
        self.mask_vectors: Callable[..., Tensor] | None = getattr(decoder, "mask_vectors", None)
        self.positions_every_layer: bool = getattr(decoder, "positions_every_layer", False)
        # The kernels know no projection of the input, and positions at its beginning only.
        plain_input = decoder.project_in_dim is None and not self.positions_every_layer
        weight = decoder.embed_tokens.weight
        ends = native.Ends(weight, decoder.embed_scale, self.positions, self.embedding_norm, self.final_norm)
        self.native_layers = native.native_layers(self.layers, precision, ends) if plain_input else None
        self.cross_projections = [native.fastest(layer.cross_key_value, precision) for layer in self.layers]
        self.output_layer = decoder.output_layer if plain_output is None else native.fastest(plain_output, precision)
        # Keys and values [layers, B, positions, 2, H, D / H], of self- and of cross-attention.
        self.cache: Tensor | None = None
        self.cross: Tensor | None = None
        self.cross_mask: Tensor | None = None
        self.encoder_out: dict[str, list[Tensor]] = {}
        self.mask_table: Tensor | None = None

    def start(self, encoder_out: dict[str, list[Tensor]]) -> None:
        """Begin a batch: forget the old cache, compute cross-attention keys and values of all layers.

        Args:
            encoder_out: what a fairseq encoder returns: `encoder_out` [S, B, D], `encoder_padding_mask` [B, S].
        """
        self.encoder_out = encoder_out
        self.mask_table = None
        memory = encoder_out["encoder_out"][0].transpose(0, 1)
        padding = encoder_out["encoder_padding_mask"]
        heads = self.layers[0].heads
        shape = (len(self.layers), *memory.shape[:2], 2, heads, self.decoder.embed_dim // heads)
        self.cross = new_empty(memory, shape)
        for cross, project in zip(self.cross, self.cross_projections, strict=True):
            cross.copy_(project(memory).view_as(cross))
        has_padding = bool(padding) and bool(padding[0].any())
        self.cross_mask = ~padding[0][:, None, None, :] if has_padding else None
        self.cache = self.cross.new_zeros(len(self.layers), memory.size(0), 0, *self.cross.shape[3:])

    def join(self, encoder_out: dict[str, list[Tensor]]) -> None:
        """More sentences come in behind those present.

        Args:
            encoder_out: as for `start`, of the new sentences; their padded length may be another one.
        """
        cache, cross, mask, encoded = self.cache, self.cross, self.cross_mask, self.encoder_out
        assert cache is not None and cross is not None, "call start() first"
        self.start(encoder_out)
        assert self.cache is not None and self.cross is not None
        masks = [cross_mask_of(mask, cross), cross_mask_of(self.cross_mask, self.cross)]
        self.cross_mask = cat_padded(*masks, dim=3, value=False)
        self.cross = cat_padded(cross, self.cross, dim=2, batch_dim=1)
        self._grow(cache.size(2))
        self.cache = torch.cat([cache, self.cache], dim=1)
        if self.mask_vectors is not None:
            self.encoder_out = {
                name: [cat_padded(encoded[name][0], encoder_out[name][0], dim=1, value=value)]
                for name, value in (("encoder_embedding", 0), ("encoder_padding_mask", True))
            }

    def keep(self, rows: Tensor) -> None:
        """Go on with these sentences only.

        Args:
            rows: indices [B'] into the current batch.
        """
        assert self.cache is not None and self.cross is not None
        self.cache = self.cache.index_select(1, rows)
        self.cross = self.cross.index_select(1, rows)
        if self.cross_mask is not None:
            self.cross_mask = self.cross_mask.index_select(0, rows)
        if self.mask_table is not None and self.mask_table.dim() == 3:
            self.mask_table = self.mask_table.index_select(0, rows)
        if self.mask_vectors is not None:
            self.encoder_out = {
                "encoder_embedding": [x.index_select(0, rows) for x in self.encoder_out["encoder_embedding"]],
                "encoder_padding_mask": [x.index_select(0, rows) for x in self.encoder_out["encoder_padding_mask"]],
            }

    def step(
        self,
        tokens: Tensor,
        lengths: Tensor,
        span: Span,
        visible: Tensor | None = None,
        layers: list[Tensor] | None = None,
        masks: int = 0,
        added: Tensor | None = None,
    ) -> Tensor:
        """Run T new tokens of every sentence, each from its own length, and write their keys and values.

        Args:
            tokens: [B, T - masks] token ids; a drafter's masks are the id one past the dictionary.
            lengths: [B] how many cached positions of each sentence are valid; token t stands at `lengths + t`.
            span: shortest and longest of `lengths`.
            visible: [B, T], or [1, T] for all sentences, last position that each token may attend to; by default its
                own (causal attention).
            masks: so many masks stand behind the tokens.
            added: [B, 1, D] or [B, T, D], added to the embedded input.
            layers: a list to which the states [B, T, D] before the first and behind every layer are added.

        Returns:
            hidden states [B, T, D] as they enter the output projection.
        """
        assert self.cache is not None and self.cross is not None, "call start() first"
        width = tokens.size(1) + masks
        total = span.longest + width
        self._grow(total)
        if self.native_layers is not None and self.native_layers.pays(tokens.size(0) * width):
            x, states = self.native_layers.step(
                tokens,
                lengths,
                self.cache,
                total,
                visible,
                self.cross,
                cross_allowed=None if self.cross_mask is None else self.cross_mask[:, 0, 0],
                keep_states=layers is not None,
                masks=masks,
                fed=None if self.mask_vectors is None else self._mask_table(tokens.size(0), total),
                added=added,
            )
            if layers is not None:
                layers.extend(states)
            return x if self.decoder.project_out_dim is None else self.decoder.project_out_dim(x)
        place = lengths.unsqueeze(1) + torch.arange(width, device=tokens.device)
        position = None
        if self.positions is not None:
            if span.uniform and total <= self.positions.size(0):
                position = self.positions[span.longest : total]
            else:
                # No output is longer than the table, so behind its end nothing can be accepted: any embedding will do.
                position = self.positions[place.clamp(max=self.positions.size(0) - 1)]
        x = self._embed(tokens, place, total, span, masks)
        if position is not None:
            x = x + position
        if added is not None:
            x = x + added
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        if layers is not None:
            layers.append(x)
        mask = _self_mask(place, span, total, visible)
        rows = None if span.uniform else torch.arange(tokens.size(0), device=tokens.device)[:, None]
        for index, layer in enumerate(self.layers):
            if self.positions_every_layer and index > 0 and position is not None:
                x = x + position
            cache = self.cache[index, :, :total]
            residual = x
            if layer.normalize_before:
                x = layer.self_norm(x)
            qkv = F.linear(x, *layer.self_qkv).unflatten(-1, (3, layer.heads, -1))
            if rows is None:
                cache[:, span.longest :] = qkv[:, :, 1:]
            else:
                cache[rows, place] = qkv[:, :, 1:]
            key, value = cache.permute(2, 0, 3, 1, 4)
            x = F.scaled_dot_product_attention(qkv[:, :, 0].transpose(1, 2), key, value, attn_mask=mask)
            x = residual + F.linear(x.transpose(1, 2).flatten(2), *layer.self_out)
            if not layer.normalize_before:
                x = layer.self_norm(x)
            residual = x
            if layer.normalize_before:
                x = layer.cross_norm(x)
            query = F.linear(x, *layer.cross_query).unflatten(-1, (layer.heads, -1)).transpose(1, 2)
            key, value = self.cross[index].permute(2, 0, 3, 1, 4)
            x = F.scaled_dot_product_attention(query, key, value, attn_mask=self.cross_mask)
            x = residual + F.linear(x.transpose(1, 2).flatten(2), *layer.cross_out)
            if not layer.normalize_before:
                x = layer.cross_norm(x)
            residual = x
            if layer.normalize_before:
                x = layer.final_norm(x)
            x = residual + F.linear(layer.activation(F.linear(x, *layer.fc1)), *layer.fc2)
            if not layer.normalize_before:
                x = layer.final_norm(x)
            if layers is not None:
                layers.append(x)
        if self.final_norm is not None:
            x = self.final_norm(x)
        return x if self.decoder.project_out_dim is None else self.decoder.project_out_dim(x)

    def remember(self, key_value: Tensor, lengths: Tensor, span: Span) -> None:
        """Write keys and values that something else than `step` has made.

        Args:
            key_value: [L, B, T, 2, H, D / H], of all L layers.
            lengths: [B], where the first of the T places stands.
            span: shortest and longest of `lengths`.
        """
        assert self.cache is not None, "call start() first"
        batch, width = key_value.shape[1:3]
        self._grow(span.longest + width)
        if span.uniform:
            self.cache[:, :, span.longest : span.longest + width] = key_value
        else:
            rows = torch.arange(batch, device=lengths.device)[:, None]
            self.cache[:, rows, lengths[:, None] + torch.arange(width, device=lengths.device)] = key_value

    def project(self, hidden: Tensor) -> Tensor:
        """Scores [..., V] of hidden states [..., D], before softmax; [..., N] of the tokens of `vocabulary`."""
        return self.output_layer(hidden)

    @property
    def capacity(self) -> int:
        """Positions that the cache holds for every sentence: the longest so far and one draft, rounded up to `ROOM`."""
        return 0 if self.cache is None else self.cache.size(2)

    def _grow(self, positions: int) -> None:
        assert self.cache is not None
        old = self.cache
        if positions > self.capacity:
            # Zeros, not empty memory: a masked value is multiplied by 0, which leaves NaN as NaN.
            self.cache = new_zeros(old, (*old.shape[:2], positions + -positions % ROOM, *old.shape[3:]))
            self.cache[:, :, : old.size(2)] = old

    def _mask_table(self, batch: int, total: int) -> Tensor:
        """What masks at the places below `total`, and maybe behind, are fed: [B, places, D], or [D] at all places."""
        assert self.mask_vectors is not None
        if self.mask_table is None or (self.mask_table.dim() == 3 and self.mask_table.size(1) < total):
            # For many places at once, the more the longer the sentence is: the source does not change.
            places = torch.arange(max(total + 32, 2 * total), device=self.decoder.embed_tokens.weight.device)
            self.mask_table = self.mask_vectors(places.expand(batch, -1), self.encoder_out)
        return self.mask_table

    def _masks(self, place: Tensor, total: int, span: Span) -> Tensor:
        """What masks at `place` [B, T], the last ones below `total`, are fed: [B, T, D] or broadcastable to it."""
        table = self._mask_table(place.size(0), total)
        if table.dim() == 1:
            return table
        if span.uniform:
            return table[:, total - place.size(1) : total]
        return table.gather(1, place[:, :, None].expand(-1, -1, table.size(2)))

    def _embed(self, tokens: Tensor, place: Tensor, total: int, span: Span, masks: int) -> Tensor:
        decoder = self.decoder
        weight = decoder.embed_tokens.weight
        if masks:
            x = F.embedding(tokens, weight) * decoder.embed_scale
            fed = self._masks(place[:, -masks:], total, span)
            x = torch.cat([x, fed if fed.dim() == 3 else fed.expand(tokens.size(0), masks, -1)], dim=1)
        elif self.mask_vectors is None:
            x = F.embedding(tokens, weight) * decoder.embed_scale
        else:
            mask_id = weight.size(0)
            is_mask = (tokens == mask_id)[:, :, None]
            x = F.embedding(tokens.clamp(max=mask_id - 1), weight) * decoder.embed_scale
            x = torch.where(is_mask, self._masks(place, total, span), x)
        return x if decoder.project_in_dim is None else decoder.project_in_dim(x)


def cat_padded(old: Tensor, new: Tensor, dim: int, batch_dim: int = 0, value: float = 0) -> Tensor:
    """Rows of `new` behind those of `old`, the shorter of the two filled up with `value` at the end of `dim`."""
    size = max(old.size(dim), new.size(dim))
    behind = [0, 0] * (old.dim() - 1 - dim)
    return torch.cat([F.pad(x, [*behind, 0, size - x.size(dim)], value=value) for x in (old, new)], dim=batch_dim)


def cross_mask_of(mask: Tensor | None, cross: Tensor) -> Tensor:
    """Which positions [B, 1, 1, S] of the source to read, all of them where there is no mask."""
    return cross.new_ones(cross.size(1), 1, 1, cross.size(2), dtype=torch.bool) if mask is None else mask


def _self_mask(place: Tensor, span: Span, total: int, visible: Tensor | None) -> Tensor | None:
    """Boolean mask, True where attention is allowed, broadcastable to [B, H, T, total]; None where all is."""
    if visible is None and place.size(1) == 1 and span.uniform:
        return None
    # Equal lengths make equal causal masks; what a caller calls visible may still differ between sentences.
    last = visible if visible is not None else place[:1] if span.uniform else place
    return (torch.arange(total, device=place.device) <= last[:, :, None])[:, None]


def _plain_projection(decoder: TransformerDecoderBase) -> Linear | None:
    """The vocabulary projection, None where the output layer is more than that."""
    if type(decoder).output_layer is not TransformerDecoderBase.output_layer:
        return None
    return linear(decoder.output_projection) if isinstance(decoder.output_projection, nn.Linear) else None


def _read_layer(layer: TransformerDecoderLayerBase) -> Layer:
    own, cross = layer.self_attn, layer.encoder_attn
    return Layer(
        heads=own.num_heads,
        normalize_before=layer.normalize_before,
        self_qkv=fused(own.q_proj, own.k_proj, own.v_proj),
        self_out=linear(own.out_proj),
        self_norm=norm(layer.self_attn_layer_norm),
        cross_query=linear(cross.q_proj),
        cross_key_value=fused(cross.k_proj, cross.v_proj),
        cross_out=linear(cross.out_proj),
        cross_norm=norm(layer.encoder_attn_layer_norm),
        fc1=linear(layer.fc1),
        activation=layer.activation_fn,
        fc2=linear(layer.fc2),
        final_norm=norm(layer.final_layer_norm),
    )
