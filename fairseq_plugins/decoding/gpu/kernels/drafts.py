"""The Triton kernels that write drafts, and what others share that do: how long a draft may be, and where it ends."""

import triton
import triton.language as tl

from fairseq_plugins.decoding.gpu.kernels.constants import ALL_ROWS, EOS, MAX_LEN, TOKENS
from fairseq_plugins.decoding.gpu.kernels.layers import wait


@triton.jit
def most_drafted(lengths, limits, sentence, width):
    """Return how many tokens the draft of a sentence may have."""
    remaining = tl.load(limits + MAX_LEN) - tl.load(lengths + sentence)
    return tl.minimum(width, tl.maximum(remaining, 0))


@triton.jit
def write_draft(draft, num_drafted, sentence, stride, step, token, count, end, STEPS: tl.constexpr):
    """Write the first `count` tokens [STEPS] of a draft, up to the token `end`; -1 for none."""
    first_end = tl.min(tl.where((token == end) & (step < count), step, STEPS), 0)
    count = tl.minimum(count, first_end + 1)
    tl.store(draft + sentence * stride + step, token, step < count)
    tl.store(num_drafted + sentence, count)


@triton.jit
def draft_given(
    given,  # [B, size], tokens
    lengths,
    limits,
    emitted,
    draft,
    num_drafted,
    active,
    size,
    draft_stride,
    width,
    STEPS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Draft given tokens once a token has been emitted.

    Grid: sentences.
    """
    sentence = tl.program_id(0)
    wait(PDL)
    if tl.load(active + sentence) == 0:
        return
    limits += sentence * TOKENS
    count = tl.minimum(most_drafted(lengths, limits, sentence, width), size)
    count = tl.where(tl.load(emitted + sentence) > 0, count, 0)
    step = tl.arange(0, STEPS)
    token = tl.load(given + sentence * size + step, mask=step < count, other=0)
    write_draft(draft, num_drafted, sentence, draft_stride, step, token, count, tl.load(limits + EOS), STEPS)


@triton.jit
def find_undrafted(active, num_drafted, undrafted, PDL: tl.constexpr):
    """Find the sentences that have no draft. Grid: sentences."""
    sentence = tl.program_id(0)
    wait(PDL)
    has_none = (tl.load(active + sentence) > 0) & (tl.load(num_drafted + sentence) == 0)
    tl.store(undrafted + sentence, tl.where(has_none, ALL_ROWS, 0))
