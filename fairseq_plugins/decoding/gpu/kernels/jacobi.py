"""The Triton kernels of Jacobi decoding: draft what was predicted, and keep predictions."""

import triton
import triton.language as tl

from fairseq_plugins.decoding.gpu.kernels.constants import PAD, TOKENS
from fairseq_plugins.decoding.gpu.kernels.drafts import most_drafted
from fairseq_plugins.decoding.gpu.kernels.layers import wait


@triton.jit
def draft_predictions(
    batch,  # `Places`
    tails,  # [B, tail_stride], the predictions after the emitted tokens; -1 for none
    block,  # [1], positions solved in parallel
    tail_stride,
    width,
    most_parallel,  # length of the output from which decoding is greedy, where LIMITED
    initial,  # first guess of every position, unless FROM_SOURCE
    LIMITED: tl.constexpr,
    FROM_SOURCE: tl.constexpr,
    STEPS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Draft what was predicted, and first guesses elsewhere. Drafts may go past EOS. Grid: sentences."""
    sentence = tl.program_id(0)
    wait(PDL)
    if tl.load(batch.active + sentence) == 0:
        return
    length, size = tl.load(batch.lengths + sentence), tl.load(block)
    # The verifier predicts one position more than is drafted, so the last position of a block needs no draft.
    count = size - 1 - length % size
    if LIMITED:
        count = tl.maximum(tl.minimum(count, most_parallel - 1 - length), 0)
    count = tl.minimum(count, most_drafted(batch, sentence, width))
    step = tl.arange(0, STEPS)
    # Before the first iteration nothing is predicted.
    known = tl.where(tl.load(batch.emitted + sentence) > 0, count, 0)
    predicted = tl.load(tails + sentence * tail_stride + step, mask=step < known, other=-1)
    guess = tl.zeros((STEPS,), tl.int32) + initial
    if FROM_SOURCE:
        place = length + step
        is_token = (step < count) & (place < tl.load(batch.source_lengths + sentence))
        guess = tl.load(batch.source + sentence * batch.source_stride + place, mask=is_token, other=0)
        guess = tl.where(is_token, guess, tl.load(batch.place_limits + sentence * TOKENS + PAD))
    token = tl.where(predicted >= 0, predicted, guess)
    tl.store(batch.draft + sentence * batch.draft_stride + step, token, step < count)
    tl.store(batch.num_drafted + sentence, count)


@triton.jit
def keep_predictions(
    batch,  # `Places`
    predicted,  # [B * per_sentence], the best token after each row
    tails,
    tail_stride,
    per_sentence,
    STEPS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Keep the predictions after the emitted tokens. Grid: sentences."""
    sentence = tl.program_id(0)
    wait(PDL)
    if tl.load(batch.active + sentence) == 0:
        return
    count, number = tl.load(batch.num_drafted + sentence), tl.load(batch.emitted + sentence)
    own = predicted + sentence * per_sentence
    step = tl.arange(0, STEPS)
    following = tl.load(own + number + step, mask=number + step <= count, other=-1)
    tl.store(tails + sentence * tail_stride + step, following, step < tail_stride)
