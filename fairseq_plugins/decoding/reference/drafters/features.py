"""A trained drafter that reads the verifier's states of the accepted tokens instead of the tokens."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.reference.captured.graphed_masked_decoder import masked_decoder
from fairseq_plugins.decoding.reference.drafters import Drafter
from fairseq_plugins.decoding.reference.drafters.path import DraftOptions
from fairseq_plugins.decoding.reference.encoder import EncoderOut
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.layout import Chain
from fairseq_plugins.decoding.reference.state import Advance, DecodingState, Draft, no_draft
from fairseq_plugins.decoding.weights import (
    FloatLinear,
    Layer,
    dequantized,
    is_small,
    linear,
    quantized_if,
    without_query,
)
from fairseq_plugins.models.block_nat import BlockNat
from fairseq_plugins.models.verifier_features import FeatureReader


class FeatureDrafter(Drafter):
    """Draft `block_size` tokens with a `block_nat` of `--drafter-context features`.

    One pass over the last token and k - 1 masks, through a shallow stack. The prefix is represented by keys and values
    projected from the verifier's states, which the last verification computed anyway (as in DFlash, arXiv 2602.06036,
    for decoder-only models). They are written once, when a token is accepted. The newest state is added to the input.
    """

    def __init__(self, model: BlockNat, block_size: int, engine: Engine, options: DraftOptions) -> None:
        self.model = model
        self.block_size = block_size
        self.decoder = masked_decoder(model.decoder, engine, block_size, options)
        self.read = _reader(model, self.decoder.cached.layers, engine)
        mask_id, device = model.decoder.mask_id, model.decoder.mask_vector.device
        self.masks = torch.full((1, block_size - 1), mask_id, device=device)
        # Added to the input of the next block, [B, 1, D].
        self.newest: Tensor | None = None

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        assert encoder_out is not None
        self.decoder.start(encoder_out)
        self.newest = None

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        assert encoder_out is not None
        self.decoder.append_rows(encoder_out)
        if self.newest is not None:
            new = sample["net_input"]["src_tokens"].size(0)
            self.newest = F.pad(self.newest, (0, 0, 0, 0, 0, new))

    def draft(self, state: DecodingState) -> Draft:
        span = state.span
        width = min(self.block_size, state.remaining)
        if width <= 0:
            return no_draft(state)
        layout = Chain(state.lengths, span, width)
        tokens = [state.last_tokens(), self.masks[:, : width - 1].expand(len(state.lengths), -1)]
        return self.decoder.draft(width, tokens, layout, added=self.newest, keys=state.noise_keys)

    def observe(self, advance: Advance) -> None:
        assert advance.features is not None
        # Contiguous, because PyTorch multiplies strided rows sentence by sentence.
        key_value, added = self.read(advance.features.contiguous())
        # Keys and values beyond a sentence's emitted tokens are overwritten by the next block.
        self.decoder.cached.write_kv(key_value, advance.before, advance.span_before)
        self.newest = advance.last(added)

    def select_rows(self, rows: Tensor) -> None:
        self.decoder.select_rows(rows)
        if self.newest is not None:
            self.newest = self.newest.index_select(0, rows)


def _reader(model: BlockNat, layers: Sequence[Layer], engine: Engine) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return the map of states [B, T, F] to keys and values [L, B, T, 2, H, D / H] and the addend to the input."""
    reader, shape = model.decoder.reader, (2, layers[0].heads, -1)
    weight = reader.linear.weight
    fused = fused_reader(reader, layers, is_small if weight.device.type == "cpu" else lambda weight: True)
    if fused is not None:
        project_all, width = engine.linear(quantized_if(fused, engine.int8)), model.decoder.embed_dim

        def read_fused(features: Tensor) -> tuple[Tensor, Tensor]:
            result = project_all(features)
            key_value = result[..., :-width].unflatten(-1, (len(layers), *shape))
            return key_value.permute(2, 0, 1, 3, 4, 5), result[..., -width:]

        return read_fused
    fuse = engine.linear(quantized_if(linear(reader.linear), engine.int8))
    projections = [engine.linear(without_query(layer.self_qkv)) for layer in layers]

    def read_by_layer(features: Tensor) -> tuple[Tensor, Tensor]:
        states, added = reader.split(fuse(features))
        parts = [
            project(layer.self_norm(x) if layer.normalize_before else x).unflatten(-1, shape)
            for layer, project, x in zip(layers, projections, states, strict=True)
        ]
        return torch.stack(parts), added

    return read_by_layer


def fused_reader(
    reader: FeatureReader, layers: Sequence[Layer], may_be_copied: Callable[[Tensor], bool]
) -> FloatLinear | None:
    """Fuse the reader and the layers' projections into one linear layer: keys and values, then the input's addend.

    Returns None if a norm comes between reader and projection (pre-norm), or if the weight may not be copied.
    """
    if any(layer.normalize_before for layer in layers) or not may_be_copied(reader.linear.weight):
        return None
    width = len(reader.linear.bias) // (len(layers) + 1)
    *fusions, added_weight = reader.linear.weight.detach().float().unflatten(0, (-1, width))
    *offsets, added_bias = reader.linear.bias.detach().float().unflatten(0, (-1, width))
    weights, biases = [], []
    for layer, fusion, offset in zip(layers, fusions, offsets, strict=True):
        weight, bias = dequantized(without_query(layer.self_qkv))
        weights.append(weight.detach().float() @ fusion)
        biases.append(weight.detach().float() @ offset + (0 if bias is None else bias.detach().float()))
    dtype = reader.linear.weight.dtype
    return torch.cat([*weights, added_weight]).to(dtype), torch.cat([*biases, added_bias]).to(dtype)
