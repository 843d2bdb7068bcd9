// The noise of sampling: a Gumbel number for each token. fairseq_plugins/decoding/reference/noise.py defines it; these
// are the same bits.

#pragma once

#include <cstdint>
#include <cstring>

namespace spec_dec {

// A position of an output.
struct NoiseKey {
    // key: [4], sentence, sample, low and high half of the seed.
    NoiseKey(const int64_t* key, int64_t position)
        : position(static_cast<uint32_t>(position)),
          sample(static_cast<uint32_t>(key[1])),
          sentence(static_cast<uint32_t>(key[0])),
          seed{static_cast<uint32_t>(key[2]), static_cast<uint32_t>(key[3])} {}

    uint32_t position, sample, sentence, seed[2];
};

// Functions with internal linkage, because each instruction set compiles its own.
namespace noise {

constexpr int64_t BLOCK = 64, COUNTERS = 16;  // tokens of a block, and its counters
constexpr uint32_t MULTIPLIERS[2] = {0xD2511F53, 0xCD9E8D57}, KEY_STEPS[2] = {0x9E3779B9, 0xBB67AE85};
constexpr int ROUNDS = 10;
constexpr float MAX = 22.2f;        // of all noise
constexpr float LOWER_MAX = 0.37f;  // of words with the upper bit

static inline uint32_t product(uint32_t a, uint32_t b) { return static_cast<uint64_t>(a) * b >> 32; }

// c[0] - x (c[1] - x (c[2] - ...)) of fractions of 32 bits.
static inline uint32_t series(const uint32_t (&c)[6], uint32_t x) {
    uint32_t value = c[5];
    for (int i = 4; i >= 0; --i) value = c[i] - product(x, value);
    return value;
}

// log2(x) * 2^25 of whole numbers from 1 to 2^31 - 1.
static inline int32_t log2(int32_t x) {
    constexpr uint32_t Q[6] = {1901237846, 1193518346, 839389269, 557064773, 271973085, 65318911};
    const auto number = static_cast<float>(x);
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    const uint32_t t = (bits & 0x7FFFFF) << 9, curve = product(product(t, 0 - t), series(Q, t));
    return static_cast<int32_t>(((bits - 0x3F800000) << 2) + (curve >> 7));
}

// The noise of a random word.
static inline float gumbel(uint32_t word) {
    constexpr uint32_t R[6] = {2023930619, 718897712, 396075161, 241772831, 121192097, 31583636};
    constexpr int32_t LOWER = (25 << 25) + 17742455, OFFSET = 2907270;
    const uint32_t w = (word & 0x7FFFFFFF) | 1, doubled = w << 1;
    const int32_t to_one = (32 << 25) - log2(static_cast<int32_t>(w));
    const int32_t value = word >> 31 ? LOWER - log2(to_one)
                                     : to_one - static_cast<int32_t>(product(series(R, 0 - doubled), doubled) >> 7);
    const uint32_t scaled = product(static_cast<uint32_t>(value + (8 << 25)), 2977044472u) >> 6;
    return static_cast<float>(static_cast<int32_t>(scaled) - OFFSET) * (1.0f / (1 << 19));
}

}  // namespace noise
}  // namespace spec_dec
