"""Attention of a step in PyTorch over the cache, for all kinds of layout.

What all layers of a step share is made once: masks above all, which PyTorch would turn into numbers in every layer.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.engine.layout import BeamLayout, Chain


def additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What attention adds to its scores for a mask that is True where it may read: 0 there, -inf elsewhere."""
    return None if mask is None else torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)


class ChainAttention:
    """Attention of T rows of every one of B sentences.

    Args:
        layout: of the step.
        readable: [B, 1, 1, S], True where a token of the source may be read; None where all may.
        dtype: of the hidden states.
    """

    def __init__(self, layout: Chain, readable: Tensor | None, dtype: torch.dtype) -> None:
        self.layout = layout
        self.mask = additive(_chain_mask(layout), dtype)
        self.source_mask = additive(readable, dtype)
        uniform = layout.span.uniform
        self.slot = None if uniform else layout.slot()
        self.sentence = None if uniform else torch.arange(len(layout.lengths), device=layout.lengths.device)[:, None]

    def own(self, qkv: Tensor, heads: int, cache: Tensor) -> Tensor:
        """Write keys and values of the rows into the cache, and attend to it.

        Args:
            qkv: [B, T, 3 * D] queries, keys and values.
            heads: H.
            cache: [B, slots, 2, H, D / H] of this layer.

        Returns:
            [B, T, D].
        """
        qkv = qkv.unflatten(-1, (3, heads, -1))
        span, slots = self.layout.span, self.layout.slots
        cache = cache[:, :slots]
        if span.uniform:
            cache[:, span.longest :] = qkv[:, :, 1:]
        else:
            cache[self.sentence, self.slot] = qkv[:, :, 1:]
        key, value = cache.permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(qkv[:, :, 0].transpose(1, 2), key, value, attn_mask=self.mask)
        return x.transpose(1, 2).flatten(2)

    def source(self, query: Tensor, heads: int, cross: Tensor) -> Tensor:
        """Attend to the source.

        Args:
            query: [B, T, D].
            heads: H.
            cross: [B, S, 2, H, D / H] of this layer.
        """
        key, value = cross.permute(2, 0, 3, 1, 4)
        query = query.unflatten(-1, (heads, -1)).transpose(1, 2)
        x = F.scaled_dot_product_attention(query, key, value, attn_mask=self.source_mask)
        return x.transpose(1, 2).flatten(2)


class BeamAttention:
    """Attention of one row of every hypothesis; those of a sentence read its source together."""

    def __init__(self, layout: BeamLayout, readable: Tensor | None, dtype: torch.dtype) -> None:
        self.layout = layout
        lengths, beam = layout.lengths, layout.beam
        self.row = torch.arange(len(lengths), device=lengths.device)
        self.slot = torch.arange(layout.slots, device=lengths.device)
        first = self.row - self.row % beam
        self.holder = first[:, None] + layout.beam_ancestors[:, : layout.slots]
        mask = None if layout.span.uniform else (self.slot <= lengths[:, None])[:, None, None]
        self.mask, self.source_mask = additive(mask, dtype), additive(readable, dtype)

    def own(self, qkv: Tensor, heads: int, cache: Tensor) -> Tensor:
        """As `ChainAttention.own`, of qkv [R, 3 * D] and the cache of R hypotheses."""
        qkv = qkv.unflatten(-1, (3, heads, -1))
        cache[self.row, self.layout.lengths] = qkv[:, 1:]
        key, value = cache[self.holder, self.slot].permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(qkv[:, 0, :, None], key, value, attn_mask=self.mask).flatten(1)

    def source(self, query: Tensor, heads: int, cross: Tensor) -> Tensor:
        """As `ChainAttention.source`, of query [R, D] and the sources of R / beam sentences."""
        key, value = cross.permute(2, 0, 3, 1, 4)
        query = query.unflatten(-1, (heads, -1)).unflatten(0, (-1, self.layout.beam)).transpose(1, 2)
        x = F.scaled_dot_product_attention(query, key, value, attn_mask=self.source_mask)
        return x.transpose(1, 2).flatten(2).flatten(0, 1)


def _chain_mask(layout: Chain) -> Tensor | None:
    """Boolean mask, True where attention is allowed, broadcastable to [B, H, T, slots]; None where all is."""
    last = layout.last_visible
    if last is None and layout.width == 1 and layout.span.uniform:
        return None
    if last is None:
        # Equal lengths make equal causal masks; what a caller calls visible may still differ between sentences.
        last = layout.slot()[:1] if layout.span.uniform else layout.slot()
    return (torch.arange(layout.slots, device=last.device) <= last[:, :, None])[:, None]
