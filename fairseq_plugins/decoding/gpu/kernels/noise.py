"""The noise of sampling on the device: decoding/reference/noise.py defines it; these are the same bits."""

import triton
import triton.language as tl
from triton.language.random import philox_impl

# Tokens of a block, and its counters.
BLOCK, LANES = tl.constexpr(64), tl.constexpr(16)

_LN2 = tl.constexpr(2977044472)  # ln 2 * 2^32
_LOWER = tl.constexpr((25 << 25) + 17742455)  # (25 - log2(ln 2)) * 2^25
_OFFSET = tl.constexpr(2907270)  # 8 ln 2 * 2^19


@triton.jit
def _series(
    x, c0: tl.constexpr, c1: tl.constexpr, c2: tl.constexpr, c3: tl.constexpr, c4: tl.constexpr, c5: tl.constexpr
):  # fmt: skip
    """Return c0 - x (c1 - x (c2 - ...)) of fractions of 32 bits."""
    value = c4 - tl.umulhi(x, tl.full((), c5, tl.uint32))
    value = c3 - tl.umulhi(x, value)
    value = c2 - tl.umulhi(x, value)
    value = c1 - tl.umulhi(x, value)
    return c0 - tl.umulhi(x, value)


@triton.jit
def _log2(x):
    """Return log2(x) * 2^25 of whole numbers from 1 to 2^31 - 1, as uint32."""
    bits = x.to(tl.int32, bitcast=True).to(tl.float32).to(tl.uint32, bitcast=True)
    t = (bits & 0x7FFFFF) << 9
    series = _series(t, 1901237846, 1193518346, 839389269, 557064773, 271973085, 65318911)
    curve = tl.umulhi(tl.umulhi(t, 0 - t), series)
    return ((bits - 0x3F800000) << 2) + (curve >> 7)


@triton.jit
def _gumbel(words):
    """Return the noise of random words. Numbers of 32 bits wrap around, as intended."""
    w = (words & 0x7FFFFFFF) | 1
    to_one = (32 << 25) - _log2(w)
    doubled = w << 1
    series = _series(0 - doubled, 2023930619, 718897712, 396075161, 241772831, 121192097, 31583636)
    upper = to_one - (tl.umulhi(series, doubled) >> 7)
    lower = _LOWER - _log2(to_one)
    value = tl.where((words >> 31) == 0, upper, lower) + (8 << 25)
    scaled = (tl.umulhi(value, tl.full((), _LN2, tl.uint32)) >> 6).to(tl.int32, bitcast=True)
    return (scaled - _OFFSET).to(tl.float32) * 1.9073486328125e-06  # 2^-19


@triton.jit
def noise(keys, sentence, position, token, ok):
    """Return the noise of tokens at positions of outputs.

    `keys` is [B, 4] (sentence, sample, low and high half of the seed). `sentence`, `position` and `ok`, whether to read
    the key, have a shape that broadcasts with that of `token`.
    """
    of_sentence = keys + sentence * 4
    number = tl.load(of_sentence, mask=ok, other=0).to(tl.uint32, bitcast=True)
    sample = tl.load(of_sentence + 1, mask=ok, other=0).to(tl.uint32, bitcast=True)
    low = tl.load(of_sentence + 2, mask=ok, other=0).to(tl.uint32, bitcast=True)
    high = tl.load(of_sentence + 3, mask=ok, other=0).to(tl.uint32, bitcast=True)
    counter = (token // BLOCK * LANES + token % LANES).to(tl.uint32, bitcast=True)
    w0, w1, w2, w3 = philox_impl(counter, position.to(tl.uint32, bitcast=True), sample, number, low, high)
    which = token // LANES % 4
    return _gumbel(tl.where(which < 2, tl.where(which == 0, w0, w1), tl.where(which == 2, w2, w3)))
