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


class Room:
    """Memory that stays from batch to batch: to get new pages takes longer than a step of a small model.

    What is taken first is overwritten by what is taken next.
    """

    def __init__(self) -> None:
        self.kept: Tensor | None = None

    def fits(self, like: Tensor, size: int) -> bool:
        """Whether there is room for so many numbers of the kind of a tensor."""
        kept = self.kept
        return kept is not None and kept.numel() >= size and (kept.dtype, kept.device) == (like.dtype, like.device)

    def take(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """A tensor of this shape, of zeros where the memory is new; memory that is too small is given back first."""
        size = math.prod(shape)
        if not self.fits(like, size):
            self.kept = None
            self.kept = new_zeros(like, (size,))
        return self.kept[:size].view(tuple(shape))


def _is_small(like: Tensor, shape: Sequence[int]) -> bool:
    small = math.prod(shape) * like.element_size() < _LARGE_BYTES
    return small or like.device.type != "cpu" or not hasattr(mmap, "MAP_ANONYMOUS")


def _mapped(like: Tensor, shape: Sequence[int]) -> Tensor:
    size = math.prod(shape) * like.element_size()
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=like.dtype).view(shape)
