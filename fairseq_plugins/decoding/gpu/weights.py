"""The weights of a Transformer on the device, as the kernels read them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fairseq_plugins.decoding.gpu.kernels.constants import Activation
from fairseq_plugins.decoding.kernel_module import Unsupported


@dataclass(frozen=True)
class Linear:
    """A linear layer: weight [outputs, inputs] and bias [outputs] or None."""

    weight: Tensor
    bias: Tensor | None = None

    @property
    def inputs(self) -> int:
        return self.weight.size(1)

    @property
    def outputs(self) -> int:
        return self.weight.size(0)


def joined(layers: Sequence[Linear]) -> Linear:
    """Return layers as one, whose outputs are those of each, one after the other."""
    biases = [layer.bias for layer in layers if layer.bias is not None]
    return Linear(torch.cat([layer.weight for layer in layers]), torch.cat(biases) if biases else None)


@dataclass(frozen=True)
class Norm:
    """Layer normalisation over the last dimension; without weight, none."""

    weight: Tensor | None = None
    bias: Tensor | None = None
    eps: float = 0.0

    def __bool__(self) -> bool:
        return self.weight is not None


@dataclass
class Layer:
    """A Transformer layer; an encoder layer has no cross-attention."""

    heads: int = 1
    normalize_before: bool = False
    activation: Activation = Activation.RELU
    self_qkv: Linear = field(default_factory=lambda: Linear(torch.empty(0, 0)))
    self_out: Linear = field(default_factory=lambda: Linear(torch.empty(0, 0)))
    self_norm: Norm = field(default_factory=Norm)
    fc1: Linear = field(default_factory=lambda: Linear(torch.empty(0, 0)))
    fc2: Linear = field(default_factory=lambda: Linear(torch.empty(0, 0)))
    final_norm: Norm = field(default_factory=Norm)
    cross_query: Linear | None = None
    cross_key_value: Linear | None = None
    cross_out: Linear | None = None
    cross_norm: Norm = field(default_factory=Norm)


@dataclass(frozen=True)
class Transformer:
    """An encoder or decoder, with fields as for `KernelModule.transformer`.

    Positions beyond the table have the embedding of its last one. Raises Unsupported for embeddings in int8, post-norm
    layers with a norm after the last one, layers that differ in heads or norms, and heads wider than 256.
    """

    layers: Sequence[Layer]
    embedding: Tensor
    scale: float
    positions: Tensor | None
    embedding_norm: Norm
    final_norm: Norm
    projection: Linear | None
    embedding_scales: Tensor | None = None  # of the interface; not supported

    def __post_init__(self) -> None:
        width, first = self.embedding.size(1), self.layers[0]
        if self.embedding_scales is not None:
            raise Unsupported("its embeddings are in int8")
        if not first.normalize_before and self.final_norm:
            raise Unsupported("the layers are normalised after each sublayer and once more at the end")
        if len({(layer.heads, layer.normalize_before) for layer in self.layers}) > 1:
            raise Unsupported("its layers differ in their heads or norms")
        if width // first.heads > 256:
            raise Unsupported(f"its heads are {width // first.heads} wide")

    @property
    def width(self) -> int:
        return self.embedding.size(1)

    @property
    def heads(self) -> int:
        return self.layers[0].heads

    def source_key_value(self) -> Linear:
        """Return the projections of the source to keys and values of all layers, [L * 2 * D, inputs]."""
        return joined([layer.cross_key_value for layer in self.layers if layer.cross_key_value is not None])
