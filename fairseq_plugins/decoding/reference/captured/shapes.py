"""Round the shapes of steps, so that a run has few: each needs its own CUDA graph."""

from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor

# A step with more rows (sentences times tokens) keeps its shape and is not captured: it keeps a device busy without a
# graph, and padding would cost time.
MAX_ROWS = 2048


@dataclass(frozen=True)
class Shape:
    """The shape of a captured step."""

    batch: int  # sentences
    beam: int  # hypotheses per sentence, 0 for a `Chain`
    width: int  # tokens per row, masks included
    capacity: int  # slots of the cache
    source: int  # tokens of the source
    numbers: tuple[tuple[str, int], ...]  # names of the integer inputs, and the number of integers per row
    added: int  # width of the tensor added to the embedded input, 0 for none
    states: bool  # whether the states between layers are outputs
    after: Hashable  # key of the function that is captured after the step; None for none

    @property
    def rows(self) -> int:
        """Rows of the cache: sentences, or their hypotheses."""
        return self.batch * max(self.beam, 1)

    @property
    def memory(self) -> tuple[int, int, int]:
        """Sizes of the buffers that are kept between steps."""
        return self.batch, self.capacity, self.source

    def by_name(self, numbers: Tensor) -> dict[str, Tensor]:
        """Split the integer inputs [rows, any] by name."""
        names, sizes = zip(*self.numbers, strict=True)
        return dict(zip(names, numbers.split(list(sizes), dim=1), strict=True))


def rounded_up(number: int, least: int = 1) -> int:
    """Round up to a power of two, at least `least`."""
    return max(least, 1 << (number - 1).bit_length())
