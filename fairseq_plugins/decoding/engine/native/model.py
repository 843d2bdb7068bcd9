"""Convert fairseq's modules for the compiled kernels: linear layers, Transformers, parts of drafters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, overload

import torch
import torch.nn.functional as F
from fairseq.models import FairseqEncoder
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules import gelu
from torch import Tensor

from fairseq_plugins.decoding.engine.encoder import is_known_encoder
from fairseq_plugins.decoding.engine.native import NotNative, kernels
from fairseq_plugins.decoding.engine.native.available_memory import available_memory
from fairseq_plugins.decoding.engine.weights import (
    Layer,
    Linear,
    Norm,
    Precision,
    QuantizedLinear,
    is_small,
    linear,
    norm,
    read_decoder_layer,
    read_encoder_layer,
    vocabulary_projection,
)
from fairseq_plugins.models.block_nat import BlockNatDecoder
from fairseq_plugins.models.positions import KNOWN_POSITIONS, position_table
from fairseq_plugins.models.support import unsupported_reason

# Large weights have a packed copy only if it takes at most this share of the memory that is available.
_COPY_SHARE = 1 / 4
# Narrow layers stay in the cache: there, a single row takes AMX tiles twice the time of vectors.
NARROW = 511
# AMX tiles need a number of inputs that is a multiple of 32, and weights that are exact in float16 after multiplication
# by 1024 (csrc/isa/amx_tiles.h).
_TILE_INPUTS, _TILE_SCALE = 32, 1024.0
# Micro-batch of a thread. Too few rows make matrix products slow. Too many rows push a narrow model's weights out of
# the cache; a wide model's weights do not fit into it anyway.
_MIN_SENTENCES, _ROWS, _ROWS_IF_WIDE = 8, 24, 128


def activations() -> dict[Callable[[Tensor], Tensor], Any]:
    """Map PyTorch's activation functions to those of the kernels."""
    known = kernels().Activation
    return {F.relu: known.RELU, gelu: known.GELU, F.silu: known.SILU}


def micro_batch_size(width: int) -> tuple[int, int]:
    """Return a thread's micro-batch for a model of this width: the minimum of sentences, and the target of rows."""
    return _MIN_SENTENCES, _ROWS if width <= 256 else _ROWS_IF_WIDE


@dataclass(frozen=True)
class NativeWeights:
    """Convert fairseq's modules for the kernels, and choose the format of each weight.

    Attributes:
        packed: keep packed copies of large weights, which the kernels read faster; small ones always have one.
        precision: precision of linear layers.
        batch_invariant: make the result of a row independent of the number of rows, to the last bit.
        many_rows: choose formats that are fast for steps of many rows.
    """

    packed: bool = True
    precision: Precision = Precision.FP32
    batch_invariant: bool = False
    many_rows: bool = False

    @property
    def module(self) -> ModuleType:
        """The compiled module."""
        return kernels()

    def linear(self, layer: Linear, precision: Precision | None = None) -> Any:
        """Convert a linear layer.

        Raises:
            NotNative: for weights that are not in fp32 on the CPU.
        """
        module, precision = self.module, precision or self.precision
        scale = None
        if isinstance(layer, QuantizedLinear):
            bias, scale, weight_format = layer.bias, layer.scale, module.WeightFormat.INT8
            weight = _array(layer.weight, torch.int8)
        else:
            bias = layer[1]
            weight = _array(layer[0])
            weight_format = self._format(weight, precision)
        return module.linear(
            weight, _array(bias), _array(scale), format=weight_format, batch_invariant=self.batch_invariant
        )

    def _format(self, weight: Tensor, precision: Precision) -> Any:
        """Return the fastest format (`WeightFormat`) that keeps the weight's precision and the memory limits."""
        formats, supports = self.module.WeightFormat, self.module.supports
        if precision is Precision.INT8:
            return formats.INT8
        is_near = min(weight.shape) <= NARROW and is_small(weight)
        if not is_near and not (self.packed and weight.nbytes <= _COPY_SHARE * available_memory()):
            return formats.ROWS
        if not supports(formats.FP16_PANELS) or not _is_exact_in_half(weight):
            return formats.PANELS
        if self.packed and (self.many_rows or not is_near) and supports(formats.FP16_AMX_TILES):
            if weight.size(1) % _TILE_INPUTS == 0 and _is_exact_in_half(weight * _TILE_SCALE):
                return formats.FP16_AMX_TILES
        return formats.FP16_PANELS

    def for_drafts(self) -> "NativeWeights":
        """Return the converter for a drafter: in INT8, since drafts are verified, unless copies are ruled out."""
        return replace(self, precision=Precision.INT8) if self.packed else self

    def norm(self, values: Norm | None) -> Any:
        """Convert a layer normalisation; None becomes an empty one."""
        if values is None:
            return self.module.Norm()
        return self.module.Norm(_array(values.weight), _array(values.bias), values.eps)

    def layer(self, weights: Layer) -> Any:
        """Convert a Transformer layer.

        Raises:
            NotNative: for an unsupported activation.
        """
        known = activations()
        if weights.activation not in known:
            name = getattr(weights.activation, "__name__", str(weights.activation))
            raise NotNative(f"the kernels do not support the activation {name}")
        layer = self.module.Layer()
        layer.heads, layer.normalize_before = weights.heads, weights.normalize_before
        layer.activation = known[weights.activation]
        layer.self_norm, layer.final_norm = self.norm(weights.self_norm), self.norm(weights.final_norm)
        for name in ("self_qkv", "self_out", "fc1", "fc2"):
            setattr(layer, name, self.linear(getattr(weights, name)))
        if weights.cross_query is not None:
            layer.cross_norm = self.norm(weights.cross_norm)
            for name in ("cross_query", "cross_key_value", "cross_out"):
                setattr(layer, name, self.linear(getattr(weights, name)))
        return layer

    def decoder(self, decoder: TransformerDecoderBase, projection: Any = None) -> Any:
        """Convert a fairseq decoder.

        Args:
            decoder: decoder of a fairseq Transformer.
            projection: vocabulary projection in the kernels; None for the decoder's own.

        Raises:
            NotNative: for a decoder that the kernels do not support.
        """
        reason = unsupported_reason(decoder)
        if reason is not None:
            raise NotNative(reason)
        if decoder.project_in_dim is not None or decoder.project_out_dim is not None:
            raise NotNative("the embeddings have another width than the layers")
        if projection is None:
            own = vocabulary_projection(decoder)
            if own is None:
                raise NotNative(f"the vocabulary projection of {type(decoder).__name__} is not a linear layer")
            projection = self.linear(own)
        return self._transformer(
            decoder, [self.layer(read_decoder_layer(layer)) for layer in decoder.layers], projection
        )

    def encoder(self, encoder: FairseqEncoder) -> Any:
        """Convert a fairseq encoder; return None for one that the kernels do not support, which runs in PyTorch."""
        if not is_known_encoder(encoder):
            return None
        if encoder.embed_positions is not None and not isinstance(encoder.embed_positions, KNOWN_POSITIONS):
            return None
        return self._transformer(encoder, [self.layer(read_encoder_layer(layer)) for layer in encoder.layers], None)

    def _transformer(
        self, module: TransformerDecoderBase | TransformerEncoderBase, layers: Sequence[Any], projection: Any
    ) -> Any:
        positions = position_table(module, module.max_positions())
        return self.module.transformer(
            layers,
            _array(module.embed_tokens.weight),
            float(module.embed_scale),
            _array(positions),
            positions_every_layer=getattr(module, "positions_every_layer", False),
            embedding_norm=self.norm(norm(getattr(module, "layernorm_embedding", None))),
            final_norm=self.norm(norm(getattr(module, "layer_norm", None))),
            projection=projection,
        )

    # ------------------------------------------------------------------------------- parts of trained drafters

    def drafter_decoder(self, decoder: BlockNatDecoder, vocabulary: Tensor | None) -> Any:
        """Convert the decoder of a drafter, which scores only the tokens `vocabulary` [N] (None: all)."""
        own = vocabulary_projection(decoder)
        if own is None:
            raise NotNative(f"the vocabulary projection of {type(decoder).__name__} is not a linear layer")
        weight, bias = own
        if vocabulary is not None:
            weight, bias = weight[vocabulary], None if bias is None else bias[vocabulary]
        return self.decoder(decoder, self.linear((weight, bias)))

    def path(self, decoder: BlockNatDecoder, vocabulary: Tensor | None) -> Any:
        """Convert the layers that choose a draft's tokens from their scores (drafters/path.py); a GRU stays in fp32."""
        transition, size = decoder.transition, decoder.embed_tokens.num_embeddings
        ids = torch.arange(size) if vocabulary is None else vocabulary
        layers: dict[str, Any] = {}
        before = None
        if transition is not None:
            before = transition.before.weight
            layers["after"] = self.linear((transition.after.weight[ids], None))
            cell, rank = transition.cell, before.size(1)
            if cell is not None:
                assert transition.of_state is not None
                width, exact = cell.input_size - rank, Precision.FP32
                of_input, of_state, input_bias, state_bias = cell.all_weights[0]
                layers["gru_hidden"] = self.linear((of_input[:, :width], input_bias), exact)
                layers["gru_token"] = self.linear((of_input[:, width:], None), exact)
                layers["gru_recurrent"] = self.linear((of_state, state_bias), exact)
                layers["to_rank"] = self.linear((transition.of_state.weight, None), exact)
        names = ("after", "gru_hidden", "gru_token", "gru_recurrent", "to_rank")
        return self.module.Path(_array(ids, torch.long), _array(before), **{name: layers.get(name) for name in names})

    def mask_weights(self, decoder: BlockNatDecoder) -> Any:
        """Convert the layers that compute a drafter's mask embeddings (engine/mask_embeddings.py)."""
        copy = decoder.copy_attention
        positions = None if copy is None else position_table(decoder, decoder.max_positions())
        own = None if copy is None else self.linear(linear(copy), Precision.FP32)
        return self.module.MaskWeights(_array(decoder.mask_vector), own, _array(positions))


@overload
def _array(tensor: Tensor, dtype: torch.dtype = ...) -> Tensor: ...
@overload
def _array(tensor: None, dtype: torch.dtype = ...) -> None: ...
def _array(tensor: Tensor | None, dtype: torch.dtype = torch.float32) -> Tensor | None:
    """Return a tensor as the kernels read it: contiguous, on the CPU.

    Raises:
        NotNative: for a tensor of another type or on another device.
    """
    if tensor is None:
        return None
    if tensor.device.type != "cpu" or tensor.dtype != dtype:
        raise NotNative(f"the weights are in {str(tensor.dtype).removeprefix('torch.')} on {tensor.device.type}")
    return tensor.detach().contiguous()


def _is_exact_in_half(weight: Tensor) -> bool:
    """Return whether all numbers of a weight are exact in float16."""
    # In blocks: most weights fail in the first one, and small temporaries need little memory.
    blocks = weight.reshape(-1).split(2**16)
    return all(bool((block.half().to(block.dtype) == block).all()) for block in blocks)
