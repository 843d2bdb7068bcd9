// SIMD vectors of floats in the instruction set that this file is compiled for.
//
// Written for strict floating point (no -ffast-math): multiply-adds are explicit, infinities and NaN keep their
// meaning.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// setup.py defines SPEC_DEC_ISA; as a namespace it separates the instruction sets that are linked into one module.
#ifndef SPEC_DEC_ISA
#define SPEC_DEC_ISA isa_portable
#endif

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__F16C__)) || defined(__aarch64__)
#define SPEC_DEC_FP16 1
#endif
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define SPEC_DEC_VNNI 1
#endif
#if defined(__AMX_BF16__) && defined(__AVX512FP16__) && defined(__linux__)
#define SPEC_DEC_AMX 1
#endif

namespace spec_dec {
namespace SPEC_DEC_ISA {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;  // SSE2, NEON
#endif

typedef float Vector __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));
typedef int32_t Integers __attribute__((vector_size(LANES * sizeof(int32_t)), aligned(sizeof(int32_t)), may_alias));

// A float16 number.
struct Half {
    uint16_t bits;
};

inline Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
inline void store(float* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }
inline Vector splat(float value) { return value - Vector{}; }

#ifdef SPEC_DEC_FP16
inline Vector load(const Half* from) {
#ifdef __AVX512F__
    return (Vector)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__aarch64__)
    return (Vector)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from->bits)));
#else
    return (Vector)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#endif
}
#endif

// Loads `count` numbers and fills the other lanes with zeros.
template <typename Number>
inline Vector load_partial(const Number* from, int64_t count) {
    Number numbers[LANES] = {};
    std::memcpy(numbers, from, count * sizeof(Number));
    return load(numbers);
}

// a * b + c, fused where the processor has the instruction.
inline Vector fma(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
    return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Vector)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

// Maximum by lane. NaN in `a` is kept.
inline Vector vector_max(Vector a, Vector b) { return b > a ? b : a; }

// Keeps a value in a register, where GCC would reload it for each use.
inline void keep_in_register(Vector& value) {
#ifdef __AVX512F__
    asm("" : "+v"(value));
#else
    (void)value;
#endif
}

// Sums of adjacent lanes: those of `a` in the lower half, those of `b` in the upper half.
template <int... LANE>
inline Vector pair_sums(Vector a, Vector b, std::integer_sequence<int, LANE...>) {
#ifdef __clang__
    return __builtin_shufflevector(a, b, (2 * LANE)...) + __builtin_shufflevector(a, b, (2 * LANE + 1)...);
#else
    return __builtin_shuffle(a, b, Integers{(2 * LANE)...}) + __builtin_shuffle(a, b, Integers{(2 * LANE + 1)...});
#endif
}

// Sums the lanes of each of COUNT vectors: lane i of sums[0] becomes the sum of vector i. The order of additions does
// not depend on COUNT.
template <int COUNT, int STEP = LANES>
__attribute__((always_inline)) inline void sum_lanes(Vector* sums) {
    if constexpr (STEP > 1) {
        for (int pair = 0; pair < (COUNT + 1) / 2; ++pair) {
            const Vector second = sums[2 * pair + 1 < COUNT ? 2 * pair + 1 : 2 * pair];
            sums[pair] = pair_sums(sums[2 * pair], second, std::make_integer_sequence<int, LANES>());
        }
        sum_lanes<(COUNT + 1) / 2, STEP / 2>(sums);
    }
}

inline float reduce_sum(Vector values) {
    sum_lanes<1>(&values);
    return values[0];
}

// Rotates the lanes by STEP: lane i gets the value of lane i + STEP.
template <int STEP, int... LANE>
inline Vector rotate_lanes(Vector values, std::integer_sequence<int, LANE...>) {
#ifdef __clang__
    return __builtin_shufflevector(values, values, ((LANE + STEP) % LANES)...);
#else
    return __builtin_shuffle(values, Integers{((LANE + STEP) % LANES)...});
#endif
}

template <int STEP = LANES / 2>
__attribute__((always_inline)) inline float reduce_max(Vector values) {
    if constexpr (STEP > 0) {
        return reduce_max<STEP / 2>(
            vector_max(values, rotate_lanes<STEP>(values, std::make_integer_sequence<int, LANES>())));
    }
    return values[0];
}

// Whether a mask (0 or -1 in each lane) is set in any lane.
inline bool any_lane(Integers mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#elif defined(__aarch64__)
    return vmaxvq_u32((uint32x4_t)mask) != 0;
#else
    int32_t any = 0;
    for (int lane = 0; lane < LANES; ++lane) any |= mask[lane];
    return any != 0;
#endif
}

// e^x for x <= 0, with an error of about 1e-7; 0 below -87, NaN for NaN.
inline Vector vector_exp(Vector x) {
    constexpr float MIN = -87, LOG2_E = 1.44269504f, LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;
    const Vector bounded = x < MIN ? splat(MIN) : x;
    const Integers power = __builtin_convertvector(bounded * LOG2_E - 0.5f, Integers);
    const Vector whole = __builtin_convertvector(power, Vector);
    const Vector rest = fma(whole, splat(-LN2_LOW), fma(whole, splat(-LN2_HIGH), bounded));
    Vector series = splat(1 / 720.f);
    for (const float factor : {1 / 120.f, 1 / 24.f, 1 / 6.f, 1 / 2.f, 1.f, 1.f})
        series = fma(series, rest, splat(factor));
    return x < MIN ? Vector{} : series * (Vector)((power + 127) << 23);
}

}  // namespace SPEC_DEC_ISA
}  // namespace spec_dec
