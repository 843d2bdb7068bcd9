"""Launches that drafters share."""

from typing import Any

import triton
from torch import Tensor

from fairseq_plugins.decoding.gpu.batch import Batch
from fairseq_plugins.decoding.gpu.kernels.drafts import draft_given


def launch_given(
    given: Tensor, batch: Batch, places: int, width: int, launch: dict[str, Any], after_output: bool = False
) -> None:
    """Launch `draft_given` for tokens [places, any]."""
    draft_given[(places,)](
        given, batch.lengths, batch.place_limits, batch.emitted, batch.draft, batch.num_drafted, batch.active,
        given.size(1), batch.draft.stride(0), width, AFTER_OUTPUT=after_output,
        STEPS=triton.next_power_of_2(width), num_warps=4, **launch,
    )  # fmt: skip
