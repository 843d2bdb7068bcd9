// Linear layers with inputs and weights in int8. Weights: [outputs / 16][inputs / 4][16][4].

#include "gemm.h"

namespace spec_dec {
namespace SPEC_DEC_ISA {

#ifdef SPEC_DEC_INT8

namespace {

constexpr int GROUP = 4;  // inputs that one instruction multiplies and sums

// Processors multiply unsigned by signed bytes, but inputs are quantized to -127 .. 127. With VNNI, which sums four
// products in 32 bits, a zero point of 128 makes them unsigned. Without it, their signs move to the weights, so that
// two products, at most 2 * 127 * 127, fit 16 bits. The sums are equal on all processors.
#ifdef SPEC_DEC_VNNI
constexpr int ZERO_POINT = 128;
#else
constexpr int ZERO_POINT = 0;
#endif

// Adds the products of four weights and four quantized inputs to each lane of `sums`.
inline Integers add_products(Integers sums, Integers inputs, Integers weights) {
#if defined(SPEC_DEC_VNNI)
    return (Integers)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)inputs, (__m512i)weights);
#elif defined(__AVX512F__)
    const __m512i x = (__m512i)inputs, w = (__m512i)weights;
    const __m512i signed_weights = _mm512_mask_sub_epi8(w, _mm512_movepi8_mask(x), _mm512_setzero_si512(), w);
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(x), signed_weights);
    return sums + (Integers)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#else
    const __m256i x = (__m256i)inputs;
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8((__m256i)weights, x));
    return sums + (Integers)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
}

// Quantizes a row, padded with zeros to whole groups. Returns its scale.
float quantize_row(const float* x, int inputs, uint8_t* quantized) {
    Vector highest = {};
    int i = 0;
    for (; i + LANES <= inputs; i += LANES) highest = vector_max(highest, vector_max(load(x + i), -load(x + i)));
    if (i < inputs)
        highest = vector_max(highest, vector_max(load_partial(x + i, inputs - i), -load_partial(x + i, inputs - i)));
    const float largest = reduce_max(highest), steps = largest > 0 ? 127 / largest : 0;
    // Conversion truncates towards zero. The offset makes values positive, so that adding a half rounds to nearest.
    constexpr int OFFSET = 128;
    for (i = 0; i < inputs; i += LANES) {
        const int count = std::min(LANES, inputs - i);
        const Vector value = (count == LANES ? load(x + i) : load_partial(x + i, count)) * splat(steps);
        // Clamping also maps NaN and infinity into the range.
        const Vector raised = value > -127 ? value : splat(-127), bounded = raised < 127 ? raised : splat(127);
        const Integers steps_of = __builtin_convertvector(bounded + (OFFSET + 0.5f), Integers) - (OFFSET - ZERO_POINT);
        int32_t numbers[LANES];
        std::memcpy(numbers, &steps_of, sizeof(numbers));
        for (int lane = 0; lane < count; ++lane) quantized[i + lane] = static_cast<uint8_t>(numbers[lane]);
    }
    for (i = inputs; i % GROUP; ++i) quantized[i] = ZERO_POINT;
    return largest / 127;
}

// Quantized rows, which all threads of a product share.
struct QuantizedRows {
    int size;  // bytes of a row
    std::vector<uint8_t> numbers;
    std::vector<float> scales;

    QuantizedRows(const float* x, int64_t rows, int inputs)
        : size((inputs + GROUP - 1) / GROUP * GROUP), numbers(rows * size), scales(rows) {
        for (int64_t row = 0; row < rows; ++row) {
            scales[row] = quantize_row(x + row * inputs, inputs, numbers.data() + row * size);
        }
    }
};

struct Int8Weight {
    std::vector<int8_t> numbers;
    std::vector<float> scale;   // [outputs], padded to whole panels
    std::vector<int32_t> sums;  // [outputs], sum of the weights of each output; corrects for the zero point
};

// Computes the outputs `first` .. `last` of ROWS quantized rows, `size` bytes each.
template <int ROWS>
__attribute__((noinline)) void multiply_int8_block(const Int8Weight& weight, const float* bias, int size, int first,
                                                   int last, const uint8_t* x, const float* row_scales,
                                                   const Target& target) {
    constexpr int IN_PANEL = PANEL / LANES, PANELS = PANELS_OF<ROWS>, VECTORS = PANELS * IN_PANEL;
    const int64_t panel_bytes = static_cast<int64_t>(size) * PANEL, panels = (last + PANEL - 1) / PANEL;
    const auto multiply = [&](auto vectors, int64_t panel) {
        constexpr int COUNT = decltype(vectors)::value;
        Integers sums[ROWS][COUNT] = {};
        for (int i = 0; i < size; i += GROUP) {
            Integers weights[COUNT];
            for (int v = 0; v < COUNT; ++v) {
                const int8_t* from = weight.numbers.data() + (panel + v / IN_PANEL) * panel_bytes + i * PANEL;
                weights[v] = *reinterpret_cast<const Integers*>(from + v % IN_PANEL * LANES * GROUP);
                // Prefetch the next panels.
                if (v % IN_PANEL == 0) __builtin_prefetch(from + PANELS * panel_bytes, 0, 2);
            }
            for (int row = 0; row < ROWS; ++row) {
                int32_t group;
                std::memcpy(&group, x + static_cast<int64_t>(row) * size + i, GROUP);
                const Integers inputs = group - Integers{};
                for (int v = 0; v < COUNT; ++v) sums[row][v] = add_products(sums[row][v], inputs, weights[v]);
            }
        }
        const int begin = static_cast<int>(panel) * PANEL, columns = std::min(last - begin, COUNT * LANES);
        for (int row = 0; row < ROWS; ++row) {
            int32_t products[COUNT * LANES];
            float result[COUNT * LANES];
            std::memcpy(products, sums[row], sizeof(products));
            for (int c = 0; c < COUNT * LANES; ++c) {
                result[c] = (products[c] - ZERO_POINT * weight.sums[begin + c]) * row_scales[row];
            }
            epilogue(result, columns, weight.scale.data() + begin, bias ? bias + begin : nullptr,
                     target.at(row, begin - first));
        }
    };
    int64_t panel = first / PANEL;
    for (; panel + PANELS <= panels; panel += PANELS) multiply(std::integral_constant<int, VECTORS>(), panel);
    for (; panel < panels; ++panel) multiply(std::integral_constant<int, IN_PANEL>(), panel);
}

// Quantizes a weight to int8, with 127 steps up to the largest magnitude of each output.
Int8Weight quantize(const Weight& weight) {
    const int64_t inputs = weight.inputs, size = (weight.outputs + PANEL - 1) / PANEL * PANEL;
    Int8Weight result{{}, std::vector<float>(size), std::vector<int32_t>(size)};
    const auto* from = static_cast<const float*>(weight.numbers);
    for (int64_t output = 0; output < weight.outputs; ++output) {
        float largest = 0;
        for (int64_t i = 0; i < inputs; ++i) largest = std::max(largest, std::fabs(from[output * inputs + i]));
        result.scale[output] = largest > 0 ? largest / 127 : 1.0f / 127;
    }
    result.numbers = pack_panels<int8_t, GROUP>(weight, [&](int64_t output, float number) {
        const float steps = std::nearbyint(number / result.scale[output]);
        const auto step = static_cast<int8_t>(std::min(std::max(steps, -127.0f), 127.0f));
        result.sums[output] += step;
        return step;
    });
    return result;
}

class Int8PanelLinear final : public Linear {
public:
    explicit Int8PanelLinear(const Weight& weight)
        : Linear(weight.inputs, weight.outputs, weight.bias), weight(quantize(weight)) {}

    void run_outputs(const float* x, int64_t rows, int first, int last, const Target& target) const override {
        const QuantizedRows quantized(x, rows, inputs);
        // int8 takes at most half the time of float32.
        parallel_outputs(*this, rows, first, last, 2, [&](int begin, int end) {
            by_rows<MAX_ROWS>(rows, [&](int64_t row, auto block) {
                multiply_int8_block<block>(weight, bias_at(0), quantized.size, begin, end,
                                           quantized.numbers.data() + row * quantized.size,
                                           quantized.scales.data() + row, target.at(row, begin - first));
            });
        });
    }

    int64_t efficient_rows() const override { return MAX_ROWS; }

private:
    const Int8Weight weight;
};

}  // namespace

std::unique_ptr<Linear> make_int8_linear(const Weight& weight) { return std::make_unique<Int8PanelLinear>(weight); }

#else

std::unique_ptr<Linear> make_int8_linear(const Weight&) { return nullptr; }

#endif

}  // namespace SPEC_DEC_ISA
}  // namespace spec_dec
