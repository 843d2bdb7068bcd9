"""PyTorch's operations in shapes that are always the same, so that a row's result depends on nothing else in the step.

Libraries for matrix products choose the order of their additions by the shape. In fp32 that moves a score by a
millionth; in half precision by as much as two tokens differ, so that a verified draft may say something else than one
token after the other. As in LLM-42 (arXiv 2601.17768), products here have one shape for both: `ROWS` rows at a time,
and attention over `SLOTS` slots at a time, the sums of which are added up in order.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.engine.layout import Chain, StepLayout

ROWS = 32
SLOTS = 32


def by_rows(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function of rows [..., I] that computes `ROWS` of them at a time."""

    def run(x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.size(-1))
        parts = F.pad(rows, (0, 0, 0, -len(rows) % ROWS)).split(ROWS)
        result = torch.cat([function(part) for part in parts])
        return result[: len(rows)].reshape(*x.shape[:-1], result.size(1))

    return run


# Of `ROWS` rows at a time: whose they are [ROWS], and which slots are hidden from them [ROWS, 1, 1, S].
Parts = list[tuple[Tensor, Tensor]]


def in_parts(sentence: Tensor, last_visible: Tensor, slots: int) -> Parts:
    """What `attention` needs to know of rows, once for all layers.

    Args:
        sentence: [R], rows of keys and values.
        last_visible: [R], each row reads the slots 0 .. `last_visible` of its sentence.
        slots: S, that there are.
    """
    missing = -len(sentence) % ROWS
    slot = torch.arange(slots + -slots % SLOTS, device=sentence.device)
    of, last = (F.pad(values, (0, missing)).split(ROWS) for values in (sentence, last_visible))
    return [(rows, slot > visible[:, None, None, None]) for rows, visible in zip(of, last, strict=True)]


def attention(query: Tensor, key_value: Tensor, parts: Parts) -> Tensor:
    """Attention of rows of several sentences, each over slots of its own.

    Args:
        query: [R, H, W].
        key_value: [B, S, 2, H, W].
        parts: of the R rows.

    Returns:
        [R, H * W].
    """
    count, missing = len(query), -len(query) % ROWS
    queries = F.pad(query, (0, 0, 0, 0, 0, missing)).split(ROWS)
    key_value = F.pad(key_value, (0, 0, 0, 0, 0, 0, 0, -key_value.size(1) % SLOTS))
    attended = [_attend(part, key_value[of], hidden) for part, (of, hidden) in zip(queries, parts, strict=True)]
    return torch.cat(attended)[:count]


def _attend(query: Tensor, key_value: Tensor, hidden: Tensor) -> Tensor:
    """The same for `ROWS` rows [ROWS, H, W] with keys and values [ROWS, S, 2, H, W] of their own."""
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
    """Attention of a step, as `ChainAttention` and `PackedAttention` have it; sources begin with their first token.

    Args:
        layout: of the step.
        readable: [B, 1, 1, S], True where a token of the source may be read, nothing after what may not; None where
            all may.
        source: S.
    """

    def __init__(self, layout: Chain | StepLayout, readable: Tensor | None, source: int) -> None:
        self.layout = layout = layout.to_packed() if isinstance(layout, Chain) else layout
        self.own_parts = in_parts(layout.sentence, layout.last_visible, layout.slots)
        last = torch.full_like(layout.sentence, source - 1)
        if readable is not None:
            last = (readable.sum((1, 2, 3)) - 1)[layout.sentence]
        self.source_parts = in_parts(layout.sentence, last, source)

    def own(self, qkv: Tensor, heads: int, cache: Tensor) -> Tensor:
        """As `ChainAttention.own`, of qkv [B, T, 3 * D] or [R, 3 * D]."""
        layout, shape = self.layout, qkv.shape[:-1]
        qkv = qkv.reshape(len(layout.slot), 3, heads, -1)
        cache[layout.sentence, layout.slot] = qkv[:, 1:]
        attended = attention(qkv[:, 0], cache[:, : layout.slots], self.own_parts)
        return attended.reshape(*shape, attended.size(1))

    def source(self, query: Tensor, heads: int, cross: Tensor) -> Tensor:
        """As `ChainAttention.source`, of query [B, T, D] or [R, D]."""
        shape = query.shape[:-1]
        query = query.reshape(len(self.layout.slot), heads, -1)
        attended = attention(query, cross, self.source_parts)
        return attended.reshape(*shape, attended.size(1))


def padding_last(padding: Tensor) -> Tensor:
    """Indices [B, S] that put what is not padding [B, S] first, in its order."""
    return padding.long().argsort(dim=1, stable=True)
