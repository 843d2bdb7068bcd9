"""Drafters that wrap other drafters, as csrc/drafters/combined.cpp."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_plugins.decoding.gpu.batch import Batch
from fairseq_plugins.decoding.gpu.drafter import Drafter
from fairseq_plugins.decoding.gpu.drafters.tokens import TokenDrafter
from fairseq_plugins.decoding.gpu.drafters.writing import launch_given
from fairseq_plugins.decoding.gpu.kernels.drafts import find_undrafted
from fairseq_plugins.decoding.gpu.search import Encoded, GreedySearch, Verified
from fairseq_plugins.decoding.kernel_module import GivenDrafts
from fairseq_plugins.decoding.reference.rows import from_host


class FallbackDrafter(Drafter):
    """Drafts with `second` for sentences for which `first` drafts nothing."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self.first, self.second = first, second
        self.layers_read = second.layers_read
        self.widths = tuple(sorted({*first.widths, *second.widths}))
        if isinstance(second, TokenDrafter):
            second.is_fallback = True

    def allocate(self, search: GreedySearch) -> None:
        """Take memory for both."""
        self.first.allocate(search)
        self.second.allocate(search)
        self.launch = search.runner.launch
        self.undrafted = torch.zeros_like(search.batch.active)

    def begin_batch(self, sources: Sequence[Sequence[int]], max_len: int, drafts: GivenDrafts) -> int:
        """Begin a batch with both."""
        return max(drafter.begin_batch(sources, max_len, drafts) for drafter in (self.first, self.second))

    def take_places(self, batch: Batch, taken: Sequence[tuple[int, int]]) -> None:
        """Give places to sentences in both."""
        self.first.take_places(batch, taken)
        self.second.take_places(batch, taken)

    def begin(self, batch: Batch, encoded: Encoded) -> None:
        """Begin sentences with both."""
        self.first.begin(batch, encoded)
        self.second.begin(batch, encoded)

    def draft(self, batch: Batch, places: int, width: int) -> None:
        """Draft with the first, then with the second where there is no draft: only there is its batch active."""
        self.first.draft(batch, places, width)
        find_undrafted[(places,)](batch.active, batch.num_drafted, self.undrafted, num_warps=1, **self.launch)
        others = copy.copy(batch)
        others.active = self.undrafted
        self.second.draft(others, places, min(width, self.second.width))

    def observe(self, batch: Batch, verified: Verified) -> None:
        """Observe with both."""
        self.first.observe(batch, verified)
        self.second.observe(batch, verified)


class ReplayedDrafter(Drafter):
    """Runs a drafter but replaces its tokens by given ones, to benchmark with simulated drafts."""

    def __init__(self, inner: Drafter, probability: float) -> None:
        self.inner, self.probability = inner, probability
        self.layers_read, self.widths = inner.layers_read, inner.widths
        self.tokens = torch.zeros(0, 1, dtype=torch.int32)

    def replay(self, tokens: Tensor) -> None:
        """Set the tokens [B, T] to draft at each position of the outputs of the next batch."""
        self.tokens = tokens.to(torch.int32)

    def allocate(self, search: GreedySearch) -> None:
        """Take memory for the tokens."""
        self.inner.allocate(search)
        self.launch = search.runner.launch
        shape = search.sizes.places, search.sizes.columns
        self.given = torch.zeros(shape, dtype=torch.int32, device=search.device)

    def begin_batch(self, sources: Sequence[Sequence[int]], max_len: int, drafts: GivenDrafts) -> int:
        """Begin a batch."""
        return self.inner.begin_batch(sources, max_len, drafts)

    def take_places(self, batch: Batch, taken: Sequence[tuple[int, int]]) -> None:
        """Copy the tokens of sentences to their places; the last one stands for all later positions."""
        self.inner.take_places(batch, taken)
        if not len(self.tokens):
            return
        rows = self.tokens[[sentence for _, sentence in taken]][:, : self.given.size(1)]
        last = rows[:, -1:].expand(-1, self.given.size(1) - rows.size(1))
        places = from_host([place for place, _ in taken], self.given.device)
        self.given.index_copy_(0, places, from_host(torch.cat([rows, last], 1), self.given.device, torch.int32))

    def begin(self, batch: Batch, encoded: Encoded) -> None:
        """Begin sentences."""
        self.inner.begin(batch, encoded)

    def draft(self, batch: Batch, places: int, width: int) -> None:
        """Draft, as its time counts, and replace the tokens."""
        self.inner.draft(batch, places, width)
        if len(self.tokens):
            launch_given(self.given, batch, places, width, self.launch, after_output=True)

    def observe(self, batch: Batch, verified: Verified) -> None:
        """Observe an iteration."""
        self.inner.observe(batch, verified)
