"""Drafts by copying a text after a match, by the same rules as csrc/drafters/copying.cpp: one kernel."""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from fairseq_plugins.decoding.gpu.batch import Batch
from fairseq_plugins.decoding.gpu.drafter import Drafter, lengths_up_to
from fairseq_plugins.decoding.gpu.kernels.constants import Lookup
from fairseq_plugins.decoding.gpu.kernels.copying import copy_draft
from fairseq_plugins.decoding.gpu.search import GreedySearch
from fairseq_plugins.decoding.kernel_module import GivenDrafts
from fairseq_plugins.decoding.reference.rows import from_host

# Given drafts of a sentence; their tokens are at most as many as this many longest outputs have.
_MOST_TEXTS, _MOST_OUTPUTS = 16, 4
_BLOCK = 128


class CopyDrafter(Drafter):
    """Copies the source, or given drafts: the first 16 of a sentence, and at most four longest outputs of tokens.

    Arguments as for `KernelModule.CopyDrafter`.
    """

    def __init__(self, lookup: Lookup, max_match: int, width: int | None = None) -> None:
        self.lookup, self.max_match = lookup, max_match
        self.widths = lengths_up_to(2**30 if width is None else width)
        self.texts: GivenDrafts = ()

    def allocate(self, search: GreedySearch) -> None:
        sizes, device = search.sizes, search.device
        super().allocate(search)
        if self.lookup == Lookup.NEAREST:
            size = (sizes.places, _MOST_OUTPUTS * (sizes.outputs + 1))
            self.given = torch.zeros(size, dtype=torch.int32, device=device)
            # Of each text: its end, and its shift; then the number of texts.
            self.ends, self.shifts = (
                torch.zeros(sizes.places, _MOST_TEXTS, dtype=torch.int32, device=device) for _ in range(2)
            )
            self.counts = torch.zeros(sizes.places, dtype=torch.int32, device=device)

    def begin_batch(self, sources: Sequence[Sequence[int]], max_len: int, drafts: GivenDrafts) -> int:
        longest = max(map(len, sources), default=1)
        if self.lookup == Lookup.NEAREST:
            self.texts = drafts
            longest = max((len(text) for texts in self.texts for text in texts), default=1)
        return min(self.width, longest)

    def take_places(self, batch: Batch, taken: Sequence[tuple[int, int]]) -> None:
        """Copy the given drafts of sentences to their places."""
        if self.lookup != Lookup.NEAREST:
            return
        most = self.given.size(1)
        rows, ends = [], []
        for _, sentence in taken:
            row: list[int] = []
            own_ends = []
            for text in self.texts[sentence][:_MOST_TEXTS]:
                if len(row) == most:
                    break
                row = [*row, *text][:most]
                own_ends.append(len(row))
            rows.append(row)
            ends.append(own_ends)
        width = max(map(len, rows))
        packed = [
            [place, len(own_ends), *own_ends, *[0] * (_MOST_TEXTS - len(own_ends)), *row, *[0] * (width - len(row))]
            for (place, _), own_ends, row in zip(taken, ends, rows, strict=True)
        ]
        staged = from_host(packed, self.given.device, torch.int32)
        places = staged[:, 0].long()
        self.counts.index_copy_(0, places, staged[:, 1])
        self.ends.index_copy_(0, places, staged[:, 2 : 2 + _MOST_TEXTS])
        self.shifts.index_fill_(0, places, 0)
        self.given[:, :width].index_copy_(0, places, staged[:, 2 + _MOST_TEXTS :])

    def draft(self, batch: Batch, places: int, width: int) -> None:
        texts: tuple[Tensor, Tensor, Tensor, Tensor]
        if self.lookup == Lookup.NEAREST:
            texts, end_stride = (self.given, self.ends, self.shifts, self.counts), _MOST_TEXTS
        else:
            ends = batch.source_lengths
            texts, end_stride = (batch.source, ends, ends, ends), 1
        copy_draft[(places,)](
            batch.arguments, *texts, texts[0].stride(0), end_stride, min(width, self.width),
            self.max_match, LOOKUP=int(self.lookup), BLOCK=_BLOCK, STEPS=triton.next_power_of_2(width),
            num_warps=4, **self.launch,
        )  # fmt: skip
