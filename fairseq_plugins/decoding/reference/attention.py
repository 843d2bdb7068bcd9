"""Attention to the KV cache and to the source in PyTorch, for each layout of a step.

Masks and indices are computed once per step and shared by its layers: PyTorch would convert a boolean mask in every
layer.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.reference.layout import BeamLayout, Chain


def additive_mask(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Convert a boolean mask, True where attention is allowed, to the 0 or -inf that is added to its scores."""
    return None if mask is None else torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)


class ChainAttention:
    """Attention of T rows for each of B sentences.

    `source_mask` [B, 1, 1, S] is True for source tokens that may be read; None for all. `dtype` is that of hidden
    states.
    """

    def __init__(self, layout: Chain, source_mask: Tensor | None, dtype: torch.dtype) -> None:
        self.layout = layout
        self.mask = additive_mask(_chain_mask(layout), dtype)
        self.source_mask = additive_mask(source_mask, dtype)
        self.slot = layout.slot()
        self.sentence = torch.arange(len(layout.lengths), device=layout.lengths.device)[:, None]

    def self_attention(self, qkv: Tensor, heads: int, cache: Tensor) -> Tensor:
        """Write keys and values of the rows into the cache, and attend to it.

        Args:
            qkv: [B, T, 3 * D] queries, keys and values.
            heads: H.
            cache: [B, slots, 2, H, D / H] of this layer.

        Returns:
            [B, T, D].
        """
        qkv = qkv.unflatten(-1, (3, heads, -1))
        cache[self.sentence, self.slot] = qkv[:, :, 1:]
        key, value = cache[:, : self.layout.slots].permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(qkv[:, :, 0].transpose(1, 2), key, value, attn_mask=self.mask)
        return x.transpose(1, 2).flatten(2)

    def cross_attention(self, query: Tensor, heads: int, cross: Tensor) -> Tensor:
        """Attend to the source.

        Args:
            query: [B, T, D].
            heads: H.
            cross: [B, S, 2, H, D / H], keys and values of the source in this layer.
        """
        key, value = cross.permute(2, 0, 3, 1, 4)
        query = query.unflatten(-1, (heads, -1)).transpose(1, 2)
        x = F.scaled_dot_product_attention(query, key, value, attn_mask=self.source_mask)
        return x.transpose(1, 2).flatten(2)


class BeamAttention:
    """Attention of one row for each hypothesis; the hypotheses of a sentence share the keys and values of its source.

    Arguments as for `ChainAttention`.
    """

    def __init__(self, layout: BeamLayout, source_mask: Tensor | None, dtype: torch.dtype) -> None:
        self.layout = layout
        lengths, beam = layout.lengths, layout.beam
        self.row = torch.arange(len(lengths), device=lengths.device)
        self.slot = torch.arange(layout.slots, device=lengths.device)
        first = self.row - self.row % beam
        self.ancestor_row = first[:, None] + layout.beam_ancestors[:, : layout.slots]
        mask = (self.slot <= lengths[:, None])[:, None, None]
        self.mask, self.source_mask = additive_mask(mask, dtype), additive_mask(source_mask, dtype)

    def self_attention(self, qkv: Tensor, heads: int, cache: Tensor) -> Tensor:
        """Attend as `ChainAttention.self_attention`, with qkv [R, 3 * D] and the cache of R hypotheses."""
        qkv = qkv.unflatten(-1, (3, heads, -1))
        cache[self.row, self.layout.lengths] = qkv[:, 1:]
        key, value = cache[self.ancestor_row, self.slot].permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(qkv[:, 0, :, None], key, value, attn_mask=self.mask).flatten(1)

    def cross_attention(self, query: Tensor, heads: int, cross: Tensor) -> Tensor:
        """Attend as `ChainAttention.cross_attention`, with query [R, D] and the sources of R / beam sentences."""
        key, value = cross.permute(2, 0, 3, 1, 4)
        query = query.unflatten(-1, (heads, -1)).unflatten(0, (-1, self.layout.beam)).transpose(1, 2)
        x = F.scaled_dot_product_attention(query, key, value, attn_mask=self.source_mask)
        return x.transpose(1, 2).flatten(2).flatten(0, 1)


def _chain_mask(layout: Chain) -> Tensor | None:
    """Return a mask [B, 1, T, slots], True where attention is allowed; None if all is allowed."""
    if layout.last_visible is None and layout.width == 1 and layout.span.shortest == layout.span.longest:
        return None
    last = layout.slot() if layout.last_visible is None else layout.last_visible
    return (torch.arange(layout.slots, device=last.device) <= last[:, :, None])[:, None]
