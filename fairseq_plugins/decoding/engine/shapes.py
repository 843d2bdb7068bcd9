"""Rounded shapes of steps: a CUDA graph is captured for each, so a run should have few."""

from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor

# Rows (sentences times tokens) of a step beyond which its shape is kept: more rows keep a device busy by themselves,
# and rounding them up costs time.
MAX_ROWS = 2048


@dataclass(frozen=True)
class Shape:
    """The shape of a captured step."""

    batch: int  # sentences
    beam: int  # hypotheses per sentence, 0 for a `Chain`
    width: int  # tokens per row, masks included
    capacity: int  # slots of the cache
    source: int  # tokens of the source
    numbers: tuple[tuple[str, int], ...]  # name and count of the integers that are inputs of every row
    added: int  # width of the tensor added to the input, 0 for none
    states: bool  # whether states between layers are outputs
    after: Hashable  # key of the function that follows in the same graph; None for none

    @property
    def rows(self) -> int:
        """Rows of the cache: sentences, or their hypotheses."""
        return self.batch * max(self.beam, 1)

    @property
    def memory(self) -> tuple[int, int, int]:
        """Sizes of the memory that is kept between steps."""
        return self.batch, self.capacity, self.source

    def by_name(self, numbers: Tensor) -> dict[str, Tensor]:
        """Split the integers [rows, any] by name."""
        names, sizes = zip(*self.numbers, strict=True)
        return dict(zip(names, numbers.split(list(sizes), dim=1), strict=True))


def rounded_up(number: int, least: int = 1) -> int:
    """Round up to a power of two, at least `least`."""
    return max(least, 1 << (number - 1).bit_length())
