"""The Triton kernels that choose a draft's tokens: each by itself, or with transition scores (models/transition.py).

With these a launch chooses the token of one position among all tokens: its transition scores need the token before.
Programs share the vocabulary; each repeats the recurrent cell, whose weights it loads while the kernel before runs.
"""

import triton
import triton.language as tl

from fairseq_plugins.decoding.gpu.kernels.constants import EOS, TEMPERATURE, TOKENS, TOPK, TOPP
from fairseq_plugins.decoding.gpu.kernels.drafts import most_drafted, write_draft
from fairseq_plugins.decoding.gpu.kernels.drawing import drawn_token
from fairseq_plugins.decoding.gpu.kernels.layers import before_overwriting, best_of, wait
from fairseq_plugins.decoding.gpu.kernels.noise import noise


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _matrix(weight, row, column, rows, columns):
    ok = (row < rows)[:, None] & (column < columns)[None, :]
    return tl.load(weight + row[:, None] * columns + column[None, :], mask=ok, other=0.0)


@triton.jit
def _times(matrix, vector):
    return tl.sum(matrix.to(tl.float32) * vector[None, :], 1)


@triton.jit
def choose_alone(
    batch,  # `Places`
    best_scores,  # [B * width, tiles], of the best token of each tile
    best_places,
    ids,  # [N], the tokens that the drafter scores
    width,
    tiles,
    STEPS: tl.constexpr,
    TILES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write the best token of each row of a draft. Grid: sentences."""
    sentence = tl.program_id(0)
    step, tile = tl.arange(0, STEPS), tl.arange(0, TILES)
    wait(PDL)
    if tl.load(batch.active + sentence) == 0:
        return
    is_step = step < width
    row = sentence * width + step
    ok = is_step[:, None] & (tile < tiles)[None, :]
    scores = tl.load(best_scores + row[:, None] * tiles + tile[None, :], mask=ok, other=float("-inf"))
    _, best = best_of(scores, 1, tiles)
    place = tl.load(best_places + row * tiles + best, mask=is_step, other=0)
    token = tl.load(ids + place, mask=is_step, other=-1)
    write_draft(batch, sentence, step, token, most_drafted(batch, sentence, width), STEPS)


@triton.jit(do_not_specialize=["step"])
def choose_next(
    batch,  # `Places`
    path,  # `PathLayers`
    memory,  # `PathMemory`
    from_hidden,  # [B * width, 3 * S], the GRU's products of the hidden states
    width,
    step,  # the position, from 0; `width` only writes the last token
    HAS_STATE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    DRAWS: tl.constexpr,
    KEEPS: tl.constexpr,  # `draw_next` chooses
    OUTPUTS: tl.constexpr,
    TILES: tl.constexpr,
    RANK: tl.constexpr,
    STATE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write the token of the position before, and find the best of each tile. Grid: (tiles, sentences)."""
    tile, sentence = tl.program_id(0), tl.program_id(1)
    of_rank, unit, of_tile = tl.arange(0, RANK), tl.arange(0, STATE), tl.arange(0, TILES)
    rank, state_width, outputs = path.rank, path.state_width, path.outputs
    is_rank, is_unit = of_rank < rank, unit < state_width
    output = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = output < outputs
    right = _matrix(path.after, output, of_rank, outputs, rank)
    if HAS_STATE:
        of_token, of_state = state_width * rank, state_width * state_width
        token_reset = _matrix(path.gru_token, unit, of_rank, state_width, rank)
        token_update = _matrix(path.gru_token + of_token, unit, of_rank, state_width, rank)
        token_new = _matrix(path.gru_token + 2 * of_token, unit, of_rank, state_width, rank)
        state_reset = _matrix(path.gru_recurrent, unit, unit, state_width, state_width)
        state_update = _matrix(path.gru_recurrent + of_state, unit, unit, state_width, state_width)
        state_new = _matrix(path.gru_recurrent + 2 * of_state, unit, unit, state_width, state_width)
        bias_reset = tl.zeros((STATE,), dtype=tl.float32)
        bias_update, bias_new = bias_reset, bias_reset
        if HAS_BIAS:
            bias_reset = tl.load(path.recurrent_bias + unit, mask=is_unit, other=0.0).to(tl.float32)
            bias_update = tl.load(path.recurrent_bias + state_width + unit, mask=is_unit, other=0.0).to(tl.float32)
            bias_new = tl.load(path.recurrent_bias + 2 * state_width + unit, mask=is_unit, other=0.0).to(tl.float32)
        back = _matrix(path.to_rank, of_rank, unit, rank, state_width)
    wait(PDL)
    if tl.load(batch.active + sentence) == 0:
        return
    length = tl.load(batch.lengths + sentence)
    last = tl.load(batch.tokens + sentence * batch.columns + length).to(tl.int64)
    old = ((step + 1) % 2) * memory.places + sentence
    new = (step % 2) * memory.places + sentence
    if step > 0:
        of_best = old * 0
        if not KEEPS:
            at = old * memory.tiles + of_tile
            highest = tl.load(memory.best_scores + at, mask=of_tile < memory.tiles, other=float("-inf"))
            _, of_best = best_of(highest, 0, memory.tiles)
        last = tl.load(path.ids + tl.load(memory.best_places + old * memory.tiles + of_best)).to(tl.int64)
    if tile == 0:
        if step == 0:
            tl.store(batch.num_drafted + sentence, most_drafted(batch, sentence, width))
        else:
            tl.store(batch.draft + sentence * batch.draft_stride + step - 1, last.to(tl.int32))
            # EOS ends a draft.
            count = tl.load(batch.num_drafted + sentence)
            is_end = last == tl.load(batch.place_limits + sentence * TOKENS + EOS)
            before_overwriting()
            tl.store(batch.num_drafted + sentence, tl.where(is_end, tl.minimum(count, step), count))
    if step < width:
        row = (sentence * width + step).to(tl.int64)
        factor = tl.load(path.before + last * rank + of_rank, mask=is_rank, other=0.0).to(tl.float32)
        if HAS_STATE:
            state = tl.load(memory.states + old * state_width + unit, mask=is_unit, other=0.0)
            state = tl.where(step > 0, state, 0.0)
            given = from_hidden + row * 3 * state_width + unit
            reset = tl.load(given, mask=is_unit, other=0.0) + _times(token_reset, factor)
            update = tl.load(given + state_width, mask=is_unit, other=0.0) + _times(token_update, factor)
            fresh = tl.load(given + 2 * state_width, mask=is_unit, other=0.0) + _times(token_new, factor)
            reset = _sigmoid(reset + _times(state_reset, state) + bias_reset)
            update = _sigmoid(update + _times(state_update, state) + bias_update)
            fresh = 2.0 * _sigmoid(2.0 * (fresh + reset * (_times(state_new, state) + bias_new))) - 1.0
            state = (1.0 - update) * fresh + update * state
            factor += _times(back, state)
            if tile == 0:
                tl.store(memory.states + new * state_width + unit, state, is_unit)
        total = tl.load(memory.scores + row * outputs + output, mask=is_output, other=float("-inf"))
        total += tl.sum(right.to(tl.float32) * factor[None, :], 1)
        if DRAWS:
            total = total / tl.load(batch.penalties + TEMPERATURE)
        if KEEPS:
            tl.store(memory.totals + sentence * outputs + output, total, is_output)
        else:
            if DRAWS:
                token = tl.load(path.ids + output, mask=is_output, other=0)
                total += noise(batch.noise_keys, sentence, length + step, token, sentence >= 0)
            best, index = best_of(total, 0, outputs - tile * OUTPUTS)
            tl.store(memory.best_scores + new * memory.tiles + tile, best)
            tl.store(memory.best_places + new * memory.tiles + tile, tile * OUTPUTS + index)


@triton.jit(do_not_specialize=["step"])
def draw_next(
    batch,  # `Places`
    path,  # `PathLayers`
    memory,  # `PathMemory`, of whose `best_places` the first of a sentence is written
    step,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Draw the token of a position among those that --sampling-topk or --sampling-topp keep. Grid: sentences."""
    sentence = tl.program_id(0)
    wait(PDL)
    if tl.load(batch.active + sentence) == 0:
        return
    outputs = path.outputs
    own = memory.totals + sentence * outputs
    peak, sum = tl.full((), float("-inf"), tl.float32), tl.full((), 0.0, tl.float32)
    for start in range(0, outputs, CHUNK):
        at = start + tl.arange(0, CHUNK)
        score = tl.load(own + at, mask=at < outputs, other=float("-inf"))
        highest = tl.maximum(peak, tl.max(score, 0))
        sum = sum * tl.exp(peak - highest) + tl.sum(tl.exp(score - highest), 0)
        peak = highest
    place, _ = drawn_token(
        own, outputs, path.ids, batch.noise_keys, sentence, tl.load(batch.lengths + sentence) + step,
        tl.load(batch.limits + TOPK), tl.load(batch.penalties + TOPP), peak + tl.log(sum), True, CHUNK,
    )  # fmt: skip
    tl.store(memory.best_places + ((step % 2) * memory.places + sentence) * memory.tiles, place)
