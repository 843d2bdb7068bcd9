"""Parts of fairseq's Transformers: position embeddings as tables, activation functions.

fairseq 0.12 has SiLU ("swish"), and cannot apply it.
"""

from collections.abc import Callable

import torch.nn.functional as F
from fairseq import utils
from fairseq.models import FairseqDecoder, FairseqEncoder
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding
from torch import Tensor

from fairseq_plugins.errors import ConfigurationError

KNOWN_POSITIONS = (LearnedPositionalEmbedding, SinusoidalPositionalEmbedding)


def position_table(model: TransformerDecoderBase | TransformerEncoderBase, count: int) -> Tensor | None:
    """Return the embeddings [count, D] of positions 0 .. count-1, None if the model has none.

    fairseq numbers positions from `padding_idx + 1`. A learned table may have fewer rows than `count`.
    """
    embed = model.embed_positions
    if embed is None:
        return None
    first = model.padding_idx + 1
    if isinstance(embed, LearnedPositionalEmbedding):
        return embed.weight[first : first + count]
    if isinstance(embed, SinusoidalPositionalEmbedding):
        like = model.embed_tokens.weight
        table = embed.weights
        if table is None or table.size(0) < first + count:
            table = embed.get_embedding(first + count, embed.embedding_dim, embed.padding_idx)
        return table[first : first + count].to(device=like.device, dtype=like.dtype)
    problem = f"position embedding {type(embed).__name__} is not supported"
    raise ConfigurationError(None, None, problem, "use {--decoder beam}")


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    """Return the function of `--activation-fn`; for "swish" fairseq has the class `torch.nn.SiLU` in its place."""
    return F.silu if name == "swish" else utils.get_activation_fn(name)


def set_activation(name: str, *stacks: FairseqEncoder | FairseqDecoder) -> None:
    """Let the layers of fairseq's encoders or decoders apply an activation function."""
    for stack in stacks:
        for layer in stack.layers.children():  # iterating itself, LayerDrop would leave some out
            layer.activation_fn = activation_function(name)
