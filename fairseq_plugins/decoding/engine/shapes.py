"""Rounded shapes of a step, so that a run has few of them: a CUDA graph is captured for each."""

from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Shape:
    """What a graph is captured for.

    Attributes:
        batch: sentences.
        beam: hypotheses of each of them, 0 for a `Chain`.
        width: tokens of every row, masks included.
        masks: how many of them are masks after the tokens.
        capacity: slots of the cache.
        source: tokens of the source.
        numbers: name and count of the whole numbers that every row is given.
        added: width of what is added to the input, 0 for nothing.
        states: whether the states between the layers are wanted.
        after: which of several things follows the step in the same graph; None for none.
    """

    batch: int
    beam: int
    width: int
    masks: int
    capacity: int
    source: int
    numbers: tuple[tuple[str, int], ...]
    added: int
    states: bool
    after: Hashable

    @property
    def rows(self) -> int:
        """Of the cache: sentences, or their hypotheses."""
        return self.batch * max(self.beam, 1)

    @property
    def memory(self) -> tuple[int, int, int]:
        """Sizes of what stays in memory between steps."""
        return self.batch, self.capacity, self.source

    def by_name(self, numbers: Tensor) -> dict[str, Tensor]:
        """Split the whole numbers [rows, any] of every row."""
        names, sizes = zip(*self.numbers, strict=True)
        return dict(zip(names, numbers.split(list(sizes), dim=1), strict=True))


def rounded_up(number: int, least: int = 1) -> int:
    """The power of two that is at least `number` and at least `least`, itself one."""
    return max(least, 1 << (number - 1).bit_length())
