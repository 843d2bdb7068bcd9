"""The Triton kernels of beam search: the best continuations of a hypothesis, and which of a sentence go on.

The rules are those of csrc/beam_search.cpp. A hypothesis writes its tokens, keys and values to places of its own; a
table of ancestors tells which hypothesis wrote an earlier position. There are two tables and two rows of scores, for
even and odd lengths, because a program cannot read what it overwrites. At length 0 nothing of the state is read.
"""

import triton
import triton.language as tl

from fairseq_plugins.decoding.gpu.kernels.constants import (
    ALL_ROWS,
    EOS,
    EOS_IS_FORBIDDEN,
    MAX_LEN,
    SCORES_ARE_NAN,
    TOKENS,
)
from fairseq_plugins.decoding.gpu.kernels.layers import before_overwriting, best_of, wait
from fairseq_plugins.decoding.gpu.kernels.rows import forced_token
from fairseq_plugins.decoding.gpu.kernels.scores import store_status


@triton.jit
def best_continuations(
    batch,  # `Places`
    found,  # `Scores`
    scores,  # [rows, COUNT], the best of a row, the best first; -inf where there are fewer
    tokens,
    BEAM: tl.constexpr,
    BEST: tl.constexpr,
    COUNT: tl.constexpr,  # 2 * BEAM
    RANKS: tl.constexpr,  # COUNT as a power of two
    TILES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Merge the sorted lists of a row's tiles; of equal scores, the lower tokens are taken first. Grid: rows."""
    row = tl.program_id(0)
    live = tl.load(batch.active + row // BEAM, cache_modifier=".cg")
    wait(PDL)
    if live == 0:
        return
    tiles = found.tiles
    tile = tl.arange(0, TILES)
    is_tile = tile < tiles
    at = row * tiles + tile
    peak = tl.load(found.peaks + at, mask=is_tile, other=float("-inf"))
    sum = tl.load(found.sums + at, mask=is_tile, other=0.0)
    highest = tl.max(peak, 0)
    tl.store(found.normalizer + row, highest + tl.log(tl.sum(sum * tl.exp(peak - highest), 0)))
    allowed = tl.load(found.only + row)
    if allowed >= 0:
        rank = tl.arange(0, RANKS)
        score = tl.where(rank == 0, tl.load(found.watched_scores + row), float("-inf"))
        tl.store(scores + row * COUNT + rank, score, rank < COUNT)
        tl.store(tokens + row * COUNT, allowed)
        return
    # The best that is left of each tile, and its rank there.
    head = tl.load(found.best_scores + at * BEST, mask=is_tile, other=float("-inf"))
    taken = tl.zeros((TILES,), tl.int32)
    for rank in range(COUNT):
        score, index = best_of(head, 0, tiles)
        is_chosen = tile == index
        place = tl.minimum(tl.sum(tl.where(is_chosen, taken, 0), 0), BEST - 1)
        tl.store(scores + row * COUNT + rank, score)
        tl.store(tokens + row * COUNT + rank, tl.load(found.best_tokens + (row * tiles + index) * BEST + place))
        taken += is_chosen.to(tl.int32)
        following = tl.load(found.best_scores + at * BEST + taken, mask=is_chosen & (taken < BEST), other=float("-inf"))
        head = tl.where(is_chosen, following, head)


@triton.jit
def _sorted_candidates(
    scores, tokens, normalizers, before, sentence, known, ends, vocabulary,
    BEAM: tl.constexpr, COUNT: tl.constexpr, HYPOTHESES: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    """Return the best COUNT continuations of a sentence by score, parent, token: their scores and keys; whether NaN.

    A key is parent * vocabulary + token. Where there are fewer, the rest has the score -inf and the key 0. `known` is
    the number of hypotheses that have scores.
    """
    number = tl.arange(0, HYPOTHESES * RANKS)
    parent, rank = number // RANKS, number % RANKS
    # At first all hypotheses are equal, and one is enough.
    hypotheses = tl.maximum(known, 1)
    is_candidate = (parent < hypotheses) & (rank < COUNT)
    row = sentence * BEAM + parent
    raw = tl.load(scores + row * COUNT + rank, mask=is_candidate, other=float("-inf"))
    token = tl.load(tokens + row * COUNT + rank, mask=is_candidate, other=0)
    normalizer = tl.load(normalizers + row, mask=is_candidate, other=0.0)
    total = raw - normalizer + tl.load(before + parent, mask=is_candidate & (parent < known), other=0.0)
    key = parent * vocabulary + token
    none = 2147483647
    is_left = is_candidate & (raw > float("-inf"))
    front = tl.min(tl.where(is_left, key, none), 0)
    front_score = tl.max(tl.where(is_left & (key == front), total, float("-inf")), 0)
    ranks = tl.arange(0, RANKS)
    best = tl.full((RANKS,), float("-inf"), tl.float32)
    keys = tl.zeros((RANKS,), tl.int32)
    for at in range(COUNT):
        highest = tl.max(tl.where(is_left, total, float("-inf")), 0)
        chosen = tl.min(tl.where(is_left & (total == highest), key, none), 0)
        is_found = ranks == tl.where(chosen < none, at, -1)
        best = tl.where(is_found, highest, best)
        keys = tl.where(is_found, chosen, keys)
        is_left = is_left & (key != chosen)
    # If the prefix forces EOS, fairseq copies the first hypothesis to all others.
    is_copy = ranks < tl.where((ends > 0) & (front < none), hypotheses, 0)
    best = tl.where(is_copy, front_score, best)
    keys = tl.where(is_copy, front, keys)
    return best, keys, tl.max((normalizer != normalizer).to(tl.int32), 0)


@triton.jit
def _writers(ancestors, hypothesis, column, length, columns, ok):
    """Return which hypothesis wrote a column; the last one, each wrote itself."""
    of_last = hypothesis[:, None]
    writer = tl.load(ancestors + of_last * columns + column, mask=ok & (column < length), other=0)
    return tl.where(column < length, writer, of_last)


@triton.jit
def _store_ended(
    old, tokens, log_probs, ended_tokens, ended_log_probs, sentence, parent, target, is_output, length, columns,
    BEAM: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gather the tokens of ended hypotheses, without EOS."""
    to = ((sentence * BEAM + target).to(tl.int64) * columns)[:, None] - 1
    for start in range(1, length + 1, COLUMNS):
        column = (start + tl.arange(0, COLUMNS))[None, :]
        ok = is_output[:, None] & (column <= length)
        writer = _writers(old, parent, column, length, columns, ok)
        at = (sentence * BEAM + writer).to(tl.int64) * columns + column
        tl.store(ended_tokens + to + column, tl.load(tokens + at, mask=ok, other=0), ok)
        tl.store(ended_log_probs + to + column, tl.load(log_probs + at, mask=ok, other=0.0), ok)


@triton.jit
def advance_beams(
    batch,  # `Places`, whose tokens are [B, BEAM, columns]
    found,  # `Scores`
    candidate_scores,  # [rows, COUNT]
    candidate_tokens,
    ancestors,  # [B, 2, BEAM, columns], which hypothesis wrote a column before the last one
    scores,  # [B, 2, BEAM], sums of log-probabilities
    ended_tokens,  # [B, BEAM, columns], of ended hypotheses, in the order in which they ended
    ended_log_probs,
    ended_scores,  # [B, BEAM]
    ended_lengths,
    num_ended,  # [B]
    BEAM: tl.constexpr,
    COUNT: tl.constexpr,  # 2 * BEAM
    HYPOTHESES: tl.constexpr,  # BEAM and COUNT as powers of two
    RANKS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):
    """End hypotheses whose best continuations are EOS, and continue with the best others. Grid: sentences."""
    sentence = tl.program_id(0)
    wait(PDL)
    if tl.load(batch.active + sentence) == 0:
        store_status(batch.status, sentence, 0, 0, 0, 1, 0)
        return
    columns, tokens, log_probs = batch.columns // BEAM, batch.tokens, batch.log_probs
    limits = batch.place_limits + sentence * TOKENS
    length, max_len, end = tl.load(batch.lengths + sentence), tl.load(limits + MAX_LEN), tl.load(limits + EOS)
    # At length 0, the state is that of the sentence before.
    known = tl.where(length > 0, BEAM, 0)
    of_old, of_new = (sentence * 2 + length % 2) * BEAM, (sentence * 2 + (length + 1) % 2) * BEAM
    old, new = ancestors + of_old.to(tl.int64) * columns, ancestors + of_new.to(tl.int64) * columns
    before = scores + of_old
    ends = (forced_token(batch.prefix + sentence * batch.prefix_stride, limits, length) == end).to(tl.int32)
    best, keys, is_nan = _sorted_candidates(
        candidate_scores, candidate_tokens, found.normalizer, before, sentence, known, ends, found.outputs, BEAM, COUNT,
        HYPOTHESES, RANKS,
    )  # fmt: skip
    parent, token = keys // found.outputs, keys % found.outputs
    log_prob = best - tl.load(before + parent, mask=parent < known, other=0.0)
    rank = tl.arange(0, RANKS)
    in_beam = rank < BEAM
    is_end = (token == end) & (best > float("-inf")) & (rank < COUNT)

    # Outputs, up to BEAM of them.
    is_output = (is_end & in_beam).to(tl.int32)
    before_these = tl.where(length > 0, tl.load(num_ended + sentence), 0)
    target = before_these + tl.cumsum(is_output, 0) - is_output
    outputs = tl.sum(is_output, 0)
    count = tl.minimum(before_these + outputs, BEAM)
    if outputs > 0:
        is_stored = (is_output > 0) & (target < BEAM)
        _store_ended(
            old, tokens, log_probs, ended_tokens, ended_log_probs, sentence, parent, target, is_stored, length, columns,
            BEAM, COLUMNS,
        )  # fmt: skip
        to = sentence * BEAM + target
        last = to.to(tl.int64) * columns + length
        tl.store(ended_tokens + last, token, is_stored)
        tl.store(ended_log_probs + last, log_prob, is_stored)
        tl.store(ended_scores + to, best, is_stored)
        tl.store(ended_lengths + to, tl.zeros_like(to) + length + 1, is_stored)
    before_overwriting()
    tl.store(num_ended + sentence, count)
    is_last = length >= max_len
    is_finished = (outputs > 0) & (is_last | (count == BEAM))

    # Each hypothesis ends at most once, so that at least BEAM of the candidates go on: fairseq ignores none of them.
    goes_on = (~is_end & (rank < COUNT)).to(tl.int32)
    place = tl.where(goes_on > 0, tl.cumsum(goes_on, 0) - goes_on, COUNT)
    own = tl.arange(0, HYPOTHESES)
    is_own, is_chosen = own < BEAM, place[None, :] == own[:, None]
    next_parent = tl.sum(tl.where(is_chosen, parent[None, :], 0), 1)
    next_token = tl.sum(tl.where(is_chosen, token[None, :], 0), 1)
    at = (sentence * BEAM + own).to(tl.int64) * columns + length + 1
    tl.store(tokens + at, next_token, is_own)
    tl.store(log_probs + at, tl.sum(tl.where(is_chosen, log_prob[None, :], 0.0), 1), is_own)
    tl.store(scores + of_new + own, tl.sum(tl.where(is_chosen, best[None, :], 0.0), 1), is_own)
    for start in range(0, length + 1, COLUMNS):
        column = (start + tl.arange(0, COLUMNS))[None, :]
        ok = is_own[:, None] & (column <= length)
        tl.store(new + own[:, None] * columns + column, _writers(old, next_parent, column, length, columns, ok), ok)

    is_forbidden = is_last & (is_finished == 0)
    tl.store(batch.lengths + sentence, length + 1)
    tl.store(batch.active + sentence, tl.where(is_finished | is_forbidden | (is_nan > 0), 0, ALL_ROWS))
    error = tl.where(is_nan > 0, SCORES_ARE_NAN, tl.where(is_forbidden, EOS_IS_FORBIDDEN, 0))
    store_status(batch.status, sentence, 1, 0, 0, is_finished.to(tl.int32), error)
