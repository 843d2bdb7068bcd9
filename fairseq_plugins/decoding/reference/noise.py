"""The noise of sampling: a Gumbel number for each token, the same bits in every engine.

A sampled token is the one with the highest sum of score and noise (the Gumbel-max trick), which draws from the softmax
of the scores. The noise of a token depends on five numbers only: seed, sentence, sample, position and token. Therefore
samples depend neither on batches, drafts and threads nor on the engine.

**Random words.** Philox4x32 with 10 rounds (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3"; Triton's
`tl.philox`). The key is the seed, its low half first. The counter is (block, position, sample, sentence). A block
serves 64 tokens with 16 counters: token t takes word `t // 16 % 4` of the counter `t // 64 * 16 + t % 16`, so that
the words of 16 adjacent tokens come from 16 adjacent counters.

**Noise.** The upper bit of a word chooses the half of the distribution. The others give an odd number w below 2^31,
and p = w / 2^32 in (0, 1/2) is the distance of the uniform variable from 1 (bit 0) or from 0 (bit 1):

    upper half: -ln(-ln(1 - p)) = ln 2 * (32 - log2(w) - S(p)), with S(p) = log2(-ln(1 - p) / p)
    lower half: -ln(-ln(p))     = ln 2 * (-log2(ln 2) - log2(32 - log2(w)))

All of it is integer arithmetic of 32 bits: additions, shifts, and high halves of unsigned products. The logarithm takes
exponent and mantissa of the number converted to float32 (rounded to nearest even, as all processors do). The noise is a
multiple of 2^-19 below 24 bits, so the last conversion to float32 is exact, and a fused multiply-add of it gives the
same bits. Its error is below 4e-6; it lies between -3.2 and 22.2. `csrc/noise.h` does the same for the CPU's kernels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK, LANES = 64, 16  # tokens of a block, and its counters

_MASK = 0xFFFFFFFF
_MULTIPLIERS, _KEY_STEPS, _ROUNDS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85), 10
# log2(1 + t) = t + t (1 - t) Q(t) and S(p) = x R(1 - x) with x = 2 p, errors below 6e-7. Coefficients of Q and R, times
# 2^32, with alternating signs.
_Q = (1901237846, 1193518346, 839389269, 557064773, 271973085, 65318911)
_R = (2023930619, 718897712, 396075161, 241772831, 121192097, 31583636)
_LN2 = 2977044472  # ln 2 * 2^32
_LOWER = (25 << 25) + 17742455  # (25 - log2(ln 2)) * 2^25
_OFFSET = 2907270  # 8 ln 2 * 2^19: keeps a product positive


def philox(counter: Sequence[Tensor], key: Sequence[Tensor]) -> list[Tensor]:
    """Return the four words of Philox4x32-10.

    Args:
        counter, key: four and two broadcastable int64 tensors of numbers below 2^32, the lowest word first.
    """
    c0, c1, c2, c3 = counter
    keys = list(key)
    for _ in range(_ROUNDS):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = _high(second) ^ c1 ^ keys[0], _high(first) ^ c3 ^ keys[1]
        c1, c3 = second & _MASK, first & _MASK
        keys = [(key + step) & _MASK for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return [c0, c1, c2, c3]


def gumbel(words: Tensor) -> Tensor:
    """Return the noise, float32, of random words: int64 numbers below 2^32."""
    w = words & 0x7FFFFFFF | 1
    to_one = (32 << 25) - _log2(w)
    doubled = w << 1
    upper = to_one - (_product(_series(_R, _negative(doubled)), doubled) >> 7)
    lower = _LOWER - _log2(to_one)
    value = torch.where(words < 1 << 31, upper, lower)
    return ((_product(value + (8 << 25), _LN2) >> 6) - _OFFSET).to(torch.float32) * 2.0**-19


def noise_keys(seed: int, sentences: Tensor, samples: Tensor) -> Tensor:
    """Return the keys [B, 4] of outputs: sentence, sample, and the low and high half of the seed.

    Args:
        seed: its lowest 64 bits count.
        sentences, samples: [B], numbers from 0 to 2^32 - 1.
    """
    halves = [torch.full_like(sentences, seed >> shift & _MASK) for shift in (0, 32)]
    return torch.stack([sentences, samples, *halves], dim=1)


def noise(keys: Tensor, positions: Tensor, vocabulary: int) -> Tensor:
    """Return the noise [B, T, V] of all tokens.

    Args:
        keys: [B, 4], see `noise_keys`.
        positions: [B, T], of the tokens in their outputs, 0 for the first one.
        vocabulary: V.
    """
    blocks = -(-vocabulary // BLOCK)
    index = torch.arange(blocks * LANES, device=positions.device)
    sentence, sample, *seed = keys[:, :, None, None].unbind(1)
    words = philox([index, positions[..., None], sample, sentence], seed)
    words = [word.expand(*positions.shape, -1).unflatten(2, (blocks, 1, LANES)) for word in words]
    return gumbel(torch.cat(words, dim=3).flatten(2)[..., :vocabulary])


def _high(product: Tensor) -> Tensor:
    """Return the high half of an unsigned product, which may have overflowed the sign bit."""
    return product >> 32 & _MASK


def _product(first: Tensor, second: Tensor | int) -> Tensor:
    return _high(first * second)


def _negative(x: Tensor) -> Tensor:
    """Return 2^32 - x, modulo 2^32."""
    return -x & _MASK


def _series(coefficients: Sequence[int], x: Tensor) -> Tensor:
    """Return c0 - x (c1 - x (c2 - ...)) of fractions of 32 bits."""
    *others, last = coefficients
    value: Tensor | int = last
    for coefficient in reversed(others):
        value = coefficient - _product(x, value)
    assert isinstance(value, Tensor)
    return value


def _log2(x: Tensor) -> Tensor:
    """Return log2(x) * 2^25 of whole numbers from 1 to 2^31 - 1."""
    bits = x.to(torch.int32).to(torch.float32).view(torch.int32).long()
    t = (bits & 0x7FFFFF) << 9
    curve = _product(_product(t, _negative(t)), _series(_Q, t))
    return (bits - 0x3F800000 << 2) + (curve >> 7)
