// Linear layers with float32 inputs, and weights in float32 or float16, on AMX tiles.

#include "gemm.h"

#ifdef SPEC_DEC_AMX
#include "amx_tiles.h"
#endif

namespace spec_dec {
namespace SPEC_DEC_ISA {

#ifdef SPEC_DEC_AMX

namespace {

template <typename Format>
class TileLinear final : public Linear {
public:
    explicit TileLinear(const Weight& weight)
        : Linear(weight, /*efficient_rows=*/2 * amx::ROWS),
          blocks(weight.inputs / amx::INPUTS),
          numbers(pack_panels<typename Format::Number, Format::GROUP>(
              weight, [](int64_t, float number) { return Format::pack(number); })) {}

    void run_outputs(const float* x, int64_t rows, int first, int last, const Target& target) const override {
        const amx::SplitRows split(x, rows, inputs, Format::ROW_SCALE);
        parallel_outputs(*this, rows, first, last, 1,
                         [&](int begin, int end) { multiply(split, rows, begin, end, target.at(0, begin - first)); });
    }

private:
    // Multiplies a few panels at a time, which stay in the cache for all rows.
    void multiply(const amx::SplitRows& x, int64_t rows, int begin, int end, const Target& target) const {
        constexpr int ROW_BLOCK_SIZE = 2 * amx::ROWS, OUTPUT_BLOCK = 6 * PANEL;
        constexpr int64_t STRIDE = OUTPUT_BLOCK * sizeof(float);
        const amx::TileConfig config(rows);
        alignas(amx::LINE) float sums[ROW_BLOCK_SIZE * OUTPUT_BLOCK];
        for (int from = begin; from < end; from += OUTPUT_BLOCK) {
            const int count = std::min(OUTPUT_BLOCK, end - from), panels = (count + PANEL - 1) / PANEL;
            const auto* weight = numbers.data() + static_cast<int64_t>(from) * inputs;
            for (int64_t row = 0; row < rows; row += ROW_BLOCK_SIZE) {
                const int64_t block = std::min<int64_t>(rows - row, ROW_BLOCK_SIZE), group = row / amx::ROWS;
                if (block <= amx::ROWS) {
                    amx::multiply_16_rows<Format>(x.group(group), {weight, panels, blocks}, sums, STRIDE);
                } else {
                    amx::multiply_32_rows<Format>(x.group(group), x.group(group + 1), {weight, panels, blocks}, sums,
                                                  STRIDE);
                }
                for (int64_t r = 0; r < block; ++r) {
                    scale_and_store(sums + r * OUTPUT_BLOCK, count, bias_at(from), target.at(row + r, from - begin));
                }
            }
        }
    }

    static void scale_and_store(float* sums, int columns, const float* bias, const Target& target) {
        const int whole = has_vector_epilogue(target) ? columns / LANES * LANES : 0;
        for (int c = 0; c < whole; c += LANES) {
            vector_epilogue(load(sums + c) * Format::RESULT_SCALE, bias ? bias + c : nullptr,
                            target.activation == Activation::RELU, target.add, target.to + c);
        }
        if (whole == columns) return;
        for (int c = whole; c < columns; ++c) sums[c] *= Format::RESULT_SCALE;
        epilogue(sums + whole, columns - whole, bias ? bias + whole : nullptr, target.at(0, whole));
    }

    const int64_t blocks;
    const Aligned<typename Format::Number> numbers;
};

}  // namespace

bool has_amx_tiles() { return amx::is_allowed(); }

std::unique_ptr<Linear> make_amx_linear(const Weight& weight, WeightFormat format) {
    require(weight.inputs % amx::INPUTS == 0, "tiles take inputs in multiples of 32");
    if (format == WeightFormat::FP16_AMX_TILES) return std::make_unique<TileLinear<amx::Float16>>(weight);
    return std::make_unique<TileLinear<amx::Float32>>(weight);
}

#else

bool has_amx_tiles() { return false; }

std::unique_ptr<Linear> make_amx_linear(const Weight&, WeightFormat) { return nullptr; }

#endif

}  // namespace SPEC_DEC_ISA
}  // namespace spec_dec
