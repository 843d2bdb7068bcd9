// The best token by noisy scores. Random words are drawn for blocks that can hold it, and the noise of a word is
// computed for tokens that an upper bound does not exclude.

#include "../noise.h"

#include <algorithm>
#include <limits>

#include "simd.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace spec_dec {
namespace SPEC_DEC_ISA {
namespace {

// 32-bit numbers in the low halves of 64-bit lanes; the high halves are arbitrary.
typedef uint64_t Wide __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));

// Products of the low halves.
inline Wide multiply(Wide a, uint32_t b) {
#if defined(__AVX512F__)
    return (Wide)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#elif defined(__AVX2__)
    return (Wide)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#elif defined(__SSE2__)
    return (Wide)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(b));
#elif defined(__aarch64__)
    return (Wide)vmull_u32(vmovn_u64((uint64x2_t)a), vdup_n_u32(b));
#else
    return (a & 0xFFFFFFFF) * static_cast<uint64_t>(b);
#endif
}

// Sets words[j] to word j of the counters first, first + 1, ...
inline void philox(uint32_t first, const NoiseKey& key, Integers (&words)[4]) {
    Wide c[2][4];  // of even and of odd counters
    for (int odd = 0; odd < 2; ++odd) {
        for (int lane = 0; lane < LANES / 2; ++lane) c[odd][0][lane] = first + 2 * lane + odd;
        c[odd][1] = Wide{} + key.position;
        c[odd][2] = Wide{} + key.sample;
        c[odd][3] = Wide{} + key.sentence;
    }
    uint32_t keys[2] = {key.seed[0], key.seed[1]};
    for (int round = 0; round < noise::ROUNDS; ++round) {
        for (auto& lanes : c) {
            const Wide p = multiply(lanes[0], noise::MULTIPLIERS[0]), q = multiply(lanes[2], noise::MULTIPLIERS[1]);
            lanes[0] = (q >> 32) ^ lanes[1] ^ static_cast<uint64_t>(keys[0]);
            lanes[2] = (p >> 32) ^ lanes[3] ^ static_cast<uint64_t>(keys[1]);
            lanes[1] = q;
            lanes[3] = p;
        }
        for (int half = 0; half < 2; ++half) keys[half] += noise::KEY_STEPS[half];
    }
    for (int j = 0; j < 4; ++j) words[j] = (Integers)((c[0][j] & 0xFFFFFFFF) | (c[1][j] << 32));
}

// An upper bound of the noise of words, by log2(1 + t) >= t.
inline Vector upper_bound(Integers words) {
    constexpr float SCALE = 0.69314718f / (1 << 23), MARGIN = 1e-3f;
    const Vector w = __builtin_convertvector((words & 0x7FFFFFFF) | 1, Vector);
    const Vector to_one = __builtin_convertvector((127 + 32) * (1 << 23) - (Integers)w, Vector);
    return words < 0 ? splat(noise::LOWER_MAX) : to_one * SCALE + MARGIN;
}

}  // namespace

int64_t noisy_argmax(const float* scores, int64_t size, int64_t likely, const NoiseKey& key) {
    int64_t token = -1;
    float best = -std::numeric_limits<float>::infinity();
    const auto try_token = [&](int64_t candidate, float score, uint32_t word) {
        const float total = score + noise::gumbel(word);
        if (total > best || (total == best && candidate < token)) {
            best = total;
            token = candidate;
        }
    };
    // First a token that is likely to be good, since it bounds the others.
    Integers words[4];
    philox(static_cast<uint32_t>(likely / noise::BLOCK * noise::COUNTERS + likely % noise::COUNTERS), key, words);
    try_token(likely, scores[likely], words[likely / noise::COUNTERS % 4][0]);
    for (int64_t begin = 0; begin < size; begin += noise::BLOCK) {
        const float* from = scores + begin;
        float partial[noise::BLOCK];
        if (begin + noise::BLOCK > size) {
            std::fill_n(partial, noise::BLOCK, -std::numeric_limits<float>::infinity());
            std::copy(from, scores + size, partial);
            from = partial;
        }
        Integers may_win = {};
        for (int v = 0; v < noise::BLOCK; v += LANES) may_win |= load(from + v) + splat(noise::MAX) >= best;
        if (!any_lane(may_win)) continue;
        for (int part = 0; part < noise::COUNTERS; part += LANES) {
            philox(static_cast<uint32_t>(begin / noise::BLOCK * noise::COUNTERS + part), key, words);
            for (int j = 0; j < 4; ++j) {
                const int offset = j * noise::COUNTERS + part;
                const Integers is_candidate = load(from + offset) + upper_bound(words[j]) >= best;
                if (!any_lane(is_candidate)) continue;
                for (int lane = 0; lane < LANES; ++lane) {
                    if (is_candidate[lane]) try_token(begin + offset + lane, from[offset + lane], words[j][lane]);
                }
            }
        }
    }
    return token < 0 ? likely : token;
}

}  // namespace SPEC_DEC_ISA
}  // namespace spec_dec
