"""PyTorch's operations in shapes that are always the same, so that a row's result depends on nothing else in the step.

Libraries for matrix products choose the order of their additions by the shape. In fp32 that moves a score by a
millionth; in half precision by as much as two tokens differ, so that a verified draft may say something else than one
token after the other. As in LLM-42 (arXiv 2601.17768), products here have one shape for both: `ROWS` rows at a time,
and attention over `SLOTS` slots at a time, the sums of which are added up in order.

These are many launches. On a GPU with Triton, `triton_kernels` computes the same in one launch each.
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

from fairseq_plugins.decoding.engine.layout import Chain
from fairseq_plugins.output import say

logger = logging.getLogger(__name__)

ROWS = 32
SLOTS = 32


@functools.cache
def triton_kernels() -> Any:
    """Return the module `triton_kernels`, None where Triton is not installed."""
    if find_spec("triton") is None:
        logger.warning("half precision: Triton is not installed, so steps take many launches; install triton")
        return None
    cache = os.environ.get("TRITON_CACHE_DIR") or Path(os.environ.get("TRITON_HOME") or Path.home(), ".triton/cache")
    if not any(Path(cache).glob("*/_attention.json")):
        say("Triton compiles two kernels for this GPU before the first step; later runs find them in its cache.")
    return import_module("fairseq_plugins.decoding.engine.triton_kernels")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a linear layer to x [..., I]."""
    kernels = triton_kernels() if x.device.type == "cuda" else None
    if kernels is not None:
        applied: Tensor = kernels.linear(x, weight, bias)
        return applied
    return by_rows(lambda rows: F.linear(rows, weight, bias))(x)


def by_rows(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function of rows [..., I] that computes `ROWS` of them at a time."""

    def run(x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.size(-1))
        missing = -len(rows) % ROWS
        padded = F.pad(rows, (0, 0, 0, missing)) if missing else rows
        parts = [function(part) for part in padded.split(ROWS)]
        result = parts[0] if len(parts) == 1 else torch.cat(parts)
        return result[: len(rows)].reshape(*x.shape[:-1], result.size(1))

    return run


def attention(query: Tensor, key_value: Tensor, last_visible: Tensor) -> Tensor:
    """Attention of T rows of each of B sentences.

    Args:
        query: [B, T, H, W].
        key_value: [B, S, 2, H, W].
        last_visible: [B, T], each row reads the slots 0 .. `last_visible` of its sentence.

    Returns:
        [B, T, H * W].
    """
    kernels = triton_kernels() if query.device.type == "cuda" else None
    attended: Tensor
    if kernels is not None:
        attended = kernels.attention(query, key_value, last_visible)
        return attended
    batch, width = query.shape[:2]
    sentence = torch.arange(batch, device=query.device)[:, None].expand(-1, width)
    missing = -batch * width % ROWS
    queries = F.pad(query.flatten(0, 1), (0, 0, 0, 0, 0, missing)).split(ROWS)
    sentences, last = (F.pad(rows.flatten(), (0, missing)).split(ROWS) for rows in (sentence, last_visible))
    key_value = F.pad(key_value, (0, 0, 0, 0, 0, 0, 0, -key_value.size(1) % SLOTS))
    slot = torch.arange(key_value.size(1), device=query.device)
    parts = [
        _attend(rows, key_value[of], slot > visible[:, None, None, None])
        for rows, of, visible in zip(queries, sentences, last, strict=True)
    ]
    attended = torch.cat(parts)[: batch * width]
    return attended.view(batch, width, attended.size(1))


def _attend(query: Tensor, key_value: Tensor, hidden: Tensor) -> Tensor:
    """The same for `ROWS` rows [ROWS, H, W] with keys and values [ROWS, S, 2, H, W] of their own.

    `hidden` [ROWS, 1, 1, S] says which slots a row does not see.
    """
    query = query[:, :, None]
    # From [ROWS, SLOTS, 2, H, W] of every block of slots to [2, ROWS, H, SLOTS, W].
    blocks = [block.permute(2, 0, 3, 1, 4).contiguous() for block in key_value.split(SLOTS, dim=1)]
    scores = torch.cat([(query @ key.transpose(2, 3)).float() for key, _ in blocks], dim=3) * query.size(3) ** -0.5
    scores = scores.masked_fill(hidden, -torch.inf)
    # Hidden slots weigh exactly nothing, so that further blocks of them change no sum.
    weights = (scores - scores.amax(3, keepdim=True)).exp().split(SLOTS, dim=3)
    total, attended = scores.new_zeros(()), scores.new_zeros(())
    for weight, (_, value) in zip(weights, blocks, strict=True):
        weight = weight.contiguous()
        total = total + weight.sum(3, keepdim=True)
        attended = attended + (weight.to(value.dtype) @ value).float()
    result: Tensor = attended / total
    return result.to(query.dtype).flatten(1)


class FixedAttention:
    """Attention of a step as `ChainAttention` computes it; sources begin with their first token.

    Args:
        layout: of the step.
        readable: [B, 1, 1, S], True where a token of the source may be read, nothing after what may not; None where
            all may.
        source: S.
    """

    def __init__(self, layout: Chain, readable: Tensor | None, source: int) -> None:
        slot = layout.slot()
        rows = torch.arange(len(slot), device=slot.device)
        self.slots, self.cell = layout.slots, (rows[:, None], slot)
        self.last = slot if layout.last_visible is None else layout.last_visible.expand_as(slot)
        last_of_source = torch.full_like(rows, source - 1) if readable is None else readable.sum((1, 2, 3)) - 1
        self.last_of_source = last_of_source[:, None].expand_as(slot)

    def own(self, qkv: Tensor, heads: int, cache: Tensor) -> Tensor:
        """As `ChainAttention.own`."""
        qkv = qkv.unflatten(-1, (3, heads, -1))
        cache[self.cell] = qkv[:, :, 1:]
        return attention(qkv[:, :, 0], cache[:, : self.slots], self.last)

    def source(self, query: Tensor, heads: int, cross: Tensor) -> Tensor:
        """As `ChainAttention.source`."""
        return attention(query.unflatten(-1, (heads, -1)), cross, self.last_of_source)


def padding_last(padding: Tensor) -> Tensor:
    """Indices [B, S] that put what is not padding [B, S] first, in its order."""
    return padding.long().argsort(dim=1, stable=True)
