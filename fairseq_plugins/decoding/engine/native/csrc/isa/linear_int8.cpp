// Products of rows rounded to int8 and int8 weights, [outputs / 16][inputs / 4][16][4].

#include "products.h"

namespace spec_dec {
namespace SPEC_DEC_ISA {

#ifdef SPEC_DEC_INT8

namespace {

constexpr int INPUTS_AT_ONCE = 4;

// Processors multiply unsigned by signed bytes. Inputs are rounded to -127 .. 127. With VNNI, which sums four products
// in 32 bits, they are shifted to be positive. Without it their signs move to the weights, so that two products, at
// most 2 * 127 * 127, fit 16 bits. The sums are the same on every processor.
#ifdef SPEC_DEC_VNNI
constexpr int SHIFT = 128;
#else
constexpr int SHIFT = 0;
#endif

// Adds to every lane of `sums` four products of weights and inputs, rounded by `round_row`.
inline Integers add_products(Integers sums, Integers inputs, Integers weights) {
#if defined(SPEC_DEC_VNNI)
    return (Integers)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)inputs, (__m512i)weights);
#elif defined(__AVX512F__)
    const __m512i given = (__m512i)inputs, signs = (__m512i)weights;
    const __m512i turned = _mm512_mask_sub_epi8(signs, _mm512_movepi8_mask(given), _mm512_setzero_si512(), signs);
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(given), turned);
    return sums + (Integers)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#else
    const __m256i given = (__m256i)inputs;
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(given), _mm256_sign_epi8((__m256i)weights, given));
    return sums + (Integers)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
}

// Rounds a row, with zeros up to a multiple of four; returns the factor of its results.
float round_row(const float* x, int inputs, uint8_t* rounded) {
    Vector highest = {};
    int i = 0;
    for (; i + LANES <= inputs; i += LANES) highest = larger(highest, larger(load(x + i), -load(x + i)));
    if (i < inputs) highest = larger(highest, larger(load_some(x + i, inputs - i), -load_some(x + i, inputs - i)));
    const float largest = highest_lane(highest), steps = largest > 0 ? 127 / largest : 0;
    // Conversion truncates towards zero: adding half a step rounds, and values above zero are rounded down.
    constexpr int ABOVE_ZERO = 128;
    for (i = 0; i < inputs; i += LANES) {
        const int count = std::min(LANES, inputs - i);
        const Vector value = (count == LANES ? load(x + i) : load_some(x + i, count)) * splat(steps);
        // NaN and infinity become a number in range.
        const Vector low = value > -127 ? value : splat(-127), bounded = low < 127 ? low : splat(127);
        const Integers whole = __builtin_convertvector(bounded + (ABOVE_ZERO + 0.5f), Integers) - (ABOVE_ZERO - SHIFT);
        int32_t numbers[LANES];
        std::memcpy(numbers, &whole, sizeof(numbers));
        for (int lane = 0; lane < count; ++lane) rounded[i + lane] = static_cast<uint8_t>(numbers[lane]);
    }
    for (i = inputs; i % INPUTS_AT_ONCE; ++i) rounded[i] = SHIFT;
    return largest / 127;
}

// Rounded rows, once for all threads that multiply them.
struct RoundedRows {
    int size;
    std::vector<uint8_t> numbers;
    std::vector<float> scales;

    RoundedRows(const float* x, int64_t rows, int inputs)
        : size((inputs + INPUTS_AT_ONCE - 1) / INPUTS_AT_ONCE * INPUTS_AT_ONCE), numbers(rows * size), scales(rows) {
        for (int64_t row = 0; row < rows; ++row) {
            scales[row] = round_row(x + row * inputs, inputs, numbers.data() + row * size);
        }
    }
};

struct Int8Weight {
    std::vector<int8_t> numbers;
    std::vector<float> scale;   // of each output
    std::vector<int32_t> sums;  // of the weights of each output, filled up to panels
};

// `outputs` outputs of rounded rows, `size` bytes each, from the panel `first` on.
template <int ROWS>
__attribute__((noinline)) void int8_by_rows(const Int8Weight& weight, const float* bias, int size, int first, int last,
                                            const uint8_t* x, const float* row_scales, const Target& target) {
    constexpr int IN_PANEL = PANEL / LANES, PANELS = PANELS_OF<ROWS>, VECTORS = PANELS * IN_PANEL;
    const int64_t panel_bytes = static_cast<int64_t>(size) * PANEL, panels = (last + PANEL - 1) / PANEL;
    const auto multiply = [&](auto several, int64_t panel) {
        constexpr int COUNT = decltype(several)::value;
        Integers sums[ROWS][COUNT] = {};
        for (int i = 0; i < size; i += INPUTS_AT_ONCE) {
            Integers weights[COUNT];
            for (int v = 0; v < COUNT; ++v) {
                const int8_t* from = weight.numbers.data() + (panel + v / IN_PANEL) * panel_bytes + i * PANEL;
                weights[v] = *reinterpret_cast<const Integers*>(from + v % IN_PANEL * LANES * INPUTS_AT_ONCE);
                // The same place of the next panels.
                if (v % IN_PANEL == 0) __builtin_prefetch(from + PANELS * panel_bytes, 0, 2);
            }
            for (int row = 0; row < ROWS; ++row) {
                int32_t four;
                std::memcpy(&four, x + static_cast<int64_t>(row) * size + i, INPUTS_AT_ONCE);
                const Integers inputs = four - Integers{};
                for (int v = 0; v < COUNT; ++v) sums[row][v] = add_products(sums[row][v], inputs, weights[v]);
            }
        }
        const int begin = static_cast<int>(panel) * PANEL, columns = std::min(last - begin, COUNT * LANES);
        for (int row = 0; row < ROWS; ++row) {
            int32_t whole[COUNT * LANES];
            float result[COUNT * LANES];
            std::memcpy(whole, sums[row], sizeof(whole));
            for (int c = 0; c < COUNT * LANES; ++c) {
                result[c] = (whole[c] - SHIFT * weight.sums[begin + c]) * row_scales[row];
            }
            finish(result, columns, weight.scale.data() + begin, bias ? bias + begin : nullptr,
                   target.at(row, begin - first));
        }
    };
    int64_t panel = first / PANEL;
    for (; panel + PANELS <= panels; panel += PANELS) multiply(std::integral_constant<int, VECTORS>(), panel);
    for (; panel < panels; ++panel) multiply(std::integral_constant<int, IN_PANEL>(), panel);
}

// Rounds the weight to int8, in 127 steps up to the largest weight of each output.
Int8Weight rounded(const Weight& weight) {
    const int64_t inputs = weight.inputs, size = (weight.outputs + PANEL - 1) / PANEL * PANEL;
    Int8Weight result{{}, std::vector<float>(size), std::vector<int32_t>(size)};
    const auto* from = static_cast<const float*>(weight.numbers);
    for (int64_t output = 0; output < weight.outputs; ++output) {
        float largest = 0;
        for (int64_t i = 0; i < inputs; ++i) largest = std::max(largest, std::fabs(from[output * inputs + i]));
        result.scale[output] = largest > 0 ? largest / 127 : 1.0f / 127;
    }
    result.numbers = in_panels<int8_t, INPUTS_AT_ONCE>(weight, [&](int64_t output, float number) {
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
        : Linear(weight.inputs, weight.outputs, weight.bias), weight(rounded(weight)) {}

    void run_outputs(const float* x, int64_t rows, int first, int last, const Target& target) const override {
        const RoundedRows rounded(x, rows, inputs);
        // int8 products take half the time of float32, or less.
        share_outputs(*this, rows, first, last, 2, [&](int begin, int end) {
            by_rows<MAX_ROWS>(rows, [&](int64_t row, auto some) {
                int8_by_rows<some>(weight, bias_at(0), rounded.size, begin, end,
                                   rounded.numbers.data() + row * rounded.size, rounded.scales.data() + row,
                                   target.at(row, begin - first));
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
