"""The Triton kernels that begin a step: which token, position and cache slot each row has, and its input embedding."""

import triton
import triton.language as tl

from fairseq_plugins.decoding.gpu.kernels.constants import (
    ALL_ROWS,
    ALWAYS,
    AT_BEGINNING,
    EOS,
    FIRST,
    LEADING,
    MAX_LEN,
    MIN_LEN,
    PAD,
    PREFIX,
    TOKENS,
    TOO_EARLY,
)
from fairseq_plugins.decoding.gpu.kernels.layers import wait


@triton.jit
def _normalised(values, column, width, norm_weight, norm_bias, eps, ok):
    mean = tl.sum(values, 0) / width
    centred = tl.where(ok, values - mean, 0.0)
    factor = tl.rsqrt(tl.sum(centred * centred, 0) / width + eps)
    scale = tl.load(norm_weight + column, mask=ok, other=0.0).to(tl.float32)
    return centred * factor * scale + tl.load(norm_bias + column, mask=ok, other=0.0).to(tl.float32)


@triton.jit
def store_input(values, position, row, column, embedding, eps, HAS_TABLE: tl.constexpr, HAS_NORM: tl.constexpr):
    """Add the position's embedding, normalise, and store a row's input."""
    width = embedding.width
    ok = column < width
    if HAS_TABLE:
        place = tl.minimum(position, embedding.table_size - 1)
        values += tl.load(embedding.table + place * width + column, mask=ok, other=0.0).to(tl.float32)
    if HAS_NORM:
        values = _normalised(values, column, width, embedding.norm_weight, embedding.norm_bias, eps, ok)
    tl.store(embedding.x + row * embedding.x_stride + column, values.to(embedding.x.dtype.element_ty), ok)


@triton.jit
def forced_token(prefix, limits, position):
    """Return the token that a sentence's prefix forces at a position, -1 for none."""
    in_prefix = position < tl.minimum(tl.load(limits + PREFIX), tl.load(limits + MAX_LEN))
    forced = tl.load(prefix + position, mask=in_prefix, other=0)
    return tl.where(in_prefix & (forced != tl.load(limits + PAD)), forced, -1)


@triton.jit
def store_limits(prefix, limits, only, row_limits, row, position):
    """Store fairseq's limits of a row; return the only allowed token, -1 where several are.

    A prefix, then no EOS before the minimum length, and only EOS from the maximum length on.
    """
    min_len, max_len, prefix_width = tl.load(limits + MIN_LEN), tl.load(limits + MAX_LEN), tl.load(limits + PREFIX)
    forced = forced_token(prefix, limits, position)
    alone = tl.where((forced >= 0) | (position < max_len), forced, tl.load(limits + EOS))
    tl.store(only + row, alone)
    beginning = tl.minimum(prefix_width, max_len)
    too_early = tl.where((position < min_len) & (position >= beginning), TOO_EARLY, 0)
    tl.store(row_limits + row, too_early + tl.where(position == beginning, AT_BEGINNING, 0) + ALWAYS)
    return alone


@triton.jit
def step_rows(
    batch,  # `Places`; where OF_BEAMS, `tokens` is [B, hypotheses, columns]
    scores,  # `Scores`, of which `only`, `row_limits` and `watched` are written
    last_visible,  # [rows]
    slots,  # [rows]; -1 for rows of no token
    needed,  # [B], how many rows the launches after the next one need
    per_sentence,
    embedding,  # `Embedding`
    eps: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    HAS_NORM: tl.constexpr,
    OF_BEAMS: tl.constexpr,  # whether rows are hypotheses
    WIDTH: tl.constexpr,
    PDL: tl.constexpr,
):
    """Begin a step: the last token of each sentence, then its draft; or the last of each hypothesis. Grid: rows."""
    row = tl.program_id(0)
    sentence, step = row // per_sentence, row % per_sentence
    column = tl.arange(0, WIDTH)
    ok = column < embedding.width
    wait(PDL)
    if tl.load(batch.active + sentence) == 0:
        tl.store(needed + sentence, 0)
        # Rows of idle places are in tiles with others, and would write to the slots of an earlier step.
        tl.store(slots + row, -1)
        return
    limits = batch.place_limits + sentence * TOKENS
    length = tl.load(batch.lengths + sentence)
    own_prefix = batch.prefix + sentence * batch.prefix_stride
    if OF_BEAMS:
        # A hypothesis writes to a place and slots of its own. At first all are equal.
        writer = tl.where(length == 0, sentence * per_sentence, row)
        token = tl.load(batch.tokens + writer.to(tl.int64) * (batch.columns // per_sentence) + length)
        count, position, following = per_sentence - 1, length, -1
        slot = tl.load(batch.bases + sentence) + length * per_sentence + step
    else:
        pad, leading = tl.load(limits + PAD), tl.load(limits + LEADING) - length
        position = length + step
        own_draft = batch.draft + sentence * batch.draft_stride
        # The first draft is what the prefix forces, and nothing else. Every row finds that out by itself, and then
        # reads no draft, since the first row writes its length.
        is_first = (length == 0) & (tl.minimum(tl.load(limits + PREFIX), tl.load(limits + MAX_LEN)) > 0)
        if is_first | (leading > 0):
            # A longer prefix takes several iterations. The last one emits a token after the prefix, too, as one long
            # draft would, so that relaxed rules see the same drafts afterwards.
            count = tl.where(leading == per_sentence, leading - 2, tl.minimum(leading, per_sentence - 1))
            count = tl.maximum(count, 0)
            own = tl.load(own_prefix + position - 1, mask=(step > 0) & (step <= count), other=0)
            following = tl.load(own_prefix + position, mask=step < count, other=-1)
            tl.store(own_draft + step, following, step < count)
            tl.store(batch.num_drafted + sentence, count, step == 0)
        else:
            count = tl.load(batch.num_drafted + sentence)
            own = tl.load(own_draft + step - 1, mask=(step > 0) & (step <= count), other=0)
            following = tl.load(own_draft + step, mask=step < count, other=-1)
        first = tl.load(batch.tokens + sentence * batch.columns + length)
        token = tl.where(step > count, pad, tl.where(step == 0, first, own))
        slot = tl.load(batch.bases + sentence) + position
    tl.store(needed + sentence, count + 1, step == 0)
    of_token = embedding.weight + token.to(tl.int64) * embedding.width
    values = tl.load(of_token + column, mask=ok, other=0.0).to(tl.float32) * embedding.scale
    store_input(values, position, row, column, embedding, eps, HAS_TABLE, HAS_NORM)
    # Rows of no token read what the first one reads: further slots may be beyond the cache.
    tl.store(last_visible + row, tl.where(step <= count, position, length))
    tl.store(slots + row, tl.where(step <= count, slot, -1))
    alone = store_limits(own_prefix, limits, scores.only, scores.row_limits, row, position)
    tl.store(scores.watched + row, tl.where(alone >= 0, alone, following))


@triton.jit
def drafted_rows(
    batch,  # `Places`
    mask_vector,
    copy,  # `SoftCopy`, where COPIES
    newest,  # [B, D], added to the inputs of a sentence, where ADDS
    slots,  # [rows]; -1 for rows that are before the output or beyond its end
    last_visible,
    per_sentence,
    token_rows,  # rows of a sentence that are its last tokens; masks follow
    embedding,  # `Embedding`
    eps: tl.constexpr,
    COPIES: tl.constexpr,
    ADDS: tl.constexpr,
    IN_BLOCK: tl.constexpr,  # masks see each other; otherwise attention is causal
    HAS_TABLE: tl.constexpr,
    HAS_NORM: tl.constexpr,
    WIDTH: tl.constexpr,
    PDL: tl.constexpr,
):
    """Begin a draft of a trained drafter: the last tokens, then masks. Grid: rows."""
    row = tl.program_id(0)
    sentence, step = row // per_sentence, row % per_sentence
    column = tl.arange(0, WIDTH)
    width = embedding.width
    ok = column < width
    wait(PDL)
    if tl.load(batch.active + sentence) == 0:
        tl.store(slots + row, -1)  # as in `step_rows`
        return
    length, max_len = tl.load(batch.lengths + sentence), tl.load(batch.place_limits + sentence * TOKENS + MAX_LEN)
    place = length + 1 - token_rows + step
    position = tl.maximum(place, 0)
    if step < token_rows:
        token = tl.load(batch.tokens + sentence * batch.columns + position).to(tl.int64)
        values = tl.load(embedding.weight + token * width + column, mask=ok, other=0.0).to(tl.float32) * embedding.scale
    else:
        values = tl.load(mask_vector + column, mask=ok, other=0.0).to(tl.float32)
        if COPIES:
            source, size = batch.source + sentence * batch.source_stride, tl.load(batch.source_lengths + sentence)
            values += _soft_copy(copy, source, size, position, column, width, ok)
    if ADDS:
        # Before the first iteration there is none.
        has_newest = tl.load(batch.emitted + sentence) > 0
        added = tl.load(newest + sentence * width + column, mask=ok, other=0.0).to(tl.float32)
        values += tl.where(has_newest, added, 0.0)
    store_input(values, position, row, column, embedding, eps, HAS_TABLE, HAS_NORM)
    tl.store(slots + row, tl.where((place >= 0) & (place <= max_len), tl.load(batch.bases + sentence) + position, -1))
    last = position
    if IN_BLOCK:
        last = tl.where(step < token_rows, position, length + per_sentence - token_rows)
    tl.store(last_visible + row, tl.minimum(last, tl.maximum(max_len, length)))


@triton.jit
def _soft_copy(copy, source, source_length, position, column, width, ok):
    """Return attention from a position of the output over the source's embeddings (models/block_nat/decoder.py)."""
    place = tl.minimum(position, copy.table_size - 1)
    query = tl.load(copy.queries + place * width + column, mask=ok, other=0.0).to(tl.float32)
    highest, total = float("-inf"), 0.0
    values = tl.zeros_like(query)
    for start in range(0, source_length, 16):
        at = start + tl.arange(0, 16)
        is_token = at < source_length
        both = is_token[:, None] & ok[None, :]
        token = tl.load(source + at, mask=is_token, other=0).to(tl.int64)
        from_embedding = copy.embedding + token[:, None] * width + column[None, :]
        value = tl.load(from_embedding, mask=both, other=0.0).to(tl.float32) * copy.embedding_scale
        of_place = copy.table + tl.minimum(at, copy.table_size - 1)[:, None] * width + column[None, :]
        key = value + tl.load(of_place, mask=both, other=0.0).to(tl.float32)
        score = tl.where(is_token, tl.sum(key * query[None, :], 1) * copy.scale, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(score, 0))
        weight, factor = tl.exp(score - new_highest), tl.exp(highest - new_highest)
        total = total * factor + tl.sum(weight, 0)
        values = values * factor + tl.sum(weight[:, None] * value, 0)
        highest = new_highest
    return values / total


@triton.jit
def source_rows(
    batch,  # `Places`
    tokens,  # [rows], packed sources; a sentence begins at a multiple of 16 rows
    sentences,  # [tiles], the place in the batch of each tile's sentence; -1 for unused tiles
    begins,  # [tiles], the first row of the tile's sentence
    sizes,  # [tiles], the length of the tile's sentence
    own_slots,  # [rows], in the encoder's own keys and values
    cross_slots,  # [rows], in those of the decoder
    last_visible,  # [rows]
    embedding,  # `Embedding`
    eps: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    HAS_NORM: tl.constexpr,
    WIDTH: tl.constexpr,
    PDL: tl.constexpr,
):
    """Begin the encoder. Grid: rows."""
    row = tl.program_id(0)
    tile = row // 16
    column = tl.arange(0, WIDTH)
    wait(PDL)
    sentence = tl.load(sentences + tile)
    if sentence < 0:
        return
    position, size = row - tl.load(begins + tile), tl.load(sizes + tile)
    is_token = position < size
    token = tl.load(tokens + row).to(tl.int64)
    of_token = embedding.weight + token * embedding.width
    values = tl.load(of_token + column, mask=column < embedding.width, other=0.0).to(tl.float32) * embedding.scale
    store_input(values, position, row, column, embedding, eps, HAS_TABLE, HAS_NORM)
    tl.store(own_slots + row, row)
    tl.store(last_visible + row, size - 1)
    tl.store(cross_slots + row, tl.where(is_token, tl.load(batch.source_bases + sentence) + position, -1))
    tl.store(batch.source + sentence * batch.source_stride + position, token.to(tl.int32), is_token)
    if position == 0:
        tl.store(batch.source_lengths + sentence, size)
        tl.store(batch.source_ends + sentence, size - 1)
        tl.store(batch.tokens + sentence * batch.columns, tl.load(batch.place_limits + sentence * TOKENS + FIRST))
        tl.store(batch.lengths + sentence, 0)
        tl.store(batch.emitted + sentence, 0)
        tl.store(batch.num_drafted + sentence, 0)
        tl.store(batch.active + sentence, ALL_ROWS)
