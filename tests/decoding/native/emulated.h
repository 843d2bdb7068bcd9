// AVX-512, VNNI, AVX-VNNI and AMX in C++, for processors without them: test_emulated.py compiles the kernels with it.
//
// Bits are those of the processors (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2): one
// rounding for each multiply-add of a tile's pair, subnormal numbers of tiles are zero. A misuse ends the process:
// unaligned memory, tiles that are not configured, shapes that do not fit.

#pragma once

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulated {

inline void require(bool condition) {
    if (!condition) __builtin_trap();
}

// Applies a function to each number of type T of vectors.
template <typename T, typename V, typename Function>
inline V each(V a, V b, const Function& function) {
    T x[sizeof(V) / sizeof(T)], y[sizeof(V) / sizeof(T)];
    std::memcpy(x, &a, sizeof(V));
    std::memcpy(y, &b, sizeof(V));
    for (size_t i = 0; i < sizeof(V) / sizeof(T); ++i) x[i] = function(x[i], y[i]);
    std::memcpy(&a, x, sizeof(V));
    return a;
}

// Returns a vector of the narrower numbers To, each made from one number of type From.
template <typename V, typename From, typename To>
inline V narrowed(__m512i a) {
    From x[64 / sizeof(From)];
    To y[64 / sizeof(From)];
    static_assert(sizeof(y) == sizeof(V));
    std::memcpy(x, &a, 64);
    for (size_t i = 0; i < 64 / sizeof(From); ++i) y[i] = static_cast<To>(x[i]);
    V result;
    std::memcpy(&result, y, sizeof(V));
    return result;
}

template <typename T>
inline __m512i filled(T number) {
    return each<T>(__m512i{}, __m512i{}, [&](T, T) { return number; });
}

// Returns the lower (0) or upper (1) half of a vector.
template <typename Half, typename Whole>
inline Half half_of(const Whole& whole, int number) {
    Half half;
    std::memcpy(&half, reinterpret_cast<const char*>(&whole) + number * sizeof(Half), sizeof(Half));
    return half;
}

inline __m512 joined(__m256 low, __m256 high) {
    __m512 result;
    std::memcpy(&result, &low, sizeof(low));
    std::memcpy(reinterpret_cast<char*>(&result) + sizeof(low), &high, sizeof(high));
    return result;
}

inline __m512i load(const void* from) {
    __m512i result;
    std::memcpy(&result, from, sizeof(result));
    return result;
}

inline void store(void* to, __m512i value) {
    require(reinterpret_cast<uintptr_t>(to) % 64 == 0);
    std::memcpy(to, &value, sizeof(value));
}

inline __m512 multiply_add(__m512 a, __m512 b, __m512 c) {
    const auto half = [&](int number) {
        return _mm256_fmadd_ps(half_of<__m256>(a, number), half_of<__m256>(b, number), half_of<__m256>(c, number));
    };
    return joined(half(0), half(1));
}

inline __m512 from_halves(__m256i a) {
    return joined(_mm256_cvtph_ps(half_of<__m128i>(a, 0)), _mm256_cvtph_ps(half_of<__m128i>(a, 1)));
}

// Returns a bit for each number of type T whose highest bit is set.
template <typename T>
inline uint64_t signs(__m512i a) {
    T x[64 / sizeof(T)];
    std::memcpy(x, &a, 64);
    uint64_t mask = 0;
    for (size_t i = 0; i < 64 / sizeof(T); ++i) mask |= static_cast<uint64_t>(x[i] < 0) << i;
    return mask;
}

inline __m512i negated_where(uint64_t mask, __m512i a) {
    int bit = 0;
    return each<int8_t>(a, a, [&](int8_t x, int8_t) { return mask >> bit++ & 1 ? static_cast<int8_t>(-x) : x; });
}

// Adds the products of COUNT neighbours, of types A and B, to each number of type Sum; SATURATES: in its range.
template <typename A, typename B, typename Sum, bool SATURATES, typename V>
inline V dot(V sums, V a, V b) {
    constexpr int COUNT = sizeof(Sum) / sizeof(A), SIZE = sizeof(V) / sizeof(A);
    A x[SIZE];
    B y[SIZE];
    std::memcpy(x, &a, sizeof(V));
    std::memcpy(y, &b, sizeof(V));
    int i = 0;
    return each<Sum>(sums, sums, [&](Sum sum, Sum) {
        int32_t total = sum;
        for (const int end = i + COUNT; i < end; ++i) total += x[i] * y[i];
        return static_cast<Sum>(SATURATES ? std::clamp(total, -32768, 32767) : total);
    });
}

// The tiles of a thread.
struct Tiles {
    bool are_configured = false;
    uint16_t bytes[8];  // of a line
    uint8_t lines[8], numbers[8][16][64];
};
inline thread_local Tiles tiles;

inline float flushed(float number) {
    return std::fpclassify(number) == FP_SUBNORMAL ? std::copysign(0.f, number) : number;
}

inline float from_bfloat16(uint16_t bits) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float number;
    std::memcpy(&number, &wide, sizeof(number));
    return flushed(number);
}

inline void configure(const void* from) {
    const auto* shapes = static_cast<const uint8_t*>(from);
    require(shapes[0] == 1 && std::all_of(shapes + 1, shapes + 16, [](uint8_t byte) { return byte == 0; }));
    std::memcpy(tiles.bytes, shapes + 16, sizeof(tiles.bytes));
    std::memcpy(tiles.lines, shapes + 48, sizeof(tiles.lines));
    for (int tile = 0; tile < 8; ++tile) require(tiles.bytes[tile] <= 64 && tiles.lines[tile] <= 16);
    tiles.are_configured = true;
}

inline void clear(int tile) {
    require(tiles.are_configured);
    std::memset(tiles.numbers[tile], 0, sizeof(tiles.numbers[tile]));
}

inline void load_tile(int tile, const void* from, int64_t stride) {
    clear(tile);
    for (int line = 0; line < tiles.lines[tile]; ++line)
        std::memcpy(tiles.numbers[tile][line], static_cast<const char*>(from) + line * stride, tiles.bytes[tile]);
}

inline void store_tile(int tile, void* to, int64_t stride) {
    require(tiles.are_configured);
    for (int line = 0; line < tiles.lines[tile]; ++line)
        std::memcpy(static_cast<char*>(to) + line * stride, tiles.numbers[tile][line], tiles.bytes[tile]);
}

// Requires the shapes of a product whose inputs are multiplied in groups of four bytes.
inline void require_product(int to, int a, int b) {
    require(tiles.are_configured && to != a && to != b && a != b);
    require(tiles.lines[to] == tiles.lines[a] && tiles.lines[b] == tiles.bytes[a] / 4);
    require(tiles.bytes[b] == tiles.bytes[to]);
}

inline void multiply_tiles(int to, int a, int b) {
    const int pairs = tiles.bytes[a] / 4, outputs = tiles.bytes[to] / 4;
    require_product(to, a, b);
    for (int line = 0; line < tiles.lines[a]; ++line) {
        float sums[16][2] = {}, *const totals = reinterpret_cast<float*>(tiles.numbers[to][line]);
        for (int i = 0; i < pairs * 2; ++i) {
            const float x = from_bfloat16(reinterpret_cast<const uint16_t*>(tiles.numbers[a][line])[i]);
            const auto* weights = reinterpret_cast<const uint16_t*>(tiles.numbers[b][i / 2]);
            for (int output = 0; output < outputs; ++output) {
                float& sum = sums[output][i % 2];
                sum = flushed(std::fma(x, from_bfloat16(weights[output * 2 + i % 2]), sum));
            }
        }
        for (int output = 0; output < outputs; ++output)
            totals[output] = flushed(totals[output] + flushed(sums[output][0] + sums[output][1]));
    }
}

inline void multiply_int8_tiles(int to, int a, int b) {
    const int groups = tiles.bytes[a] / 4, outputs = tiles.bytes[to] / 4;
    require_product(to, a, b);
    for (int line = 0; line < tiles.lines[a]; ++line) {
        for (int i = 0; i < groups * 4; ++i) {
            const auto* weights = reinterpret_cast<const int8_t*>(tiles.numbers[b][i / 4]);
            for (int output = 0; output < outputs; ++output) {
                reinterpret_cast<int32_t*>(tiles.numbers[to][line])[output] +=
                    tiles.numbers[a][line][i] * weights[output * 4 + i % 4];
            }
        }
    }
}

}  // namespace emulated

#undef _mm512_srai_epi16
#undef _mm512_srli_epi32
#undef _mm512_insertf32x8
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbusd

#define _mm512_loadu_si512(from) emulated::load(from)
#define _mm512_loadu_ps(from) ((__m512)emulated::load(from))
#define _mm512_store_si512(to, a) emulated::store(to, a)
#define _mm512_setzero_si512() __m512i()
#define _mm512_set1_epi16(x) emulated::filled<int16_t>(x)
#define _mm512_set1_epi32(x) emulated::filled<int32_t>(x)
#define _mm512_set1_epi64(x) emulated::filled<int64_t>(x)
#define _mm512_and_si512(a, b) emulated::each<uint64_t>(a, b, [](uint64_t x, uint64_t y) { return x & y; })
#define _mm512_or_si512(a, b) emulated::each<uint64_t>(a, b, [](uint64_t x, uint64_t y) { return x | y; })
#define _mm512_srai_epi16(a, n) emulated::each<int16_t>(a, a, [](int16_t x, int16_t) { return x >> n; })
#define _mm512_srli_epi32(a, n) emulated::each<uint32_t>(a, a, [](uint32_t x, uint32_t) { return x >> n; })
#define _mm512_mul_epu32(a, b) \
    emulated::each<uint64_t>(a, b, [](uint64_t x, uint64_t y) { return (x & 0xffffffff) * (y & 0xffffffff); })
#define _mm512_test_epi32_mask(a, b) \
    emulated::signs<int32_t>(emulated::each<int32_t>(a, b, [](int32_t x, int32_t y) { return (x & y) != 0 ? -1 : 0; }))
#define _mm512_movepi8_mask(a) emulated::signs<int8_t>(a)
#define _mm512_mask_sub_epi8(a, mask, zero, b) emulated::negated_where(mask, a)
#define _mm512_abs_epi8(a) emulated::negated_where(emulated::signs<int8_t>(a), a)
#define _mm512_maddubs_epi16(a, b) emulated::dot<uint8_t, int8_t, int16_t, true>(__m512i(), a, b)
#define _mm512_madd_epi16(a, b) emulated::dot<int16_t, int16_t, int32_t, false>(__m512i(), a, b)
#define _mm512_dpbusd_epi32(sums, a, b) emulated::dot<uint8_t, int8_t, int32_t, false>(sums, a, b)
#define _mm256_dpbusd_avx_epi32(sums, a, b) emulated::dot<uint8_t, int8_t, int32_t, false>(sums, a, b)
#define _mm512_cvtepi32_epi8(a) emulated::narrowed<__m128i, int32_t, int8_t>(a)
#define _mm512_cvtepi32_epi16(a) emulated::narrowed<__m256i, int32_t, int16_t>(a)
#define _mm512_cvtph_ps(a) emulated::from_halves(a)
#define _mm512_fmadd_ps(a, b, c) emulated::multiply_add(a, b, c)
#define _mm512_castps256_ps512(a) emulated::joined(a, __m256())
#define _mm512_insertf32x8(a, b, one) emulated::joined(emulated::half_of<__m256>(a, 0), b)
#define _tile_loadconfig(from) emulated::configure(from)
#define _tile_release() (emulated::tiles.are_configured = false)
#define _tile_zero(tile) emulated::clear(tile)
#define _tile_loadd(tile, from, stride) emulated::load_tile(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated::store_tile(tile, to, stride)
#define _tile_dpbf16ps(to, a, b) emulated::multiply_tiles(to, a, b)
#define _tile_dpbusd(to, a, b) emulated::multiply_int8_tiles(to, a, b)

// The processor and Linux have all that is asked for.
#define __builtin_cpu_supports(name) true
#define __get_cpuid_count(leaf, subleaf, a, b, c, d) (*(a) = *(b) = *(c) = *(d) = ~0u, true)
#define syscall(...) 0
// Not `asm volatile(...)`. Keeping a value in one register is impossible here.
#define asm(...)

#ifdef EMULATE_avx512f
#define __AVX512F__ 1
#define __AVX512BW__ 1
#endif
#ifdef EMULATE_avx512vnni
#define __AVX512VNNI__ 1
#endif
#ifdef EMULATE_avxvnni
#define __AVXVNNI__ 1
#endif
#ifdef EMULATE_amx
#define __AVX512FP16__ 1
#define __AMX_BF16__ 1
#endif
