"""Large arrays that come and go while decoding on a CPU, outside of the heap."""

import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

# The heap of glibc keeps blocks up to 32 MiB when they are freed, and caches that grow and scores of ever other sizes
# leave holes in it: a tenth of the weights of a large model. From this size on, pages come from the system instead.
_LARGE_BYTES = 2**21


def new_zeros(like: Tensor, shape: Sequence[int]) -> Tensor:
    """As `like.new_zeros(shape)`; on a CPU a large tensor goes back to the system as soon as it is freed."""
    return like.new_zeros(shape) if _is_small(like, shape) else _mapped(like, shape)


def new_empty(like: Tensor, shape: Sequence[int]) -> Tensor:
    """As `like.new_empty(shape)`, as `new_zeros` does it."""
    return like.new_empty(shape) if _is_small(like, shape) else _mapped(like, shape)


def _is_small(like: Tensor, shape: Sequence[int]) -> bool:
    small = math.prod(shape) * like.element_size() < _LARGE_BYTES
    return small or like.device.type != "cpu" or not hasattr(mmap, "MAP_ANONYMOUS")


def _mapped(like: Tensor, shape: Sequence[int]) -> Tensor:
    size = math.prod(shape) * like.element_size()
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=like.dtype).view(shape)
