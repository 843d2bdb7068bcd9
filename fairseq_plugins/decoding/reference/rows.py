"""Select, order and join rows of batches."""

import torch
import torch.nn.functional as F
from torch import Tensor


def from_host(numbers: object, device: torch.device, dtype: torch.dtype = torch.long) -> Tensor:
    """Copy numbers, nested as a tensor's, to a device without waiting for what is queued there."""
    on_host = torch.as_tensor(numbers, dtype=dtype)
    return on_host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else on_host.to(device)


def may_have_padding(padding: Tensor) -> bool:
    """Return whether a mask [B, S] has any True; always on a GPU, where reading it would synchronise."""
    return padding.device.type != "cpu" or bool(padding.any())


def padding_last(padding: Tensor) -> Tensor:
    """Return indices [B, S] that move padding [B, S] to the end and keep the order of the tokens."""
    return padding.long().argsort(dim=1, stable=True)


def rows_of(sentences: Tensor, beam: int) -> Tensor:
    """Return the rows [B * beam] of sentences [B] with `beam` rows each."""
    return (sentences[:, None] * beam + torch.arange(beam, device=sentences.device)).flatten()


def cat_padded(old: Tensor, new: Tensor, dim: int, batch_dim: int = 0, value: float = 0) -> Tensor:
    """Append the rows of `new` to those of `old`; the shorter is padded with `value` at the end of `dim`."""
    size = max(old.size(dim), new.size(dim))
    unpadded = [0, 0] * (old.dim() - 1 - dim)
    return torch.cat([F.pad(x, [*unpadded, 0, size - x.size(dim)], value=value) for x in (old, new)], dim=batch_dim)
