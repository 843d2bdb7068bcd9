"""Drafters that wrap other drafters, as csrc/drafters/combined.cpp."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_plugins.decoding.gpu.batch import Batch
from fairseq_plugins.decoding.gpu.drafter import Drafter
from fairseq_plugins.decoding.gpu.drafters.tokens import TokenDrafter
from fairseq_plugins.decoding.gpu.kernels.drafts import find_undrafted
from fairseq_plugins.decoding.gpu.search import Encoded, GreedySearch, Verified
from fairseq_plugins.decoding.kernel_module import GivenDrafts
from fairseq_plugins.decoding.reference.rows import from_host


class Wrapping(Drafter):
    """Base of drafters that run others, which learn all that it does; the last one may read states of the verifier."""

    def __init__(self, *drafters: Drafter) -> None:
        self.drafters = drafters
        self.layers_read = drafters[-1].layers_read
        self.widths = tuple(sorted({width for drafter in drafters for width in drafter.widths}))

    def allocate(self, search: GreedySearch) -> None:
        super().allocate(search)
        for drafter in self.drafters:
            drafter.allocate(search)

    def begin_batch(self, sources: Sequence[Sequence[int]], max_len: int, drafts: GivenDrafts) -> int:
        return max(drafter.begin_batch(sources, max_len, drafts) for drafter in self.drafters)

    def take_places(self, batch: Batch, taken: Sequence[tuple[int, int]]) -> None:
        for drafter in self.drafters:
            drafter.take_places(batch, taken)

    def begin(self, batch: Batch, encoded: Encoded) -> None:
        for drafter in self.drafters:
            drafter.begin(batch, encoded)

    def observe(self, batch: Batch, verified: Verified) -> None:
        for drafter in self.drafters:
            drafter.observe(batch, verified)


class FallbackDrafter(Wrapping):
    """Drafts with `second` for sentences for which `first` drafts nothing."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        super().__init__(first, second)
        if isinstance(second, TokenDrafter):
            second.is_fallback = True

    def allocate(self, search: GreedySearch) -> None:
        super().allocate(search)
        self.undrafted = torch.zeros_like(search.batch.active)

    def draft(self, batch: Batch, places: int, width: int) -> None:
        """Draft with the first, then with the second where there is no draft: only there is its batch active."""
        first, second = self.drafters
        first.draft(batch, places, width)
        find_undrafted[(places,)](batch.active, batch.num_drafted, self.undrafted, num_warps=1, **self.launch)
        others = copy.copy(batch)
        others.active = self.undrafted
        second.draft(others, places, min(width, second.width))


class ReplayedDrafter(Wrapping):
    """Runs a drafter but replaces its tokens by given ones, to benchmark with simulated drafts.

    `probability` is for the policy of a CPU: on a GPU the policy counts what is accepted.
    """

    def __init__(self, inner: Drafter, probability: float) -> None:
        super().__init__(inner)
        self.tokens = torch.zeros(0, 1, dtype=torch.int32)

    def replay(self, tokens: Tensor) -> None:
        """Set the tokens [B, T] to draft at each position of the outputs of the next batch."""
        self.tokens = tokens.to(torch.int32)

    def allocate(self, search: GreedySearch) -> None:
        super().allocate(search)
        shape = search.sizes.places, search.sizes.columns
        self.given = torch.zeros(shape, dtype=torch.int32, device=search.device)

    def take_places(self, batch: Batch, taken: Sequence[tuple[int, int]]) -> None:
        """Copy the tokens of sentences to their places; the last one stands for all later positions."""
        super().take_places(batch, taken)
        if not len(self.tokens):
            return
        rows = self.tokens[[sentence for _, sentence in taken]][:, : self.given.size(1)]
        last = rows[:, -1:].expand(-1, self.given.size(1) - rows.size(1))
        places = from_host([place for place, _ in taken], self.given.device)
        self.given.index_copy_(0, places, from_host(torch.cat([rows, last], 1), self.given.device, torch.int32))

    def draft(self, batch: Batch, places: int, width: int) -> None:
        """Draft, as its time counts, and replace the tokens."""
        self.drafters[0].draft(batch, places, width)
        if len(self.tokens):
            self.draft_given(self.given, batch, places, width, after_output=True)
