"""Self-attention of training blocks, with a separate mask for every sentence."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from torch import Tensor


@dataclass(frozen=True)
class Attended:
    """Mask and context of self-attention in training blocks.

    Attributes:
        visible: [B, 1, T, C + S], True where attention is allowed.
        context: [C, B, D], prepended to keys and values; None for none (C = 0).
    """

    visible: Tensor
    context: Tensor | None = None


class MaskedAttention(MultiheadAttention):
    """fairseq's self-attention with a mask for every sentence and context before the inputs."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Attended, **unused: Any
    ) -> tuple[Tensor, None]:
        """Attend from `query` [T, B, D] to `key` [S, B, D]; return the output [T, B, D] and no weights."""
        if attn_mask.context is not None:
            key = value = torch.cat([attn_mask.context, key])

        def heads(x: Tensor) -> Tensor:
            return x.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3)

        x = F.scaled_dot_product_attention(
            heads(self.q_proj(query)),
            heads(self.k_proj(key)),
            heads(self.v_proj(value)),
            attn_mask=attn_mask.visible,
            dropout_p=self.dropout_module.p if self.training else 0.0,
        )
        return self.out_proj(x.permute(2, 0, 1, 3).flatten(2)), None
