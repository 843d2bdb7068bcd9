"""Activation functions of fairseq's Transformers, with SiLU ("swish"), which fairseq 0.12 cannot apply."""

from collections.abc import Callable

import torch.nn.functional as F
from fairseq import utils
from fairseq.models import FairseqDecoder, FairseqEncoder
from torch import Tensor


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    """Return the function of `--activation-fn`; for "swish" fairseq has the class `torch.nn.SiLU` in its place."""
    return F.silu if name == "swish" else utils.get_activation_fn(name)


def set_activation(name: str, *stacks: FairseqEncoder | FairseqDecoder) -> None:
    """Let the layers of fairseq's encoders or decoders apply an activation function."""
    for stack in stacks:
        for layer in stack.layers.children():  # iterating itself, LayerDrop would leave some out
            layer.activation_fn = activation_function(name)
