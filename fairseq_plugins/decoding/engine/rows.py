"""Rows of batches, put together."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def from_host(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Whole numbers [N] as a tensor on a device, without waiting for what runs there."""
    on_host = torch.tensor(numbers, dtype=torch.long)
    return on_host if device.type == "cpu" else on_host.pin_memory().to(device, non_blocking=True)


def may_have_padding(padding: Tensor) -> bool:
    """Whether any of a mask [B, S] is True; on a GPU always, because asking would wait."""
    return padding.device.type != "cpu" or bool(padding.any())


def rows_of(sentences: Tensor, beam: int) -> Tensor:
    """The rows [B * beam] of sentences [B] that have `beam` of them each."""
    return (sentences[:, None] * beam + torch.arange(beam, device=sentences.device)).flatten()


def cat_padded(old: Tensor, new: Tensor, dim: int, batch_dim: int = 0, value: float = 0) -> Tensor:
    """Rows of `new` after those of `old`, the shorter of the two filled up with `value` at the end of `dim`."""
    size = max(old.size(dim), new.size(dim))
    later = [0, 0] * (old.dim() - 1 - dim)
    return torch.cat([F.pad(x, [*later, 0, size - x.size(dim)], value=value) for x in (old, new)], dim=batch_dim)
