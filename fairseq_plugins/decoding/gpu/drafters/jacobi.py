"""Jacobi decoding: drafts the verifier's predictions of the previous iteration, as csrc/drafters/jacobi.cpp.

Santilli et al. 2023, Algorithms 1 to 3.
"""

import math
from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from fairseq_plugins.decoding.gpu.batch import Batch
from fairseq_plugins.decoding.gpu.drafter import Drafter, lengths_up_to
from fairseq_plugins.decoding.gpu.kernels.jacobi import draft_predictions, keep_predictions
from fairseq_plugins.decoding.gpu.search import GreedySearch, Verified
from fairseq_plugins.decoding.kernel_module import GivenDrafts


class JacobiDrafter(Drafter):
    """Drafts the verifier's predictions; arguments as for `KernelModule.jacobi_drafter`."""

    def __init__(self, block: int, window_ratio: float, length: int, initial: int) -> None:
        self.block_size, self.window_ratio, self.length = block, window_ratio, length
        self.initial = initial
        longest = lengths_up_to(block - 1 if block else 2**30)
        self.widths = longest[-1:] if block else longest

    def allocate(self, search: GreedySearch) -> None:
        places, device = search.sizes.places, search.device
        super().allocate(search)
        self.block = torch.ones(1, dtype=torch.int32, device=device)
        self.tails = torch.zeros(places, self.width + 1, dtype=torch.int32, device=device)

    def begin_batch(self, sources: Sequence[Sequence[int]], max_len: int, drafts: GivenDrafts) -> int:
        """Set the number of positions that are solved in parallel."""
        block = self.block_size
        if not block:
            # The length of the output is unknown; the longest source bounds it by `window_ratio`.
            block = math.ceil(self.window_ratio * max(map(len, sources), default=1)) + 1
        block = min(block, max_len + 2)  # which fits int32; no position lies after the longest output
        self.block.fill_(block)
        return block - 1

    def draft(self, batch: Batch, places: int, width: int) -> None:
        draft_predictions[(places,)](
            batch.arguments, self.tails, self.block, self.tails.stride(0), width, self.length, self.initial,
            LIMITED=self.length >= 0, FROM_SOURCE=self.initial < 0,
            STEPS=triton.next_power_of_2(width), num_warps=4, **self.launch,
        )  # fmt: skip

    def observe(self, batch: Batch, verified: Verified) -> None:
        step = verified.step
        predicted: Tensor = verified.predicted
        keep_predictions[(step.rows // step.per_sentence,)](
            batch.arguments, predicted, self.tails, self.tails.stride(0), step.per_sentence,
            STEPS=triton.next_power_of_2(step.per_sentence), num_warps=4, **self.launch,
        )  # fmt: skip
