"""Run many tokens at once through a fairseq Transformer decoder, with a key/value cache that can be rolled back.

fairseq's incremental decoding takes one token a call and appends to its cache, so a rejected draft cannot be undone.
Here every call says where its rows stand: stale entries are hidden by the mask and overwritten.
"""

import logging
import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerDecoderBase
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor, nn

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.engine.attention import BeamAttention, ChainAttention, PackedAttention
from fairseq_plugins.decoding.engine.engine import Engine
from fairseq_plugins.decoding.engine.fixed_shapes import FixedAttention, padding_last
from fairseq_plugins.decoding.engine.layers import transformer_layer
from fairseq_plugins.decoding.engine.layout import BeamLayout, Chain, Span, StepLayout
from fairseq_plugins.decoding.engine.mask_inputs import FixedInputs, MaskInputs
from fairseq_plugins.decoding.engine.memory import Room, new_zeros
from fairseq_plugins.decoding.engine.native.beam import Going, run_beams
from fairseq_plugins.decoding.engine.native.build import LimitsStructure, StackStructure
from fairseq_plugins.decoding.engine.native.layers import Ends, NativeLayers, NativeLinear, Predicted, Prediction
from fairseq_plugins.decoding.engine.native.path import NativePath
from fairseq_plugins.decoding.engine.rows import cat_padded, rows_of
from fairseq_plugins.decoding.engine.weights import (
    Layer,
    Linear,
    Precision,
    fused,
    linear,
    norm,
    quantized,
    quantized_layer,
)
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.positions import position_table
from fairseq_plugins.models.support import unsupported_reason

logger = logging.getLogger(__name__)

# Slots that a cache grows by: with every step it would be copied, and leave holes in memory that fit nothing else.
ROOM = 32


class CachedDecoder:
    """Key/value cached decoding of several tokens per call, every sentence from its own length.

    Reads the weights of a fairseq `TransformerDecoder`; fairseq's module stays as it is.

    Args:
        decoder: decoder of a trained fairseq Transformer, in eval mode.
        engine: what it runs on.
        vocabulary: ids [N] of the tokens that `project` scores, None for all.
        beam: rows of the cache of every sentence, for steps laid out as a `BeamLayout`.

    Raises:
        ConfigurationError: naming what the decoder uses that cannot be run here.
    """

    def __init__(
        self, decoder: TransformerDecoderBase, engine: Engine, vocabulary: Tensor | None = None, beam: int = 1
    ) -> None:
        reason = unsupported_reason(decoder)
        if reason is not None:
            raise ConfigurationError(f"this model cannot be decoded by drafting: {reason}; use --decoder beam")
        self.decoder = decoder
        self.engine = engine
        self.beam = beam
        self.layers = [_read_layer(layer) for layer in decoder.layers]
        plain_output = _plain_projection(decoder)
        # Where the projection is not plain, to score all tokens is the only way.
        self.vocabulary = None if plain_output is None else vocabulary
        if plain_output is not None and vocabulary is not None:
            weight, bias = plain_output
            plain_output = weight[vocabulary], None if bias is None else bias[vocabulary]
        if engine.precision is Precision.INT8_WEIGHTS:
            self.layers = [quantized_layer(layer) for layer in self.layers]
            if plain_output is None:
                logger.warning("--int8: the vocabulary projection of %s stays in fp32", type(decoder).__name__)
            else:
                plain_output = quantized(plain_output)
        self.positions = position_table(decoder, decoder.max_positions())
        self.embedding_norm = norm(decoder.layernorm_embedding)
        self.final_norm = norm(decoder.layer_norm)
        # Only drafters have this: see models/block_nat.
        self.positions_every_layer: bool = getattr(decoder, "positions_every_layer", False)
        self.native_layers = self._native_layers()
        self.write_cross = engine.linears_into([layer.cross_key_value for layer in self.layers])
        # For predictions in one call with the layers; `project` then uses the same copy of the weight.
        self.native_output: NativeLinear | None = None
        if plain_output is None:
            self.output_layer = engine.rowwise(decoder.output_layer)
        elif self.native_layers is not None and decoder.project_out_dim is None:
            self.native_output = engine.kernels.compiled_linear(plain_output, engine.precision)
            self.output_layer = engine.kernels.where_it_pays(self.native_output, plain_output, engine.precision)
        else:
            self.output_layer = engine.linear(plain_output)
        self.project_in = decoder.project_in_dim and engine.rowwise(decoder.project_in_dim)
        self.project_out = decoder.project_out_dim and engine.rowwise(decoder.project_out_dim)
        # Keys and values [layers, B * beam, slots, 2, H, D / H] of self-attention, and [layers, B, S, ...] of cross-.
        self.cache: Tensor | None = None
        self.cross: Tensor | None = None
        self.cross_mask: Tensor | None = None
        # With several hypotheses: the place [B] in these of every sentence; None where each has its own.
        self.places: Tensor | None = None
        # What the batch before had, on a CPU.
        self.cache_room, self.cross_room = Room(), Room()

    def _native_layers(self) -> NativeLayers | None:
        """The layers for the kernels, which know no projection of the input, and positions at its beginning only."""
        decoder, kernels = self.decoder, self.engine.kernels
        if kernels is None or decoder.project_in_dim is not None or self.positions_every_layer:
            return None
        weight = decoder.embed_tokens.weight
        ends = Ends(weight, decoder.embed_scale, self.positions, self.embedding_norm, self.final_norm)
        return kernels.layers(self.layers, self.engine.precision, ends)

    def start(self, encoder_out: dict[str, list[Tensor]]) -> None:
        """Begin a batch: forget the old cache, compute cross-attention keys and values of all layers.

        Args:
            encoder_out: what a fairseq encoder returns: `encoder_out` [S, B, D], `encoder_padding_mask` [B, S].
        """
        self._begin(encoder_out, self.cross_room)

    def _begin(self, encoder_out: dict[str, list[Tensor]], room: Room) -> None:
        memory = encoder_out["encoder_out"][0].transpose(0, 1)
        padding = encoder_out["encoder_padding_mask"]
        if self.engine.steady and padding:
            # Attention adds up in the order of the slots, which must not depend on the longest source of a batch.
            order = padding_last(padding[0])
            memory = memory.gather(1, order[:, :, None].expand_as(memory))
            padding = [padding[0].gather(1, order)]
        heads = self.layers[0].heads
        shape = (len(self.layers), *memory.shape[:2], 2, heads, self.decoder.embed_dim // heads)
        self.cross = room.take(memory, shape) if memory.device.type == "cpu" else memory.new_empty(shape)
        self.write_cross(memory, self.cross)
        has_padding = bool(padding) and bool(padding[0].any())
        self.cross_mask = ~padding[0][:, None, None, :] if has_padding else None
        self.cache = self.cross.new_zeros(len(self.layers), memory.size(0) * self.beam, 0, *self.cross.shape[3:])
        self.places = None

    def append_rows(self, encoder_out: dict[str, list[Tensor]]) -> None:
        """More sentences come in after those present.

        Args:
            encoder_out: as for `start`, of the new sentences; their padded length may be another one.
        """
        if self.places is not None:
            self._select(self.places)
        cache, cross, mask = self.cache, self.cross, self.cross_mask
        assert cache is not None and cross is not None, "call start() first"
        self._begin(encoder_out, Room())
        assert self.cache is not None and self.cross is not None
        masks = [cross_mask_of(mask, cross), cross_mask_of(self.cross_mask, self.cross)]
        self.cross_mask = cat_padded(*masks, dim=3, value=False)
        self.cross = cat_padded(cross, self.cross, dim=2, batch_dim=1)
        self.cache = torch.cat([cache, cache.new_zeros(len(cache), self.cache.size(1), *cache.shape[2:])], dim=1)

    def select_rows(self, rows: Tensor) -> None:
        """Go on with these sentences only.

        Args:
            rows: indices [B'] into the sentences of the current batch.
        """
        if self.beam == 1 or self.native_output is None:
            return self._select(rows)
        # To take out the caches of a few hypotheses, those of all others would be copied.
        self.places = rows if self.places is None else self.places[rows]

    def _select(self, rows: Tensor) -> None:
        assert self.cache is not None and self.cross is not None
        self.places = None
        self.cache = self.cache.index_select(1, rows if self.beam == 1 else rows_of(rows, self.beam))
        self.cross = self.cross.index_select(1, rows)
        if self.cross_mask is not None:
            self.cross_mask = self.cross_mask.index_select(0, rows)

    def step(
        self,
        tokens: Tensor,
        layout: Chain | StepLayout | BeamLayout,
        states: list[Tensor] | None = None,
        masks: int = 0,
        mask_inputs: MaskInputs | FixedInputs | None = None,
        added: Tensor | None = None,
    ) -> Tensor:
        """Run the rows of a step and write their keys and values.

        Args:
            tokens: ids, [B, T - masks] with a `Chain` and [R] with other layouts; a drafter's masks are the id one
                past the dictionary.
            layout: where the rows stand.
            states: a list to which the states [B, T, D] or [R, D] before the first and after every layer are added.
            masks: of a chain: so many masks stand after the tokens.
            mask_inputs: what masks are fed, where there are any.
            added: [B, 1, D] or [B, T, D], added to the embedded input of a chain.

        Returns:
            hidden states [B, T, D] or [R, D] as they enter the output projection.
        """
        if self.places is not None:
            self._select(self.places)
        assert self.cache is not None and self.cross is not None, "call start() first"
        self._grow(layout.slots)
        fed = None if mask_inputs is None else mask_inputs.table(self.cache.size(1), layout.slots)
        rows = tokens.numel() + tokens.size(0) * masks
        compiled = self.native_layers is not None and not isinstance(layout, BeamLayout)
        if compiled and self.engine.kernels.pays(rows, self.engine.precision):
            x, kept, _ = self.native_layers.step(
                tokens,
                layout,
                self.cache,
                self.cross,
                cross_allowed=None if self.cross_mask is None else self.cross_mask[:, 0, 0],
                keep_states=states is not None,
                masks=masks,
                fed=fed,
                added=added,
            )
            if states is not None:
                states.extend(kept)
        else:
            x = self._step_in_pytorch(tokens, layout, states, masks, fed, added)
        return x if self.project_out is None else self.project_out(x)

    def predict(
        self, tokens: Tensor, layout: Chain | StepLayout, constraints: Constraints, keep_states: bool = False
    ) -> tuple[Tensor, Tensor | None, Predicted] | None:
        """A step and the best next token after every row in one call of the kernels; None where that is not for them.

        Args:
            tokens, layout: as for `step`.
            constraints: what the next tokens may be.
            keep_states: return the states before the first and after every layer, too.

        Returns:
            hidden states as `step` returns them, the states [layers + 1, B, T, D] or None, and the prediction.
        """
        assert self.cache is not None and self.cross is not None, "call start() first"
        kernels, projection = self.engine.kernels, self.native_output
        if kernels is None or projection is None or not kernels.pays(tokens.numel(), self.engine.precision):
            return None
        limits = kernels.limits(projection.outputs, constraints)
        if limits is None:
            return None
        assert self.native_layers is not None
        self._grow(layout.slots)
        hidden, states, predicted = self.native_layers.step(
            tokens,
            layout,
            self.cache,
            self.cross,
            cross_allowed=None if self.cross_mask is None else self.cross_mask[:, 0, 0],
            keep_states=keep_states,
            prediction=Prediction(projection, limits),
        )
        assert predicted is not None
        return hidden, states, predicted

    def draft(
        self,
        tokens: Tensor,
        layout: Chain,
        masks: int,
        mask_inputs: MaskInputs,
        added: Tensor | None,
        path: NativePath,
    ) -> Predicted | None:
        """A step and the tokens of a draft, one at every row, in one call of the kernels; None where these cannot.

        Args:
            tokens, layout, masks, mask_inputs, added: as for `step`; the tokens are [B, 1].
            path: how they are chosen among the tokens of `vocabulary`.
        """
        assert self.cache is not None and self.cross is not None, "call start() first"
        kernels, projection = self.engine.kernels, self.native_output
        if kernels is None or projection is None or projection.outputs != path.size:
            return None
        if not kernels.pays(tokens.size(0) * layout.width, self.engine.precision):
            return None
        assert self.native_layers is not None
        self._grow(layout.slots)
        _, _, predicted = self.native_layers.step(
            tokens,
            layout,
            self.cache,
            self.cross,
            cross_allowed=None if self.cross_mask is None else self.cross_mask[:, 0, 0],
            masks=masks,
            fed=mask_inputs.table(self.cache.size(1), layout.slots) if masks else None,
            added=added,
            prediction=Prediction(projection, LimitsStructure(path.size), path.structure, tokens[:, 0].contiguous()),
        )
        return predicted

    def stack(self, slots: int, projection: NativeLinear | None = None) -> tuple[StackStructure, list[Any]] | None:
        """What the kernels need to run steps of their own making; None where they cannot.

        Args:
            slots: of every sentence that they may need.
            projection: to the vocabulary, None for the decoder's own.

        Returns:
            the structure, and what must be held as long as it is used.
        """
        assert self.cache is not None and self.cross is not None, "call start() first"
        projection = projection or self.native_output
        if self.native_layers is None or projection is None:
            return None
        if self.places is not None:
            self._select(self.places)
        self._grow(slots)
        allowed = None if self.cross_mask is None else self.cross_mask[:, 0, 0]
        return self.native_layers.stack(projection, self.cache, self.cross, allowed)

    def best_continuations(
        self,
        tokens: Tensor,
        layout: BeamLayout,
        scores: Tensor,
        constraints: Constraints,
        going: Going | None = None,
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """A step of beam search, or a search that goes on by itself, in one call; None where that cannot be.

        Args:
            tokens, layout: as for `step`.
            scores: [R], sums of log-probabilities.
            constraints: what the next tokens may be.
            going: where steps are written down, as `run_beams` has it; None for a single one.

        Returns:
            of the best 2 * beam continuations [B, 2 * beam] of every sentence sums of log-probabilities, tokens and
            parents, as `Candidates` has them.
        """
        assert self.cache is not None and self.cross is not None, "call start() first"
        kernels, projection = self.engine.kernels, self.native_output
        if kernels is None or projection is None:
            return None
        limits = kernels.limits(projection.outputs, constraints)
        # In a vocabulary as small as this, fairseq goes on with what it has forbidden.
        if limits is None or projection.outputs < 2 * self.beam + 2:
            return None
        assert self.native_layers is not None
        # Nothing stands after the longest output.
        more = 0 if going is None else min(going.budget, constraints.max_len + 1 - layout.span.longest)
        self._grow(layout.slots + more)
        mask = None if self.cross_mask is None else self.cross_mask[:, 0, 0]
        return run_beams(
            *(self.native_layers, tokens, layout, scores, self.cache, self.cross, mask, projection, limits),
            *(self.places, going),
        )

    def _step_in_pytorch(
        self,
        tokens: Tensor,
        layout: Chain | StepLayout | BeamLayout,
        states: list[Tensor] | None,
        masks: int,
        fed: Tensor | None,
        added: Tensor | None,
    ) -> Tensor:
        """`step` as the reference has it."""
        position = self._position_embeddings(layout)
        x = self._embed(tokens, layout, masks, fed)
        if position is not None:
            x = x + position
        if added is not None:
            x = x + added
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        if states is not None:
            states.append(x)
        attention = self._attention(layout, x.dtype)
        for index, layer in enumerate(self.layers):
            if self.positions_every_layer and index > 0 and position is not None:
                x = x + position
            x = transformer_layer(
                layer,
                x,
                self.engine.apply,
                partial(attention.own, heads=layer.heads, cache=self.cache[index]),
                partial(attention.source, heads=layer.heads, cross=self.cross[index]),
            )
            if states is not None:
                states.append(x)
        return x if self.final_norm is None else self.final_norm(x)

    def _attention(
        self, layout: Chain | StepLayout | BeamLayout, dtype: torch.dtype
    ) -> ChainAttention | PackedAttention | BeamAttention | FixedAttention:
        if self.engine.steady and not isinstance(layout, BeamLayout):
            return FixedAttention(layout, self.cross_mask, self.cross.size(2))
        kinds = {Chain: ChainAttention, StepLayout: PackedAttention, BeamLayout: BeamAttention}
        return kinds[type(layout)](layout, self.cross_mask, dtype)

    def write_kv(self, key_value: Tensor, lengths: Tensor, span: Span) -> None:
        """Write keys and values that something else than `step` has made.

        Args:
            key_value: [L, B, T, 2, H, D / H], of all L layers.
            lengths: [B], the slot of the first of T.
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
        """Slots of the cache for every sentence: the longest so far and one draft, rounded up to `ROOM`."""
        return 0 if self.cache is None else self.cache.size(2)

    def _grow(self, slots: int) -> None:
        assert self.cache is not None
        old = self.cache
        if slots > self.capacity:
            slots += -slots % ROOM
            each = math.prod(old.shape[:2]) * math.prod(old.shape[3:])
            kept = self.cache_room.kept
            if self.capacity == 0 and kept is not None and self.cache_room.fits(old, slots * each):
                # All of it: growing costs more than standing further apart.
                slots = kept.numel() // each
                self.cache = self.cache_room.take(old, (*old.shape[:2], slots, *old.shape[3:]))
                return
            self.cache_room.kept = None
            # Zeros, not empty memory: a masked value is multiplied by 0, which leaves NaN as NaN.
            self.cache = new_zeros(old, (*old.shape[:2], slots, *old.shape[3:]))
            self.cache[:, :, : old.size(2)] = old
            if self.cache.device.type == "cpu":
                self.cache_room.kept = self.cache.view(-1)

    def _position_embeddings(self, layout: Chain | StepLayout | BeamLayout) -> Tensor | None:
        """Positional embeddings [B, T, D], [T, D] or [R, D] of the rows, None without."""
        if self.positions is None:
            return None
        last = self.positions.size(0) - 1
        if not isinstance(layout, Chain):
            return self.positions[layout.position.clamp(max=last)]
        if layout.span.uniform and layout.slots <= last + 1:
            return self.positions[layout.span.longest : layout.slots]
        # No output is longer than the table, so after its end nothing can be accepted: any embedding will do.
        return self.positions[layout.slot().clamp(max=last)]

    def _embed(self, tokens: Tensor, layout: Chain | StepLayout | BeamLayout, masks: int, fed: Tensor | None) -> Tensor:
        """Embeddings of the tokens, and what masks are fed in their place."""
        decoder = self.decoder
        weight = decoder.embed_tokens.weight
        if fed is None:
            x = F.embedding(tokens, weight) * decoder.embed_scale
        elif masks:
            x = F.embedding(tokens, weight) * decoder.embed_scale
            of_masks = _at(fed, layout)
            of_masks = of_masks[..., -masks:, :] if fed.dim() == 3 else fed.expand(tokens.size(0), masks, -1)
            x = torch.cat([x, of_masks], dim=-2)
        else:
            mask_id = weight.size(0)
            x = F.embedding(tokens.clamp(max=mask_id - 1), weight) * decoder.embed_scale
            x = torch.where((tokens == mask_id)[..., None], _at(fed, layout), x)
        return x if self.project_in is None else self.project_in(x)


def _at(table: Tensor, layout: Chain | StepLayout) -> Tensor:
    """What a table [B, P, D] has at the positions of the rows; one of [D] is the same everywhere."""
    if table.dim() == 1:
        return table
    if isinstance(layout, StepLayout):
        return table[layout.sentence, layout.position]
    if layout.span.uniform:
        return table[:, layout.span.longest : layout.slots]
    return table.gather(1, layout.slot()[:, :, None].expand(-1, -1, table.size(2)))


def cross_mask_of(mask: Tensor | None, cross: Tensor) -> Tensor:
    """Which positions [B, 1, 1, S] of the source to read, all of them where there is no mask."""
    return cross.new_ones(cross.size(1), 1, 1, cross.size(2), dtype=torch.bool) if mask is None else mask


def _plain_projection(decoder: TransformerDecoderBase) -> Linear | None:
    """The vocabulary projection, None where the output layer is more than that."""
    # Heads of which the first one is the model itself: its own decoding must not differ in the last bits.
    is_plain = getattr(decoder, "identity_first_head", False)
    if type(decoder).output_layer is not TransformerDecoderBase.output_layer and not is_plain:
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
