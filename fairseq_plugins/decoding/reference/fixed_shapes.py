"""Batch-invariant operations: the result of a row does not depend on the other rows of its step.

Matrix-product libraries choose the order of additions by the shape. In fp32 this changes a score by a millionth. In
half precision it can change which token is best, so that verifying a draft gives other tokens than decoding them one
by one. As in LLM-42 (arXiv 2601.17768), products here always have the same shape: `ROWS` rows at a time. Attention
reads `SLOTS` slots at a time and adds their sums in order.

This takes many launches. On a GPU with Triton, `triton_kernels` does the same in one launch per operation.
"""

import functools
import logging
import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.reference.layout import Chain
from fairseq_plugins.decoding.reference.rows import padding_last
from fairseq_plugins.errors import one_line
from fairseq_plugins.process.output import say

logger = logging.getLogger(__name__)

ROWS = 32
SLOTS = 32


def missing_triton() -> str:
    """Return that Triton is not installed, and the remedy; empty if it is."""
    return "Triton is not installed; install triton" if find_spec("triton") is None else ""


def triton_problem() -> str:
    """Return why Triton cannot be used on this GPU, and the remedy; empty if it can."""
    if missing := missing_triton():
        return missing
    try:
        # A C compiler makes its interface to the driver, in its cache.
        import_module("triton").runtime.driver.active.get_current_target()
    except Exception as error:
        reason = one_line(error, 200).removesuffix(".")
        return f"Triton cannot compile ({reason}); it needs gcc, Python's headers, and a TRITON_CACHE_DIR to write to"
    return ""


@functools.cache
def triton_kernels() -> Any:
    """Return the module `triton_kernels`; None if Triton cannot be used."""
    problem = triton_problem()
    if problem:
        logger.warning("half precision: steps take many launches: %s", problem)
        return None
    cache = os.environ.get("TRITON_CACHE_DIR") or Path(os.environ.get("TRITON_HOME") or Path.home(), ".triton/cache")
    if not any(Path(cache).glob("*/_attention.json")):
        say("Triton compiles two kernels for this GPU before the first step; later runs find them in its cache.")
    return import_module("fairseq_plugins.decoding.reference.captured.triton_kernels")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a linear layer to x [..., I]."""
    kernels = triton_kernels() if x.device.type == "cuda" else None
    if kernels is not None:
        applied: Tensor = kernels.linear(x, weight, bias)
        return applied
    return in_row_blocks(lambda rows: F.linear(rows, weight, bias))(x)


def in_row_blocks(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function of rows [..., I] that computes them in blocks of `ROWS`, the last one padded."""

    def run(x: Tensor) -> Tensor:
        (result,) = by_row_blocks(lambda rows: (function(rows),), x.reshape(-1, x.size(-1)))
        assert result is not None
        return result.reshape(*x.shape[:-1], result.size(1))

    return run


def by_row_blocks(function: Callable[..., tuple[Tensor | None, ...]], *arguments: Tensor) -> tuple[Tensor | None, ...]:
    """Apply a function to arguments [B, ...] in blocks of `ROWS` rows, the last one padded; return results [B, ...]."""
    size = len(arguments[0])
    missing = -size % ROWS
    padded = [F.pad(x, [0, 0] * (x.dim() - 1) + [0, missing]) if missing else x for x in arguments]
    blocks = [function(*block) for block in zip(*(x.split(ROWS) for x in padded), strict=True)]
    parts = zip(*blocks, strict=True)
    joined = blocks[0] if len(blocks) == 1 else (None if of[0] is None else torch.cat(of) for of in parts)
    return tuple(None if x is None else x[:size] for x in joined)


def attention(query: Tensor, key_value: Tensor, last_visible: Tensor) -> Tensor:
    """Compute the attention of T rows for each of B sentences.

    Args:
        query: [B, T, H, W].
        key_value: [B, S, 2, H, W].
        last_visible: [B, T], the last slot that each row reads; it reads all slots before it, too.

    Returns:
        [B, T, H * W].
    """
    kernels = triton_kernels() if query.device.type == "cuda" else None
    if kernels is not None:
        attended: Tensor = kernels.attention(query, key_value, last_visible)
        return attended
    return _attention_of_blocks(query, key_value, last_visible)


def soft_copy(query: Tensor, key: Tensor, value: Tensor, padding: Tensor) -> Tensor:
    """Attend from queries [B, T, D] to keys and values [B, S, D] of one head, without those of padding [B, S]."""
    order = padding_last(padding)[:, :, None].expand_as(key)
    key_value = torch.stack([key.gather(1, order), value.gather(1, order)], dim=2)[:, :, :, None]
    last = ((~padding).sum(1, keepdim=True) - 1).expand(query.shape[:2])
    # Once a batch; its head may be wider than those of Triton's kernel.
    return _attention_of_blocks(query[:, :, None], key_value, last)


def _attention_of_blocks(query: Tensor, key_value: Tensor, last_visible: Tensor) -> Tensor:
    """Compute `attention` in blocks of `ROWS` rows and `SLOTS` slots."""
    batch, width = query.shape[:2]
    sentence = torch.arange(batch, device=query.device)[:, None].expand(-1, width)
    missing = -batch * width % ROWS
    queries = F.pad(query.flatten(0, 1), (0, 0, 0, 0, 0, missing)).split(ROWS)
    sentences, last = (F.pad(rows.flatten(), (0, missing)).split(ROWS) for rows in (sentence, last_visible))
    key_value = F.pad(key_value, (0, 0, 0, 0, 0, 0, 0, -key_value.size(1) % SLOTS))
    slot = torch.arange(key_value.size(1), device=query.device)
    blocks = [
        _attend(rows, key_value[of], slot > visible[:, None, None, None])
        for rows, of, visible in zip(queries, sentences, last, strict=True)
    ]
    attended = torch.cat(blocks)[: batch * width]
    return attended.view(batch, width, attended.size(1))


def _attend(query: Tensor, key_value: Tensor, hidden: Tensor) -> Tensor:
    """Compute the attention of rows [ROWS, H, W], each with its own keys and values [ROWS, S, 2, H, W].

    `hidden` [ROWS, 1, 1, S] is True for slots that a row must not read.
    """
    query = query[:, :, None]
    # From [ROWS, SLOTS, 2, H, W] of every block of slots to [2, ROWS, H, SLOTS, W].
    blocks = [block.permute(2, 0, 3, 1, 4).contiguous() for block in key_value.split(SLOTS, dim=1)]
    scores = torch.cat([(query @ key.transpose(2, 3)).float() for key, _ in blocks], dim=3) * query.size(3) ** -0.5
    scores = scores.masked_fill(hidden, -torch.inf)
    # Hidden slots have a weight of exactly 0, so that further blocks of them change no sum.
    weights = (scores - scores.amax(3, keepdim=True)).exp().split(SLOTS, dim=3)
    total, attended = scores.new_zeros(()), scores.new_zeros(())
    for weight, (_, value) in zip(weights, blocks, strict=True):
        weight = weight.contiguous()
        total = total + weight.sum(3, keepdim=True)
        attended = attended + (weight.to(value.dtype) @ value).float()
    result: Tensor = attended / total
    return result.to(query.dtype).flatten(1)


class FixedAttention:
    """Batch-invariant variant of `ChainAttention`.

    `source_mask` [B, 1, 1, S] is True for source tokens that may be read, padding last; None for all of
    `source_length`.
    """

    def __init__(self, layout: Chain, source_mask: Tensor | None, source_length: int) -> None:
        slot = layout.slot()
        rows = torch.arange(len(slot), device=slot.device)
        self.slots, self.cache_index = layout.slots, (rows[:, None], slot)
        self.last = slot if layout.last_visible is None else layout.last_visible.expand_as(slot)
        lengths = torch.full_like(rows, source_length) if source_mask is None else source_mask.sum((1, 2, 3))
        self.last_of_source = (lengths - 1)[:, None].expand_as(slot)

    def self_attention(self, qkv: Tensor, heads: int, cache: Tensor) -> Tensor:
        """Attend as `ChainAttention.self_attention`."""
        qkv = qkv.unflatten(-1, (3, heads, -1))
        cache[self.cache_index] = qkv[:, :, 1:]
        return attention(qkv[:, :, 0], cache[:, : self.slots], self.last)

    def cross_attention(self, query: Tensor, heads: int, cross: Tensor) -> Tensor:
        """Attend as `ChainAttention.cross_attention`."""
        return attention(query.unflatten(-1, (heads, -1)), cross, self.last_of_source)
