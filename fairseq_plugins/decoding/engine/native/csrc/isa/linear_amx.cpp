// Products of float32 rows and float16 weights on AMX tiles.

#include "products.h"

#include <stdexcept>

#ifdef SPEC_DEC_AMX
#include "amx_tiles.h"
#endif

namespace spec_dec {
namespace SPEC_DEC_ISA {

#ifdef SPEC_DEC_AMX

namespace {

class TileLinear final : public Linear {
public:
    explicit TileLinear(const Weight& weight)
        : Linear(weight.inputs, weight.outputs, weight.bias),
          blocks(weight.inputs / amx::INPUTS),
          numbers(in_panels<uint16_t, 2>(weight, [](int64_t, float number) {
              const __m128i half = _mm_cvtps_ph(_mm_set_ss(number * amx::WEIGHT_SCALE), _MM_FROUND_TO_NEAREST_INT);
              return static_cast<uint16_t>(_mm_extract_epi16(half, 0));
          })) {}

    void run_outputs(const float* x, int64_t rows, int first, int last, const Target& target) const override {
        const amx::Rows parts(x, rows, inputs);
        share_outputs(*this, rows, first, last, 1,
                      [&](int begin, int end) { multiply(parts, rows, begin, end, target.at(0, begin - first)); });
    }

    int64_t efficient_rows() const override { return 2 * amx::ROWS; }

private:
    // Multiplies a few panels at a time, which stay in the processor's cache for all rows.
    void multiply(const amx::Rows& x, int64_t rows, int begin, int end, const Target& target) const {
        constexpr int MOST = 2 * amx::ROWS, TOGETHER = 6 * PANEL;
        constexpr int64_t LINE = TOGETHER * sizeof(float);
        const amx::InUse in_use(rows);
        alignas(amx::LINE) float sums[MOST * TOGETHER];
        for (int from = begin; from < end; from += TOGETHER) {
            const int count = std::min(TOGETHER, end - from), panels = (count + PANEL - 1) / PANEL;
            const auto* weight = reinterpret_cast<const uint8_t*>(numbers.data()) + from / PANEL * blocks * amx::TILE;
            for (int64_t row = 0; row < rows; row += MOST) {
                const int64_t some = std::min<int64_t>(rows - row, MOST), group = row / amx::ROWS;
                if (some <= amx::ROWS) {
                    amx::multiply_few(x.group(group), {weight, panels, blocks}, sums, LINE);
                } else {
                    amx::multiply_more(x.group(group), x.group(group + 1), {weight, panels, blocks}, sums, LINE);
                }
                for (int64_t r = 0; r < some; ++r) {
                    finish_sums(sums + r * TOGETHER, count, bias_at(from), target.at(row + r, from - begin));
                }
            }
        }
    }

    static void finish_sums(float* sums, int columns, const float* bias, const Target& target) {
        const int whole = is_simple(target) ? columns / LANES * LANES : 0;
        for (int c = 0; c < whole; c += LANES) {
            finish_vector(load(sums + c) * amx::RESULT_SCALE, bias ? bias + c : nullptr,
                          target.activation == Activation::RELU, target.add, target.to + c);
        }
        if (whole == columns) return;
        for (int c = whole; c < columns; ++c) sums[c] *= amx::RESULT_SCALE;
        finish(sums + whole, columns - whole, nullptr, bias ? bias + whole : nullptr, target.at(0, whole));
    }

    const int64_t blocks;
    const std::vector<uint16_t> numbers;  // [outputs / 16][inputs / 2][16][2] in float16, times WEIGHT_SCALE
};

}  // namespace

bool has_amx_tiles() { return amx::is_allowed(); }

std::unique_ptr<Linear> make_amx_linear(const Weight& weight) {
    if (weight.inputs % amx::INPUTS != 0) throw std::invalid_argument("tiles take inputs in multiples of 32");
    return std::make_unique<TileLinear>(weight);
}

#else

bool has_amx_tiles() { return false; }

std::unique_ptr<Linear> make_amx_linear(const Weight&) { return nullptr; }

#endif

}  // namespace SPEC_DEC_ISA
}  // namespace spec_dec
