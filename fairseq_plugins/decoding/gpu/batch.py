"""The state of the sentences that are being decoded, on the device.

A sentence has a place. Places are never moved or compacted; one whose sentence has ended takes a waiting sentence.
Numbers that differ between batches (lengths, limits, slots of the caches) are in memory that the kernels read, so that
the same CUDA graph serves all batches.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_plugins.decoding.gpu.kernels.arguments import Places
from fairseq_plugins.decoding.gpu.kernels.constants import ALWAYS, AT_BEGINNING, STATUS, TOKENS, TOO_EARLY
from fairseq_plugins.decoding.gpu.runner import PART, PART_OF_BEAMS
from fairseq_plugins.decoding.reference.rows import from_host

# Rows of a tile of the encoder: a source begins at a multiple of this.
TILE = 16
_ROWS = 32  # of each place in a step
_TOKENS = TOKENS.value
_BITS = ALWAYS.value, TOO_EARLY.value, AT_BEGINNING.value


@dataclass(frozen=True)
class Sizes:
    """Sizes of the memory.

    Attributes:
        places: sentences that are decoded at a time.
        outputs, sources: longest output and source, in tokens.
        drafted: longest draft.
        beam: hypotheses of a sentence; 0 in greedy search.
    """

    places: int
    outputs: int
    sources: int
    drafted: int
    beam: int = 0

    @property
    def columns(self) -> int:
        """Columns of the outputs: the first token, the longest output and EOS."""
        return self.outputs + 2

    @property
    def rows(self) -> int:
        """Rows of a step: all places with drafts of up to 31 tokens, fewer places with longer ones."""
        if self.beam > 0:
            return self.places * self.beam
        return max(self.places * min(self.drafted + 1, _ROWS), self.drafted + 1)

    @property
    def slots(self) -> int:
        """Slots of the cache: one longest output, or shorter ones at all places."""
        return max(self.columns, self.places * min(self.columns, 256)) * max(self.beam, 1)

    def parts(self, output: int, source: int) -> tuple[int, int]:
        """Return the parts of attention to outputs and sources of up to these lengths: 1, or as many as fit."""
        beam, part = max(self.beam, 1), PART_OF_BEAMS if self.beam else PART
        return (
            math.ceil(self.columns * beam / part) if output * beam > part else 1,
            math.ceil(self.sources / PART) if source > PART else 1,
        )

    @property
    def source_slots(self) -> int:
        """Slots of the sources' keys and values."""
        return max(self.sources, self.places * min(self.sources, 128)) + TILE


class Batch:
    """Tensors of all places; drafts and results of an iteration are among them."""

    def __init__(self, sizes: Sizes, vocabulary: int, device: torch.device) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        places = sizes.places
        self.sizes = sizes
        # Of each hypothesis, one after the other.
        columns = max(sizes.beam, 1) * sizes.columns
        self.columns = columns
        self.tokens, self.log_probs = zeros(places, columns), zeros(places, columns, dtype=torch.float32)
        # `active` is 0 for an idle place, else how many rows of its sentence are needed.
        self.lengths, self.active, self.emitted, self.last_row = (zeros(places) for _ in range(4))
        self.draft_stride, self.source_stride = max(sizes.drafted, 1), sizes.sources + TILE
        self.draft, self.num_drafted = zeros(places, self.draft_stride), zeros(places)
        self.status = zeros(places, STATUS.value)
        self.source = zeros(places, self.source_stride)
        self.source_lengths, self.source_ends = zeros(places), zeros(places)
        self.bases, self.source_bases = (zeros(places, dtype=torch.long) for _ in range(2))
        # Of all sentences, with bits of each token, and of each: kernels/constants.py.
        self.limits, self.penalties = zeros(_TOKENS + vocabulary), zeros(3, dtype=torch.float32)
        self.place_limits = zeros(places, _TOKENS)
        self.noise_keys = zeros(places, 4)
        self._limits_of_tokens: tuple[Sequence[int], ...] = ()
        self.prefix, self.prefix_stride = zeros(places, sizes.outputs), sizes.outputs
        # Of the launches that come next: parts of attention to outputs and to sources; whether tokens are drawn, and
        # whether --sampling-topk or --sampling-topp keep only some.
        self.parts = (1, 1)
        self.draws = self.keeps = False

    @property
    def arguments(self) -> Places:
        """What kernels read and write."""
        return Places(**{name: getattr(self, name) for name in Places._fields})

    def set_limits(
        self,
        pad: int,
        unk: int,
        eos: int,
        suppressed: tuple[Sequence[int], Sequence[int]] = ((), ()),
        topk: int = 0,
    ) -> None:
        """Set the limits that all sentences share.

        Args:
            pad, unk, eos: special symbols; -1 for none.
            suppressed: tokens that are not chosen anywhere, and at the beginning of an output.
            topk: tokens that may be drawn; 0 for no limit.
        """
        self.limits[:_TOKENS] = from_host([pad, unk, eos, 0, 0, 0, 0, topk], self.limits.device, torch.int32)
        everywhere, at_beginning = suppressed
        of_tokens = (pad, *everywhere), (eos,), at_beginning
        if of_tokens != self._limits_of_tokens:
            bits = torch.zeros(len(self.limits) - _TOKENS, dtype=torch.int32)
            for bit, tokens in zip(_BITS, of_tokens, strict=True):
                bits[[token for token in tokens if token >= 0]] |= bit
            self.limits[_TOKENS:] = from_host(bits, self.limits.device, torch.int32)
            self._limits_of_tokens = of_tokens

    def fitting(self, output: int, source: int) -> int:
        """Return for how many sentences with these lengths the caches suffice."""
        of_outputs = self.sizes.slots // self._slots_of(output)
        return max(1, min(self.sizes.places, of_outputs, (self.sizes.source_slots - TILE) // source))

    def set_bases(self, output: int, source: int) -> None:
        """Divide the caches among places for outputs and sources of up to these lengths."""
        places = torch.arange(self.sizes.places, device=self.bases.device)
        self.bases.copy_((places * self._slots_of(output)).clamp_(max=self.sizes.slots - 1))
        self.source_bases.copy_((places * source).clamp_(max=self.sizes.source_slots - 1))

    def _slots_of(self, output: int) -> int:
        return (output + 2) * max(self.sizes.beam, 1)
