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
    // Multiplies a block of panels, which stay in the second-level cache, by all rows.
    void multiply(const amx::SplitRows& x, int64_t rows, int begin, int end, const Target& target) const {
        constexpr int64_t MOST_ROWS = 2 * amx::ROWS, CACHED_BYTES = 1 << 19, LEAST_OUTPUTS = 4 * PANEL;
        const int64_t cached = CACHED_BYTES / (inputs * sizeof(numbers[0])) / LEAST_OUTPUTS * LEAST_OUTPUTS;
        const int most = rows <= MOST_ROWS ? end - begin : static_cast<int>(std::max(cached, LEAST_OUTPUTS));
        const amx::TileConfig config(rows);
        for (int from = begin; from < end; from += most) {
            const int count = std::min(most, end - from);
            const auto* weight = numbers.data() + static_cast<int64_t>(from) * inputs;
            for (int64_t row = 0; row < rows; row += MOST_ROWS) {
                const int64_t block = std::min(rows - row, MOST_ROWS), group = row / amx::ROWS;
                const auto put = [&](int64_t panel, auto& sums) {
                    constexpr int COLUMNS = sizeof(sums[0]) / sizeof(float);
                    const int column = static_cast<int>(panel) * PANEL, columns = std::min(COLUMNS, count - column);
                    for (int64_t r = 0; r < block; ++r) {
                        scale_and_store(sums[r][0], columns, bias_at(from + column),
                                        target.at(row + r, from + column - begin));
                    }
                };
                const int64_t panels = (count + PANEL - 1) / PANEL;
                if (block <= amx::ROWS) {
                    amx::multiply_tiles<Format, 1>({x.group(group)}, weight, panels, blocks, put);
                } else {
                    amx::multiply_tiles<Format, 2>({x.group(group), x.group(group + 1)}, weight, panels, blocks, put);
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
