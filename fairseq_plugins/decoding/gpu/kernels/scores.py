"""The Triton kernels of scores: the vocabulary in tiles, the best token of each row, and which drafted tokens count."""

import triton
import triton.language as tl

from fairseq_plugins.decoding.gpu.kernels.constants import (
    ACCEPTED,
    ALL_ROWS,
    DRAFTED,
    EMITTED,
    EOS,
    ERROR,
    HAS_ENDED,
    STATUS,
    TEMPERATURE,
    TOKENS,
    TOPK,
    TOPP,
    UNK,
    UNK_PENALTY,
)
from fairseq_plugins.decoding.gpu.kernels.drawing import drawn_token
from fairseq_plugins.decoding.gpu.kernels.layers import before_overwriting, best_of, is_live, product, wait
from fairseq_plugins.decoding.gpu.kernels.noise import noise


@triton.jit(do_not_specialize=["rows", "per_sentence", "skipped"])
def vocabulary(
    batch,  # `Places`
    scores,  # `Scores`, whose rows are those that are scored
    given,  # `ProductInput`
    weight,  # [outputs + further ones, inputs]; the further ones begin at a multiple of OUTPUTS
    bias,
    further,  # [rows, further_outputs], products that are no scores
    all_scores,  # [rows, outputs], where STORES: instead of the best ones
    ids,  # [outputs], the tokens that are scored, where HAS_IDS
    active,
    rows,
    per_sentence,
    skipped,  # first rows of each sentence, which are not scored: scores have no rows for these
    further_outputs,
    inputs,
    eps: tl.constexpr,
    INPUT: tl.constexpr,
    NPARTS: tl.constexpr,
    HAS_BEFORE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    KEEP: tl.constexpr,
    LIMITED: tl.constexpr,
    BEST: tl.constexpr,
    FURTHER: tl.constexpr,
    STORES: tl.constexpr,
    DRAWS: tl.constexpr,
    HAS_IDS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    EVEN: tl.constexpr,
    PDL: tl.constexpr,
):
    """Score a tile of the vocabulary. Grid: (tiles, tiles of rows)."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    scored = per_sentence - skipped
    is_row = row < rows // per_sentence * scored
    of_step = tl.where(is_row, row // scored * per_sentence + skipped + row % scored, rows)
    tile = tl.program_id(0)
    outputs, tiles = scores.outputs, scores.tiles
    output = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    if not is_live(active, of_step, rows, per_sentence):
        wait(PDL)
        return
    all_outputs = outputs
    if FURTHER:
        all_outputs = tiles * OUTPUTS + further_outputs
    offset = tl.zeros((OUTPUTS,), dtype=tl.float32)
    if HAS_BIAS:
        offset = tl.load(bias + output, mask=output < all_outputs, other=0.0).to(tl.float32)
    total = product(
        given, weight, of_step, output, rows, all_outputs, inputs, 0, inputs, tile == 0, eps, INPUT, NPARTS, HAS_BEFORE,
        KEEP, ROWS, OUTPUTS, CHUNK, CHUNKS, EVEN, PDL,
    )  # fmt: skip
    total += offset[None, :]
    if FURTHER:
        if tile >= tiles:
            column = output - tiles * OUTPUTS
            ok = is_row[:, None] & (column[None, :] < further_outputs)
            tl.store(further + row[:, None] * further_outputs + column[None, :], total, ok)
            return
    if LIMITED or DRAWS:
        total = total / tl.load(batch.penalties + TEMPERATURE)
    if LIMITED or DRAWS or not STORES:
        at = row.to(tl.int64) * tiles + tile
        total = tl.where(output[None, :] < outputs, total, float("-inf"))
        peak = tl.max(total, 1)
        tl.store(scores.peaks + at, peak, is_row)
        # A bias may forbid all tokens of a tile.
        tl.store(
            scores.sums + at, tl.sum(tl.exp(total - tl.where(peak == float("-inf"), 0.0, peak)[:, None]), 1), is_row
        )
        if LIMITED:
            penalty = tl.load(batch.penalties + UNK_PENALTY)
            total -= tl.where(output == tl.load(batch.limits + UNK), penalty, 0.0)[None, :]
            token = tl.load(scores.watched + row, mask=is_row, other=-1)
            found = tl.sum(tl.where(output[None, :] == token[:, None], total, 0.0), 1)
            tl.store(scores.watched_scores + row, found, is_row & (token // OUTPUTS == tile) & (token >= 0))
            of_tokens = tl.load(batch.limits + TOKENS + output, mask=output < outputs, other=0)
            of_rows = tl.load(scores.row_limits + row, mask=is_row, other=-1)
            total = tl.where((of_tokens[None, :] & of_rows[:, None]) != 0, float("-inf"), total)
    if STORES:
        ok = is_row[:, None] & (output[None, :] < outputs)
        tl.store(all_scores + row[:, None].to(tl.int64) * outputs + output[None, :], total, ok)
    else:
        without_noise = total
        if DRAWS:
            token = output
            if HAS_IDS:
                token = tl.load(ids + output, mask=output < outputs, other=0)
            sentence = row // scored
            position = tl.load(batch.lengths + sentence, mask=is_row, other=0) + row % scored
            total += noise(batch.noise_keys, sentence[:, None], position[:, None], token[None, :], is_row[:, None])
        for rank in tl.static_range(BEST):
            score, index = best_of(total, 1, OUTPUTS)
            tl.store(scores.best_scores + at * BEST + rank, score, is_row)
            if DRAWS:
                is_best = tl.arange(0, OUTPUTS)[None, :] == index[:, None]
                tl.store(scores.drawn_scores + at, tl.sum(tl.where(is_best, without_noise, 0.0), 1), is_row)
            tl.store(scores.best_tokens + at * BEST + rank, tl.minimum(tile * OUTPUTS + index, outputs - 1), is_row)
            total = tl.where(tl.arange(0, OUTPUTS)[None, :] == index[:, None], float("-inf"), total)


@triton.jit
def store_status(status, sentence, emitted, accepted, drafted, has_ended, error):
    """Store what an iteration did to a sentence: see constants.py."""
    own = status + sentence * STATUS
    tl.store(own + EMITTED, emitted)
    tl.store(own + ACCEPTED, accepted)
    tl.store(own + DRAFTED, drafted)
    tl.store(own + HAS_ENDED, has_ended)
    tl.store(own + ERROR, error)


@triton.jit
def best_tokens(
    batch,  # `Places`
    scores,  # `Scores`
    all_scores,  # [rows, outputs], where KEEPS
    ids,
    active,
    per_sentence,
    BEST: tl.constexpr,
    LIMITED: tl.constexpr,
    DRAWS: tl.constexpr,
    KEEPS: tl.constexpr,  # whether --sampling-topk or --sampling-topp leave only some tokens
    HAS_IDS: tl.constexpr,
    CHUNK: tl.constexpr,
    TILES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Reduce the tiles of a row. Grid: rows."""
    row = tl.program_id(0)
    needed = tl.load(active + row // per_sentence, cache_modifier=".cg")
    wait(PDL)
    if row % per_sentence >= needed:
        return
    tile = tl.arange(0, TILES)
    # Offsets into the scores of many rows do not fit 32 bits.
    outputs, tiles = scores.outputs, scores.tiles
    of_row = row.to(tl.int64) * tiles
    at = of_row + tile
    is_tile = tile < tiles
    peak = tl.load(scores.peaks + at, mask=is_tile, other=float("-inf"))
    sum = tl.load(scores.sums + at, mask=is_tile, other=0.0)
    highest = tl.max(peak, 0)
    normalizer = highest + tl.log(tl.sum(sum * tl.exp(peak - highest), 0))
    if KEEPS:
        sentence = row // per_sentence
        token, score = drawn_token(
            all_scores + row.to(tl.int64) * outputs, outputs, ids, batch.noise_keys, sentence,
            tl.load(batch.lengths + sentence) + row % per_sentence, tl.load(batch.limits + TOPK),
            tl.load(batch.penalties + TOPP), normalizer, HAS_IDS, CHUNK,
        )  # fmt: skip
    else:
        of_tiles = tl.load(scores.best_scores + at * BEST, mask=is_tile, other=float("-inf"))
        score, index = best_of(of_tiles, 0, tiles)
        token = tl.load(scores.best_tokens + (of_row + index) * BEST)
        if DRAWS:
            score = tl.load(scores.drawn_scores + of_row + index)
    if LIMITED:
        allowed = tl.load(scores.only + row)
        if allowed >= 0:
            token = allowed
            score = tl.load(scores.watched_scores + row)
    tl.store(scores.token + row, token)
    tl.store(scores.log_prob + row, score - normalizer)
    tl.store(scores.normalizer + row, normalizer)


@triton.jit
def accept(
    batch,  # `Places`
    scores,  # `Scores`
    values,  # [vocabulary], the number that a token stands for, where DISTANCE
    per_sentence,
    tau,
    epsilon,
    MIN_BLOCK: tl.constexpr,
    BETA: tl.constexpr,  # 0 for exact acceptance
    DISTANCE: tl.constexpr,
    BEST: tl.constexpr,
    STEPS: tl.constexpr,
    CHUNK: tl.constexpr,  # of the best tokens, which are counted chunk by chunk
    PDL: tl.constexpr,
):
    """Accept drafts and append them with the verifier's own next token. Grid: sentences."""
    sentence = tl.program_id(0)
    wait(PDL)
    if tl.load(batch.active + sentence) == 0:
        store_status(batch.status, sentence, 0, 0, 0, 1, 0)
        return
    step = tl.arange(0, STEPS)
    row = sentence * per_sentence + step
    count = tl.load(batch.num_drafted + sentence)
    is_drafted = step < count
    is_row = step <= count
    best = tl.load(scores.token + row, mask=is_row, other=-1)
    log_prob = tl.load(scores.log_prob + row, mask=is_row, other=0.0)
    drafted = tl.load(batch.draft + sentence * batch.draft_stride + step, mask=is_drafted, other=-1)
    accepted = is_drafted & (drafted == best)
    end = tl.load(batch.limits + EOS)
    if BETA > 0 or DISTANCE or MIN_BLOCK > 1:
        score = tl.load(scores.watched_scores + row, mask=is_drafted, other=0.0)
        of_draft = score - tl.load(scores.normalizer + row, mask=is_drafted, other=0.0)
        alone = tl.load(scores.only + row, mask=is_drafted, other=-1)
        of_rows = tl.load(scores.row_limits + row, mask=is_drafted, other=0)
        of_tokens = tl.load(batch.limits + TOKENS + drafted, mask=is_drafted, other=0)
        allowed = is_drafted & (alone < 0) & ((of_tokens & of_rows) == 0)
        if BETA > 0:
            better = tl.zeros((STEPS,), tl.int32)
            tiles = scores.tiles
            for first in range(0, tiles * BEST, CHUNK):
                place = first + tl.arange(0, CHUNK)
                ok = is_drafted[:, None] & (place < tiles * BEST)[None, :]
                at = row[:, None].to(tl.int64) * (tiles * BEST) + place[None, :]
                others = tl.load(scores.best_scores + at, mask=ok, other=-float("inf"))
                better += tl.sum((others > score[:, None]).to(tl.int32), 1)
            near = allowed & (better < BETA) & (log_prob - of_draft <= tau)
            log_prob = tl.where(near & ~accepted, of_draft, log_prob)
            accepted |= near
        if DISTANCE:
            mine = tl.load(values + drafted, mask=allowed, other=float("nan"))
            its = tl.load(values + best, mask=allowed, other=float("nan"))
            near = allowed & (tl.abs(mine - its) <= epsilon)
            log_prob = tl.where(near & ~accepted, of_draft, log_prob)
            accepted |= near
        forced = allowed & (step < MIN_BLOCK - 1)
        log_prob = tl.where(forced & ~accepted, of_draft, log_prob)
        accepted |= forced
    first_rejected = tl.min(tl.where(accepted, STEPS, step), 0)
    token = tl.where(step < first_rejected, drafted, best)
    first_end = tl.min(tl.where((token == end) & (step <= first_rejected), step, STEPS), 0)
    number = tl.minimum(first_rejected, first_end) + 1
    is_emitted = step < number
    length = tl.load(batch.lengths + sentence)
    to = sentence * batch.columns + 1 + length + step
    tl.store(batch.tokens + to, token, is_emitted)
    tl.store(batch.log_probs + to, log_prob, is_emitted)
    has_ended = first_end < STEPS
    is_nan = tl.max((is_emitted & (log_prob != log_prob)).to(tl.int32), 0)
    before_overwriting()
    tl.store(batch.lengths + sentence, length + number)
    tl.store(batch.active + sentence, tl.where(has_ended | (is_nan > 0), 0, ALL_ROWS))
    tl.store(batch.emitted + sentence, number)
    tl.store(batch.last_row + sentence, sentence * per_sentence + number - 1)
    kept = tl.sum((is_emitted & is_drafted & (token == drafted)).to(tl.int32), 0)
    store_status(batch.status, sentence, number, kept, count, has_ended.to(tl.int32), is_nan)
