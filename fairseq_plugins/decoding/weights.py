"""Read the weights of fairseq's Transformer layers, with fused projections."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, overload

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerDecoderBase
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import Tensor, nn

from fairseq_plugins.checkpoint.compact_weights import ordinary
from fairseq_plugins.checkpoint.int8_weights import restored, round_to_int8
from fairseq_plugins.checkpoint.mapped_weights import is_taken

# Copies of weights up to this size take little memory.
_SMALL_BYTES = 4 * 2**20
# Rows whose inputs are smaller are zero in int8.
_SMALLEST_INPUT = 1e-30
# 2^24 / 127^2.
_EXACT_PRODUCTS = 1040


@dataclass(frozen=True)
class QuantizedLinear:
    """A linear layer with int8 weights [outputs, inputs] and scales [outputs], whose inputs are rounded, too."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None


# Weight [outputs, inputs] and bias [outputs].
FloatLinear = tuple[Tensor, Tensor | None]
Linear = FloatLinear | QuantizedLinear


@dataclass(frozen=True)
class Norm:
    """Layer normalisation."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class Layer:
    """Weights of a Transformer layer; those of cross-attention are None in an encoder."""

    heads: int
    normalize_before: bool
    self_qkv: Linear
    self_out: Linear
    self_norm: Norm
    fc1: Linear
    activation: Callable[[Tensor], Tensor]
    fc2: Linear
    final_norm: Norm
    cross_query: Linear | None = None
    cross_key_value: Linear | None = None
    cross_out: Linear | None = None
    cross_norm: Norm | None = None


@overload
def norm(module: nn.LayerNorm) -> Norm: ...
@overload
def norm(module: None) -> None: ...
def norm(module: nn.LayerNorm | None) -> Norm | None:
    """Return the weights of a layer normalisation, None for none."""
    return None if module is None else Norm(module.weight, module.bias, module.eps)


def linear(module: nn.Linear) -> FloatLinear:
    """Return weight and bias of a linear layer."""
    return module.weight, module.bias


def dequantized(layer: Linear) -> FloatLinear:
    """Return weight and bias of a layer; quantised weights are converted to fp32."""
    if isinstance(layer, QuantizedLinear):
        return layer.weight.to(layer.scale.dtype) * layer.scale[:, None], layer.bias
    return layer


def is_small(weight: Tensor) -> bool:
    """Return whether a copy of a weight takes little memory."""
    return weight.nbytes <= _SMALL_BYTES


def quantized(layer: FloatLinear) -> QuantizedLinear:
    """Round weights to int8, symmetrically: the largest weight of each output becomes 127 or -127."""
    weight, bias = layer
    return QuantizedLinear(*round_to_int8(weight.detach()), None if bias is None else bias.detach())


def embeddings(weight: Tensor, int8: bool) -> Tensor:
    """Return a table of embeddings [V, D]; in int8 each row is rounded, as that of a linear layer."""
    if not int8:
        return weight
    rounded = restored(*round_to_int8(weight.detach()))
    return weight if torch.equal(rounded, weight) else rounded


def apply_quantized(x: Tensor, layer: QuantizedLinear) -> Tensor:
    """Apply a quantised layer to x [..., inputs] as the CPU kernels do, bit by bit (csrc/isa/linear_int8.cpp).

    The largest input of each row becomes 127 or -127.
    """
    largest = x.abs().amax(-1, keepdim=True)
    # 127 / largest would be a reciprocal times 127, rounded twice.
    steps = torch.where(largest > _SMALLEST_INPUT, torch.full_like(largest, 127) / largest, 0.0)
    rounded = (x * steps).round().clamp(-127, 127)
    # Sums of this many products are exact in fp32.
    parts = zip(rounded.split(_EXACT_PRODUCTS, -1), layer.weight.split(_EXACT_PRODUCTS, -1), strict=True)
    products = sum(F.linear(part, weight.to(x.dtype)).to(torch.int32) for part, weight in parts)
    assert isinstance(products, Tensor)
    scaled = products.to(x.dtype) * (largest / 127) * layer.scale
    return scaled if layer.bias is None else scaled + layer.bias


def quantized_if(layer: FloatLinear, int8: bool) -> Linear:
    """Return a linear layer, quantised if `int8`."""
    return quantized(layer) if int8 else layer


def quantized_layer(layer: Layer) -> Layer:
    """Quantise all linear layers of a Transformer layer."""
    values = {field.name: getattr(layer, field.name) for field in fields(layer)}
    changed: dict[str, Any] = {name: quantized(value) for name, value in values.items() if isinstance(value, tuple)}
    return replace(layer, **changed)


def without_query(query_key_value: Linear) -> Linear:
    """Return the rows of keys and values, [2 * D, D], of a fused projection [3 * D, D]."""
    if isinstance(query_key_value, QuantizedLinear):
        weight, scale, bias = query_key_value.weight, query_key_value.scale, query_key_value.bias
        width = weight.size(1)
        return QuantizedLinear(weight[width:], scale[width:], None if bias is None else bias[width:])
    weight, bias = query_key_value
    width = weight.size(1)
    return weight[width:], None if bias is None else bias[width:]


def fused(*modules: nn.Linear) -> FloatLinear:
    """Join linear layers of the same input; the modules' own weights become views of the result."""
    weight = _joined([ordinary(module.weight) for module in modules])
    return weight, None if modules[0].bias is None else _joined([module.bias for module in modules])


def _joined(parameters: Sequence[Tensor]) -> Tensor:
    """Join the rows of parameters, which become views of the result to save memory."""
    first = parameters[0].detach()
    if _are_adjacent(parameters):
        return first.as_strided((sum(map(len, parameters)), *first.shape[1:]), first.stride())
    # No inference tensors: training continues with these parameters after a validation.
    with torch.inference_mode(False), torch.no_grad():
        whole = torch.cat([parameter.detach() for parameter in parameters])
        # Parameters in shared storage, such as the flattened ones of sharded training, stay where they are.
        if all(_owns_its_memory(parameter) for parameter in parameters):
            parts = whole.split([len(parameter) for parameter in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.data = part
    return whole


def _are_adjacent(parameters: Sequence[Tensor]) -> bool:
    """Return whether parameters follow each other in one storage, as after an earlier `_joined`."""
    ends = [parameter.data_ptr() + parameter.nbytes for parameter in parameters]
    begins = [parameter.data_ptr() for parameter in parameters]
    share_storage = len({parameter.untyped_storage().data_ptr() for parameter in parameters}) == 1
    return share_storage and ends[:-1] == begins[1:] and all(parameter.is_contiguous() for parameter in parameters)


def _owns_its_memory(parameter: Tensor) -> bool:
    own = parameter.nbytes == parameter.untyped_storage().nbytes()
    return own and not parameter.is_inference() and not is_taken(parameter)


def vocabulary_projection(decoder: TransformerDecoderBase) -> FloatLinear | None:
    """Return the vocabulary projection; None if the output layer is not a single linear layer."""
    # With --identity-first-head, head 1 is the base model's projection, and must have the same result to the last bit.
    is_linear = getattr(decoder, "identity_first_head", False)
    if type(decoder).output_layer is not TransformerDecoderBase.output_layer and not is_linear:
        return None
    return linear(decoder.output_projection) if isinstance(decoder.output_projection, nn.Linear) else None


def read_decoder_layer(layer: TransformerDecoderLayerBase) -> Layer:
    """Return the weights of a decoder layer."""
    cross = layer.encoder_attn
    return replace(
        read_encoder_layer(layer),
        cross_query=linear(cross.q_proj),
        cross_key_value=fused(cross.k_proj, cross.v_proj),
        cross_out=linear(cross.out_proj),
        cross_norm=norm(layer.encoder_attn_layer_norm),
    )


def read_encoder_layer(layer: TransformerEncoderLayerBase | TransformerDecoderLayerBase) -> Layer:
    """Return the weights of an encoder layer, or the same part of a decoder layer."""
    attention = layer.self_attn
    return Layer(
        heads=attention.num_heads,
        normalize_before=layer.normalize_before,
        self_qkv=fused(attention.q_proj, attention.k_proj, attention.v_proj),
        self_out=linear(attention.out_proj),
        self_norm=norm(layer.self_attn_layer_norm),
        fc1=linear(layer.fc1),
        activation=layer.activation_fn,
        fc2=linear(layer.fc2),
        final_norm=norm(layer.final_layer_norm),
    )
