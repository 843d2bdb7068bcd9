"""The choice of a token among those that --sampling-topk or --sampling-topp keep, which needs the scores of all."""

import triton
import triton.language as tl

from fairseq_plugins.decoding.gpu.kernels.noise import noise


@triton.jit
def drawn_token(
    scores, outputs, ids, keys, sentence, position, topk, topp, normalizer, HAS_IDS: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Return the best token with noise that is kept (its place in `ids`), and its score.

    A token is kept if fewer than `topk` have a higher score; with `topp`, if these have less than this probability. If
    the best one is not, neither are those with lower scores, and the best of the others is tried.

    Args:
        scores: [outputs], divided by the temperature.
        outputs: number of tokens.
        ids: [outputs], the tokens that are scored, where HAS_IDS.
        keys: [B, 4], of the noise.
        sentence, position: of the token.
        topk, topp: 0 for no limit.
        normalizer: subtracted from scores it gives log-probabilities.
    """
    lowest = tl.full((), float("-inf"), tl.float32)
    place = tl.full((), 0, tl.int32)
    found = lowest
    goes_on = outputs > 0
    while goes_on:
        best = tl.full((), float("-inf"), tl.float32)
        place = tl.full((), 0, tl.int32)
        found = best
        for start in range(0, outputs, CHUNK):
            at = start + tl.arange(0, CHUNK)
            ok = at < outputs
            own = tl.load(scores + at, mask=ok, other=float("-inf"))
            own = tl.where(own > lowest, own, float("-inf"))
            token = at
            if HAS_IDS:
                token = tl.load(ids + at, mask=ok, other=0)
            total = own + noise(keys, sentence, position, token, sentence >= 0)
            highest, index = tl.max(total, 0, return_indices=True, return_indices_tie_break_left=True)
            is_better = highest > best
            place = tl.where(is_better, start + index, place)
            found = tl.where(is_better, tl.max(tl.where(at == start + index, own, float("-inf")), 0), found)
            best = tl.maximum(best, highest)
        higher = tl.full((), 0, tl.int32)
        probability = tl.full((), 0.0, tl.float32)
        for start in range(0, outputs, CHUNK):
            at = start + tl.arange(0, CHUNK)
            own = tl.load(scores + at, mask=at < outputs, other=float("-inf"))
            is_higher = own > found
            higher += tl.sum(is_higher.to(tl.int32), 0)
            probability += tl.sum(tl.where(is_higher, tl.exp(own - normalizer), 0.0), 0)
        is_rejected = tl.where(topp > 0, probability >= topp, (topk > 0) & (higher >= topk))
        # Without a number among the scores there is nothing to choose.
        goes_on = is_rejected & (best > float("-inf"))
        lowest = found
    return place, found
