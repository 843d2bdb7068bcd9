"""The arithmetic of a Transformer layer in PyTorch, of encoder and decoder: what the kernels are tested against."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.engine.weights import Layer

# From projected rows to what attention makes of them, [..., D].
Attend = Callable[[Tensor], Tensor]


def transformer_layer(layer: Layer, x: Tensor, attend: Attend, attend_source: Attend | None = None) -> Tensor:
    """One layer, with layer normalisation before or after its parts.

    Args:
        layer: its weights.
        x: [..., D].
        attend: self-attention: of queries, keys and values [..., 3 * D] the attended values [..., D].
        attend_source: cross-attention: of queries [..., D] the same; None in an encoder.
    """
    before = layer.normalize_before
    attended = attend(F.linear(layer.self_norm(x) if before else x, *layer.self_qkv))
    x = x + F.linear(attended, *layer.self_out)
    x = x if before else layer.self_norm(x)
    if attend_source is not None:
        attended = attend_source(F.linear(layer.cross_norm(x) if before else x, *layer.cross_query))
        x = x + F.linear(attended, *layer.cross_out)
        x = x if before else layer.cross_norm(x)
    wide = layer.activation(F.linear(layer.final_norm(x) if before else x, *layer.fc1))
    x = x + F.linear(wide, *layer.fc2)
    return x if before else layer.final_norm(x)
