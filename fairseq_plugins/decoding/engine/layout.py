"""Where the rows of a decoding step stand: the one object that PyTorch, compiled kernels and CUDA graphs are given."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Span:
    """Shortest and longest of the lengths of a batch, known on the host so that shapes need no synchronisation."""

    shortest: int
    longest: int

    @property
    def uniform(self) -> bool:
        return self.shortest == self.longest


@dataclass(frozen=True)
class StepLayout:
    """Of every one of R rows: whose it is, where it stands, and how far it sees.

    Rows of one sentence that follow each other are computed together. A sentence may have any number of rows, none
    included, so a batch needs no row of padding.

    Attributes:
        sentence: [R], row of the batch, which has this row of the cache and this source.
        position: [R], which positional embedding it takes.
        slot: [R], where in the cache its key and value are written.
        last_visible: [R], last slot that it attends to.
        slots: so many slots of the cache may be attended to at all: above every `slot` and `last_visible`.
    """

    sentence: Tensor
    position: Tensor
    slot: Tensor
    last_visible: Tensor
    slots: int


@dataclass(frozen=True)
class BeamLayout:
    """One row of every hypothesis: `beam` of them for every sentence, one sentence after the other.

    Hypotheses share common slots: continuing one twice copies nothing of the cache. Every hypothesis writes at its own
    length into its own row of the cache; `beam_ancestors` gives the row of its sentence that holds each earlier slot.

    Attributes:
        lengths: [R], position and slot of each row; the same within a sentence.
        span: shortest and longest of `lengths`.
        beam: hypotheses of a sentence.
        beam_ancestors: [R, slots or more], which of the sentence's `beam` cache rows holds each slot up to the length.
    """

    lengths: Tensor
    span: Span
    beam: int
    beam_ancestors: Tensor

    @property
    def slots(self) -> int:
        """So many slots of the cache may be attended to at all."""
        return self.span.longest + 1

    @property
    def position(self) -> Tensor:
        """Which positional embedding each row takes, [R]."""
        return self.lengths


@dataclass(frozen=True)
class Chain:
    """The layout that most steps have: T rows of every one of B sentences, each from its own length on.

    Position and slot of row t of sentence b are `lengths[b] + t`. It is the fast path: [B, T] tensors, no gathering.

    Attributes:
        lengths: [B], how many slots of each sentence are valid.
        span: shortest and longest of `lengths`.
        width: T.
        last_visible: [B, T], or [1, T] for all sentences: last slot that each row attends to; None for its own (causal
            attention).
    """

    lengths: Tensor
    span: Span
    width: int
    last_visible: Tensor | None = None

    @property
    def slots(self) -> int:
        """So many slots of the cache may be attended to at all."""
        return self.span.longest + self.width

    def slot(self) -> Tensor:
        """Slots [B, T] of the rows, which are also their positions."""
        return self.lengths[:, None] + torch.arange(self.width, device=self.lengths.device)

    def to_packed(self) -> StepLayout:
        """The same rows one by one, R = B * T."""
        slot = self.slot()
        sentence = torch.arange(len(slot), device=slot.device)[:, None].expand_as(slot).flatten()
        last = slot if self.last_visible is None else self.last_visible.expand_as(slot)
        return StepLayout(sentence, slot.flatten(), slot.flatten(), last.flatten(), self.slots)
