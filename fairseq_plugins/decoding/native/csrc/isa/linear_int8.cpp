// Linear layers whose weights and inputs are int8: a scale for each output, and one for each row, found at run time.
// Weights: [outputs / 16][inputs / 4][16][4].
//
// Sums are exact, so results do not depend on the number of rows, on threads or on the instruction set.

#include "gemm.h"

#ifdef SPEC_DEC_AMX
#include "int8_tiles.h"
#endif

namespace spec_dec {
namespace SPEC_DEC_ISA {
namespace {

constexpr int GROUP = 4;  // inputs that one instruction multiplies and sums

// x86 processors multiply unsigned by signed bytes, but inputs are quantized to -127 .. 127. With VNNI, which sums four
// products in 32 bits, a zero point of 128 makes them unsigned. Without it, two products have to fit 16 bits: an input
// is its magnitude and a mask, all ones if it is negative, and magnitude * (weight ^ mask), at most 127 * 128, is input
// * weight, less the magnitude of a negative input, since ~w is -w - 1.
#if defined(SPEC_DEC_VNNI)
constexpr int ZERO_POINT = 128, BYTES = 1;  // of an input
#elif defined(__AVX2__)
constexpr int ZERO_POINT = 0, BYTES = 2;  // four magnitudes, then their masks
#else
constexpr int ZERO_POINT = 0, BYTES = 1;
#endif

constexpr int whole_groups(int inputs) { return (inputs + GROUP - 1) / GROUP * GROUP; }

struct Group {
    Integers numbers, masks;
};

inline Group splat_group(const uint8_t* from) {
    int32_t group[2] = {};
    std::memcpy(group, from, GROUP * BYTES);
    return {group[0] - Integers{}, group[1] - Integers{}};
}

// Adds the products of four weights and a group of inputs to each lane of `sums`.
inline Integers add_products(Integers sums, Group inputs, Integers weights) {
#if defined(__AVX512VNNI__)
    return (Integers)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)inputs.numbers, (__m512i)weights);
#elif defined(__AVXVNNI__)
    return (Integers)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)inputs.numbers, (__m256i)weights);
#elif defined(__AVX512BW__)
    const __m512i pairs = _mm512_maddubs_epi16((__m512i)inputs.numbers, (__m512i)(weights ^ inputs.masks));
    return sums + (Integers)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif defined(__AVX2__)
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)inputs.numbers, (__m256i)(weights ^ inputs.masks));
    return sums + (Integers)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#elif defined(__ARM_FEATURE_DOTPROD)
    return (Integers)vdotq_s32((int32x4_t)sums, (int8x16_t)weights, (int8x16_t)inputs.numbers);
#else
    typedef int16_t Pairs __attribute__((vector_size(sizeof(Integers)), may_alias));
    const Pairs x = (Pairs)inputs.numbers, w = (Pairs)weights;
    // Little endian: the first byte of a pair is the lower one.
    const Pairs pairs = ((x << 8) >> 8) * ((w << 8) >> 8) + (x >> 8) * (w >> 8);
    return sums + (((Integers)pairs << 16) >> 16) + ((Integers)pairs >> 16);
#endif
}

// Stores the first `count` lanes, whole groups of numbers that fit a byte, as quantized inputs.
inline void store_groups(uint8_t* to, Integers values, int count) {
#ifdef __AVX2__
#ifdef __AVX512F__
    const __m128i bytes = _mm512_cvtepi32_epi8((__m512i)values);
#else
    const __m128i low = _mm256_castsi256_si128((__m256i)values), high = _mm256_extracti128_si256((__m256i)values, 1);
    const __m128i words = _mm_packs_epi32(low, high);
    const __m128i bytes = ZERO_POINT ? _mm_packus_epi16(words, words) : _mm_packs_epi16(words, words);
#endif
    const __m128i numbers = BYTES == 2 ? _mm_abs_epi8(bytes) : bytes;
    const __m128i masks = _mm_cmpgt_epi8(_mm_setzero_si128(), bytes);
    const __m128i groups[2] = {BYTES == 2 ? _mm_unpacklo_epi32(numbers, masks) : numbers,
                               _mm_unpackhi_epi32(numbers, masks)};
    if (count == LANES) {
        std::memcpy(to, groups, LANES * BYTES);
    } else {
        std::memcpy(to, groups, count * BYTES);
    }
#else
    for (int lane = 0; lane < count; ++lane) to[lane] = static_cast<uint8_t>(values[lane]);
#endif
}

// The quantized number of input `i`.
inline int number_at(const uint8_t* quantized, int i) {
    const uint8_t* number = quantized + i / GROUP * GROUP * BYTES + i % GROUP;
    return BYTES == 2 && number[GROUP] ? -*number : static_cast<int8_t>(*number - ZERO_POINT);
}

struct RowScale {
    float scale;      // NaN if the row has NaN or infinity
    int32_t missing;  // what sums of its products are too small by
};

// Quantizes a row to the nearest of 127 steps, padded with zeros to whole groups.
RowScale quantize_row(const float* x, int inputs, uint8_t* quantized) {
    const auto values = [&](int i) { return inputs - i >= LANES ? load(x + i) : load_partial(x + i, inputs - i); };
    // Magnitudes have the order of their bits, NaN above all.
    Integers highest = {};
    for (int i = 0; i < inputs; i += LANES) {
        const Integers magnitude = (Integers)values(i) & INT32_MAX;
        highest = magnitude > highest ? magnitude : highest;
    }
    int32_t bits = 0;
    for (int lane = 0; lane < LANES; ++lane) bits = std::max(bits, highest[lane]);
    float largest;
    std::memcpy(&largest, &bits, sizeof largest);
    if (!std::isfinite(largest)) {
        std::fill_n(quantized, whole_groups(inputs) * BYTES, uint8_t{});
        return {NAN, 0};
    }
    // As in weights.py.
    constexpr float SMALLEST = 1e-30f;
    const float steps = largest > SMALLEST ? 127 / largest : 0;
    // Adding it rounds to the nearest integer, which is in the lowest bits then.
    constexpr float ROUNDER = 12582912;
    Integers negative = {};
    for (int i = 0; i < inputs; i += LANES) {
        const Vector raised = values(i) * splat(steps) + splat(ROUNDER);
        const Integers rounded = (Integers)raised - (Integers)splat(ROUNDER) + ZERO_POINT;
        negative += rounded < 0 ? rounded : Integers{};
        store_groups(quantized + i * BYTES, rounded, std::min(LANES, whole_groups(inputs) - i));
    }
    int32_t missing = 0;
    for (int lane = 0; BYTES == 2 && lane < LANES; ++lane) missing -= negative[lane];
    return {largest / 127, missing};
}

// Quantized rows, which all threads of a product share.
struct QuantizedRows {
    static constexpr int64_t TILE_ROWS = 16;  // whole tiles are read (int8_tiles.h)
    const int64_t size;                       // inputs, in whole groups
    Aligned<uint8_t> numbers;
    std::vector<RowScale> scales;

    QuantizedRows(const float* x, int64_t rows, int inputs)
        : size(whole_groups(inputs)),
          numbers((rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS * size * BYTES),
          scales(rows) {
        for (int64_t row = 0; row < rows; ++row) {
            scales[row] = quantize_row(x + row * inputs, inputs, numbers.data() + row * size * BYTES);
        }
    }
};

// Values are padded to whole panels.
struct Int8Weight {
    Aligned<int8_t> numbers;
    Floats scale;                 // [outputs]
    Aligned<int32_t> zero_point;  // [outputs], what the zero point of the inputs adds to the sums
    // The largest of any output: norm of the rounding errors, norm, and magnitude of the bias; NaN if one is.
    double error = 0, norm = 0, largest_bias = 0;
};

// Stores `columns` results of some rows, of a vector of outputs from `output` on. sums_of(row) returns their products.
template <typename Sums>
__attribute__((always_inline)) inline void store_products(const Int8Weight& weight, const float* bias, int64_t output,
                                                          int64_t rows, const RowScale* scales, int columns,
                                                          const Target& target, const Sums& sums_of) {
    const Integers zero_point = *reinterpret_cast<const Integers*>(weight.zero_point.data() + output);
    const Vector scale = load(weight.scale.data() + output);
    // Copies, which the compiler keeps in registers.
    const bool is_whole = columns >= LANES && has_vector_epilogue(target);
    const bool is_relu = target.activation == Activation::RELU, add = target.add;
    for (int64_t row = 0; row < rows; ++row) {
        const Vector products = __builtin_convertvector(sums_of(row) - zero_point, Vector);
        const Vector result = products * splat(scales[row].scale) * scale;
        if (is_whole) {
            vector_epilogue(result, bias, is_relu, add, target.at(row, 0).to);
        } else {
            float numbers[LANES];
            store(numbers, result);
            epilogue(numbers, std::min(columns, LANES), bias, target.at(row, 0));
        }
    }
}

// Computes outputs of ROWS quantized rows of `size` inputs. They begin with the panel `first`, the first of `target`.
template <int ROWS, typename Prefetch>
__attribute__((noinline)) void multiply_int8_block(const Int8Weight& weight, const float* bias, int64_t size,
                                                   int64_t first, int outputs, const uint8_t* x, const RowScale* scales,
                                                   const Target& target, Prefetch prefetch) {
    constexpr int IN_PANEL = PANEL / LANES, PANELS = PANELS_OF<ROWS>, VECTORS = PANELS * IN_PANEL;
    const int64_t panel_bytes = size * PANEL;
    const auto multiply = [&](auto vectors, int begin) {
        constexpr int COUNT = decltype(vectors)::value;
        const int64_t panel = first + begin / PANEL;
        const int8_t* numbers = weight.numbers.data() + panel * panel_bytes;
        const auto prefetch_step =
            prefetch.template start<ROWS, COUNT / IN_PANEL, PANEL * GROUP>(numbers, size / GROUP);
        Integers sums[ROWS][COUNT];
        for (int row = 0; row < ROWS; ++row) {
            for (int v = 0; v < COUNT; ++v) sums[row][v] = scales[row].missing - Integers{};
        }
        for (int64_t i = 0; i < size; i += GROUP) {
            if (ROWS > 1) prefetch_step(i / GROUP);
            Integers weights[COUNT];
            for (int v = 0; v < COUNT; ++v) {
                const int8_t* from = numbers + v / IN_PANEL * panel_bytes + i * PANEL;
                weights[v] = *reinterpret_cast<const Integers*>(from + v % IN_PANEL * LANES * GROUP);
                // One row is multiplied so fast that only the next panels are far enough.
                if (ROWS == 1 && v % IN_PANEL == 0) __builtin_prefetch(from + COUNT / IN_PANEL * panel_bytes);
            }
            for (int row = 0; row < ROWS; ++row) {
                const Group inputs = splat_group(x + (row * size + i) * BYTES);
                for (int v = 0; v < COUNT; ++v) sums[row][v] = add_products(sums[row][v], inputs, weights[v]);
            }
        }
        for (int v = 0; v < COUNT && begin + v * LANES < outputs; ++v) {
            const int from = begin + v * LANES;
            store_products(weight, bias ? bias + from : nullptr, panel * PANEL + v * LANES, ROWS, scales,
                           outputs - from, target.at(0, from), [&](int64_t row) { return sums[row][v]; });
        }
    };
    int begin = 0;
    for (; begin + PANELS * PANEL <= outputs; begin += PANELS * PANEL) {
        multiply(std::integral_constant<int, VECTORS>(), begin);
    }
    for (; begin < outputs; begin += PANEL) multiply(std::integral_constant<int, IN_PANEL>(), begin);
}

#ifdef SPEC_DEC_AMX
bool fits_tiles(int inputs) { return inputs % amx::INT8_INPUTS == 0; }

// Fewer rows take less time on vectors, or the same if the weights are not cached.
constexpr int64_t MIN_TILE_ROWS = 6;

// Computes outputs of any number of rows on tiles, two panels at a time, which stay in the cache for all rows. Reads
// whole tiles of rows.
void multiply_int8_tiles(const Int8Weight& weight, const float* bias, int64_t size, int64_t first, int outputs,
                         const uint8_t* x, const RowScale* scales, int64_t rows, const Target& target) {
    constexpr int64_t ROW_BLOCK_SIZE = 2 * amx::ROWS;
    const amx::TileConfig config(rows);
    const int64_t panels = (outputs + PANEL - 1) / PANEL, panel_bytes = size * PANEL;
    const int64_t lines = amx::INT8_PANELS * amx::ROWS / ((rows + ROW_BLOCK_SIZE - 1) / ROW_BLOCK_SIZE);
    alignas(amx::LINE) int32_t sums[ROW_BLOCK_SIZE * amx::INT8_PANELS * PANEL];
    for (int64_t panel = 0; panel < panels; panel += amx::INT8_PANELS) {
        const int64_t last = std::min(panel + amx::INT8_PANELS, panels);
        const int8_t* numbers = weight.numbers.data() + (first + panel) * panel_bytes;
        // After the last panels, prefetch cached weights.
        const int8_t* next = numbers + (last < panels ? amx::INT8_PANELS * panel_bytes : 0);
        for (int64_t row = 0; row < rows; row += ROW_BLOCK_SIZE) {
            const int64_t block = std::min(rows - row, ROW_BLOCK_SIZE);
            const int8_t* second = numbers + (last - 1 - panel) * panel_bytes;
            const amx::Int8Operands operands{x + row * size, numbers, second, next, size, lines};
            next += lines * amx::LINE * (size / amx::INT8_INPUTS);
            block > amx::ROWS ? amx::multiply_int8<2>(operands, sums) : amx::multiply_int8<1>(operands, sums);
            for (int64_t p = panel; p < last; ++p) {
                const auto from = static_cast<int>(p) * PANEL;
                const int32_t* own = sums + (p - panel) * PANEL;
                const auto sums_of = [&](int64_t r) {
                    return *reinterpret_cast<const Integers*>(own + r * amx::INT8_PANELS * PANEL);
                };
                store_products(weight, bias ? bias + from : nullptr, (first + p) * PANEL, block, scales + row,
                               outputs - from, target.at(row, from), sums_of);
            }
        }
    }
}
#else
bool fits_tiles(int) { return false; }
#endif

// To 16 significant bits, so that a restored weight is exact in float32 and is quantized to the same numbers again.
float rounded_scale(float scale) {
    uint32_t bits;
    std::memcpy(&bits, &scale, sizeof bits);
    bits = (bits + 0x80) & ~0xFFu;
    std::memcpy(&scale, &bits, sizeof bits);
    return scale;
}

void keep_larger(double& largest, double value) {
    if (!std::isnan(largest) && !(value <= largest)) largest = value;
}

// Packs a weight. One in float32 is quantized, with 127 steps up to the largest magnitude of each output, as in
// int8_weights.py.
Int8Weight pack_int8(const Weight& weight) {
    const int64_t inputs = weight.inputs, size = (weight.outputs + PANEL - 1) / PANEL * PANEL;
    Int8Weight result{{}, Floats(size, 0), Aligned<int32_t>(size, 0)};
    std::vector<double> errors(weight.outputs), squares(weight.outputs);
    const auto add = [&](int64_t output, double number, int8_t step) {
        const double error = number - static_cast<double>(result.scale[output]) * step;
        errors[output] += error * error;
        squares[output] += number * number;
        result.zero_point[output] += ZERO_POINT * step;
        return step;
    };
    if (weight.scale) {
        std::copy_n(weight.scale, weight.outputs, result.scale.begin());
        result.numbers = pack_panels<int8_t, GROUP, int8_t>(weight, [&](int64_t output, int8_t step) {
            return add(output, static_cast<double>(result.scale[output]) * step, step);
        });
    } else {
        const auto* from = static_cast<const float*>(weight.numbers);
        for (int64_t output = 0; output < weight.outputs; ++output, from += inputs) {
            float largest = 0;
            for (int64_t i = 0; i < inputs; ++i) largest = std::max(largest, std::fabs(from[i]));
            result.scale[output] = rounded_scale(largest > 0 ? largest / 127 : 1.0f / 127);
        }
        result.numbers = pack_panels<int8_t, GROUP>(weight, [&](int64_t output, float number) {
            // In this order NaN becomes a number.
            const float steps = std::min(127.0f, std::max(-127.0f, std::nearbyint(number / result.scale[output])));
            return add(output, number, static_cast<int8_t>(steps));
        });
    }
    for (int64_t output = 0; output < weight.outputs; ++output) {
        keep_larger(result.error, std::sqrt(errors[output]));
        keep_larger(result.norm, std::sqrt(squares[output]));
        if (weight.bias) keep_larger(result.largest_bias, std::fabs(weight.bias[output]));
    }
    return result;
}

class Int8Linear final : public Linear {
public:
    explicit Int8Linear(const Weight& weight)
        : Linear(weight, fits_tiles(weight.inputs) ? 2 * QuantizedRows::TILE_ROWS : MAX_ROWS),
          weight(pack_int8(weight)) {}

    void run_outputs(const float* x, int64_t rows, int first, int last, const Target& target) const override {
        const QuantizedRows quantized(x, rows, inputs);
        // int8 takes at most half the time of float32.
        parallel_outputs(*this, rows, first, last, 2, [&](int begin, int end) {
#ifdef SPEC_DEC_AMX
            if (rows >= MIN_TILE_ROWS && fits_tiles(inputs)) {
                return multiply_int8_tiles(weight, bias_at(begin), quantized.size, begin / PANEL, end - begin,
                                           quantized.numbers.data(), quantized.scales.data(), rows,
                                           target.at(0, begin - first));
            }
#endif
            const auto* panels = weight.numbers.data() + begin * quantized.size;
            by_panels<MAX_ROWS>(panels, quantized.size, rows, end - begin,
                                [&](int64_t row, auto block, int from, int count, auto prefetch) {
                                    multiply_int8_block<block>(
                                        weight, bias_at(begin + from), quantized.size, (begin + from) / PANEL, count,
                                        quantized.numbers.data() + row * quantized.size * BYTES,
                                        quantized.scales.data() + row, target.at(row, begin - first + from), prefetch);
                                });
        });
    }

    // With the rounded w' and x', w x - w' x' = (w - w') x + w' (x - x'), whose parts are at most the products of norms
    // (Cauchy-Schwarz). The other terms are more than what sums in float32 are off, in any order and format: a share of
    // the products, and what is lost of numbers that are too small. Of large ones, a sum may overflow in one order
    // only.
    float error_bound(const float* x) const override {
        std::vector<uint8_t> quantized(whole_groups(inputs) * BYTES);
        const float scale = quantize_row(x, inputs, quantized.data()).scale;
        double squares = 0, errors = 0;
        for (int i = 0; i < inputs; ++i) {
            const double value = x[i], error = value - static_cast<double>(scale) * number_at(quantized.data(), i);
            squares += value * value;
            errors += error * error;
        }
        constexpr double ROUNDING = 0x1p-22, UNDERFLOW_ERROR = 0x1p-80, LARGEST = 0x1p60;
        const double norm = std::sqrt(squares), error = std::sqrt(errors);
        if (!(norm < LARGEST && weight.norm < LARGEST && weight.largest_bias < LARGEST)) return HUGE_VALF;
        return static_cast<float>(1.001 * (weight.error * norm + (weight.norm + weight.error) * error +
                                           (inputs + 16) * (ROUNDING * weight.norm * norm + UNDERFLOW_ERROR) +
                                           ROUNDING * weight.largest_bias));
    }

private:
    const Int8Weight weight;
};

}  // namespace

std::unique_ptr<Linear> make_int8_linear(const Weight& weight) { return std::make_unique<Int8Linear>(weight); }

}  // namespace SPEC_DEC_ISA
}  // namespace spec_dec
