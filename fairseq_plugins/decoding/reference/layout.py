"""Positions and cache slots of the rows of a decoding step."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Span:
    """Shortest and longest length in a batch, known on the host so that tensor shapes need no synchronisation."""

    shortest: int
    longest: int


@dataclass(frozen=True)
class BeamLayout:
    """One row for each hypothesis; hypotheses of a sentence have adjacent rows.

    A hypothesis writes into its own row of the cache. `beam_ancestors` gives the row that holds each of its earlier
    slots, so that continuing a hypothesis twice copies no keys and values.
    """

    lengths: Tensor  # [R], position and slot of each row; the same within a sentence
    span: Span  # shortest and longest of `lengths`
    beam: int  # hypotheses per sentence
    beam_ancestors: Tensor  # [R, slots or more], which of the sentence's cache rows holds each slot up to the length

    @property
    def slots(self) -> int:
        """Number of slots that any row may attend to."""
        return self.span.longest + 1


@dataclass(frozen=True)
class Chain:
    """T rows for each of B sentences, in successive slots; position and slot of row t are `lengths` + t."""

    lengths: Tensor  # [B], number of valid slots of each sentence before the step
    span: Span  # shortest and longest of `lengths`
    width: int  # T
    last_visible: Tensor | None = None  # [B, T] or [1, T], last slot that each row attends to; None for its own

    @property
    def slots(self) -> int:
        """Number of slots that any row may attend to."""
        return self.span.longest + self.width

    def slot(self) -> Tensor:
        """Slots [B, T] of the rows, which are also their positions."""
        return self.lengths[:, None] + torch.arange(self.width, device=self.lengths.device)
