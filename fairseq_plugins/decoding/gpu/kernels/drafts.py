"""The Triton kernels that write drafts, and what others share that do: how long a draft may be, and where it ends."""

import triton
import triton.language as tl

from fairseq_plugins.decoding.gpu.kernels.constants import ALL_ROWS, EOS, MAX_LEN, TOKENS
from fairseq_plugins.decoding.gpu.kernels.layers import wait


@triton.jit
def most_drafted(batch, sentence, width):
    """Return how many tokens the draft of a sentence may have."""
    remaining = tl.load(batch.place_limits + sentence * TOKENS + MAX_LEN) - tl.load(batch.lengths + sentence)
    return tl.minimum(width, tl.maximum(remaining, 0))


@triton.jit
def write_draft(batch, sentence, step, token, count, STEPS: tl.constexpr):
    """Write the first `count` tokens [STEPS] of a draft, up to EOS."""
    end = tl.load(batch.place_limits + sentence * TOKENS + EOS)
    first_end = tl.min(tl.where((token == end) & (step < count), step, STEPS), 0)
    count = tl.minimum(count, first_end + 1)
    tl.store(batch.draft + sentence * batch.draft_stride + step, token, step < count)
    tl.store(batch.num_drafted + sentence, count)


@triton.jit
def draft_given(
    batch,  # `Places`
    given,  # [B, size], tokens
    size,
    width,
    STEPS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Draft given tokens once a token has been emitted.

    Grid: sentences.
    """
    sentence = tl.program_id(0)
    wait(PDL)
    if tl.load(batch.active + sentence) == 0:
        return
    count = tl.minimum(most_drafted(batch, sentence, width), size)
    count = tl.where(tl.load(batch.emitted + sentence) > 0, count, 0)
    step = tl.arange(0, STEPS)
    token = tl.load(given + sentence * size + step, mask=step < count, other=0)
    write_draft(batch, sentence, step, token, count, STEPS)


@triton.jit
def find_undrafted(batch, undrafted, PDL: tl.constexpr):
    """Find the sentences that have no draft. Grid: sentences."""
    sentence = tl.program_id(0)
    wait(PDL)
    has_none = (tl.load(batch.active + sentence) > 0) & (tl.load(batch.num_drafted + sentence) == 0)
    tl.store(undrafted + sentence, tl.where(has_none, ALL_ROWS, 0))
