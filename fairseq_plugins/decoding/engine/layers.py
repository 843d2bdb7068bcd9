"""The arithmetic of a Transformer layer in PyTorch, of encoder and decoder: what the kernels are tested against."""

from collections.abc import Callable

from torch import Tensor

from fairseq_plugins.decoding.engine.weights import Layer, Linear

# From projected rows to what attention makes of them, [..., D].
Attend = Callable[[Tensor], Tensor]
# A linear layer applied to x [..., I].
Apply = Callable[[Tensor, Linear], Tensor]


def transformer_layer(
    layer: Layer, x: Tensor, linear: Apply, attend: Attend, attend_source: Attend | None = None
) -> Tensor:
    """One layer, with layer normalisation before or after its parts.

    Args:
        layer: its weights.
        x: [..., D].
        linear: how its linear layers are applied.
        attend: self-attention: of queries, keys and values [..., 3 * D] the attended values [..., D].
        attend_source: cross-attention: of queries [..., D] the same; None in an encoder.
    """
    before = layer.normalize_before
    attended = attend(linear(layer.self_norm(x) if before else x, layer.self_qkv))
    x = x + linear(attended, layer.self_out)
    x = x if before else layer.self_norm(x)
    if attend_source is not None:
        assert layer.cross_norm is not None and layer.cross_query is not None and layer.cross_out is not None
        attended = attend_source(linear(layer.cross_norm(x) if before else x, layer.cross_query))
        x = x + linear(attended, layer.cross_out)
        x = x if before else layer.cross_norm(x)
    wide = layer.activation(linear(layer.final_norm(x) if before else x, layer.fc1))
    x = x + linear(wide, layer.fc2)
    return x if before else layer.final_norm(x)
