"""Draft with another drafter where the first drafts nothing, as csrc/drafters/fallback.cpp."""

import copy
from collections.abc import Sequence

import torch

from fairseq_plugins.decoding.gpu.batch import Batch
from fairseq_plugins.decoding.gpu.drafter import Drafter
from fairseq_plugins.decoding.gpu.drafters.tokens import TokenDrafter
from fairseq_plugins.decoding.gpu.kernels.drafts import find_undrafted
from fairseq_plugins.decoding.gpu.search import Encoded, GreedySearch, Verified
from fairseq_plugins.decoding.kernel_module import GivenDrafts


class FallbackDrafter(Drafter):
    """Drafts with `second`, which may read states of the verifier, for sentences for which `first` drafts nothing."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self.drafters = first, second
        self.layers_read = second.layers_read
        self.widths = tuple(sorted({*first.widths, *second.widths}))
        if isinstance(second, TokenDrafter):
            second.is_fallback = True

    def allocate(self, search: GreedySearch) -> None:
        super().allocate(search)
        for drafter in self.drafters:
            drafter.allocate(search)
        self.undrafted = torch.zeros_like(search.batch.active)

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

    def draft(self, batch: Batch, places: int, width: int) -> None:
        """Draft with the first, then with the second where there is no draft: only there is its batch active."""
        first, second = self.drafters
        first.draft(batch, places, width)
        find_undrafted[(places,)](batch.arguments, self.undrafted, num_warps=1, **self.launch)
        others = copy.copy(batch)
        others.active = self.undrafted
        second.draft(others, places, min(width, second.width))
