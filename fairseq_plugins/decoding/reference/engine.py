"""Run layers with PyTorch in a given precision, with or without CUDA graphs and batch invariance."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.reference.captured.graph_capture import Graphs
from fairseq_plugins.decoding.reference.fixed_shapes import linear as fixed_linear
from fairseq_plugins.decoding.weights import Layer, Linear, QuantizedLinear, apply_quantized

# Attention of a layer, from projected rows (queries, or queries, keys and values) to outputs [..., D].
Attend = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Engine:
    """Settings of all layers, made once from the options. The defaults run PyTorch's operations one by one."""

    int8: bool = False  # round the weights and inputs of linear layers, and embeddings; otherwise in the model's type
    graphs: Graphs | None = None  # captures steps in rounded shapes as CUDA graphs; without effect on a CPU
    # Make the result of a row independent of the other rows of a step (fixed_shapes.py). In half precision rounding
    # would otherwise change tokens.
    batch_invariant: bool = False

    def has_graphs(self, device: torch.device) -> bool:
        """Return whether steps on a device use rounded shapes and fixed memory, as CUDA graphs need."""
        return self.graphs is not None and device.type == self.graphs.device_type

    def linear(self, layer: Linear) -> Callable[[Tensor], Tensor]:
        """Return a linear layer as a function of x [..., inputs]."""
        return lambda x: self.apply(x, layer)

    def apply(self, x: Tensor, layer: Linear) -> Tensor:
        """Apply a linear layer to x [..., inputs]."""
        if isinstance(layer, QuantizedLinear):
            return apply_quantized(x, layer)
        return (fixed_linear if self.batch_invariant else F.linear)(x, *layer)

    def layer(self, layer: Layer, x: Tensor, attend: Attend, attend_source: Attend | None = None) -> Tensor:
        """Run a Transformer layer on x [..., D], with layer normalisation before or after each sublayer.

        Args:
            attend: self-attention, from queries, keys and values [..., 3 * D] to [..., D].
            attend_source: cross-attention, from queries [..., D] to [..., D]; None in an encoder.
        """
        pre_norm = layer.normalize_before
        attended = attend(self.apply(layer.self_norm(x) if pre_norm else x, layer.self_qkv))
        x = x + self.apply(attended, layer.self_out)
        x = x if pre_norm else layer.self_norm(x)
        if attend_source is not None:
            assert layer.cross_norm is not None and layer.cross_query is not None and layer.cross_out is not None
            attended = attend_source(self.apply(layer.cross_norm(x) if pre_norm else x, layer.cross_query))
            x = x + self.apply(attended, layer.cross_out)
            x = x if pre_norm else layer.cross_norm(x)
        inner = layer.activation(self.apply(layer.final_norm(x) if pre_norm else x, layer.fc1))
        x = x + self.apply(inner, layer.fc2)
        return x if pre_norm else layer.final_norm(x)


def log_softmax(scores: Tensor) -> Tensor:
    """Return log-probabilities in fp32 of scores [..., V]."""
    return torch.log_softmax(scores, -1, dtype=torch.float32)
