"""Read the weights of fairseq's Transformer layers in the form that fast steps want: fused, without modules."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Linear = tuple[Tensor, Tensor | None]


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
    """The weights of one Transformer layer, query, key and value projections of self-attention fused into one.

    Those of cross-attention are None in an encoder.
    """

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


def norm(module: nn.Module | None) -> Norm | None:
    """Weights of a layer normalisation, None for none."""
    return None if module is None else Norm(module.weight, module.bias, module.eps)


def linear(module: nn.Linear) -> Linear:
    """Weight and bias of a linear layer."""
    return module.weight, module.bias


def without_query(query_key_value: Linear) -> Linear:
    """The projections to keys and values alone, [2 * D, D]."""
    weight, bias = query_key_value
    width = weight.size(1)
    return weight[width:], None if bias is None else bias[width:]


def fused(*modules: nn.Linear) -> Linear:
    """Several linear layers of the same input as one."""
    weight = torch.cat([module.weight for module in modules]).detach()
    if modules[0].bias is None:
        return weight, None
    return weight, torch.cat([module.bias for module in modules]).detach()
