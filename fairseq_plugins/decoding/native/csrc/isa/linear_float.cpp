// Linear layers with float32 inputs: weights in panels (float32, float16) or in rows (float32).

#include "gemm.h"

namespace spec_dec {
namespace SPEC_DEC_ISA {
namespace {

#ifdef __AVX512F__
// AMD's Zen 4 converts float16 to 256-bit vectors 1.5 times as fast as to 512 bits, which limits products of one row.
inline bool converts_narrow() { return __builtin_cpu_is("amd"); }

// Does the same as `multiply_panels<1, PANELS>` in 256-bit vectors: equal sums, bit by bit.
template <int PANELS, typename Prefetch, typename Put>
__attribute__((always_inline)) inline void multiply_panels_narrow(const float* x, int64_t inputs, const Half* panels,
                                                                  const Prefetch& prefetch, const Put& put) {
    constexpr int HALF = LANES / 2;
    __m256 sums[PANELS][2] = {};
    for (int64_t i = 0; i < inputs; ++i) {
        const __m256 value = _mm256_set1_ps(x[i]);
        prefetch(i);
        for (int v = 0; v < PANELS; ++v) {
            const Half* panel = panels + v * inputs * PANEL + i * PANEL;
            for (int half = 0; half < 2; ++half) {
                const auto* from = reinterpret_cast<const __m128i*>(panel + half * HALF);
                const __m256 weights = _mm256_cvtph_ps(_mm_loadu_si128(from));
                sums[v][half] = _mm256_fmadd_ps(value, weights, sums[v][half]);
            }
        }
    }
    for (int v = 0; v < PANELS; ++v) {
        put(0, v, (Vector)_mm512_insertf32x8(_mm512_castps256_ps512(sums[v][0]), sums[v][1], 1));
    }
}
#endif

// Multiplies ROWS rows by PANELS panels with the vectors that suit the processor. x: [ROWS][inputs], and of more than
// MAX_ROWS rows [inputs][ROWS], which are too many for the addresses in registers and the ways of a cache.
template <int ROWS, int PANELS, typename Number, typename Prefetch, typename Put>
__attribute__((always_inline)) inline void multiply(const float* x, int64_t inputs, const Number* panels,
                                                    const Prefetch& prefetch, const Put& put) {
#ifdef __AVX512F__
    if constexpr (ROWS == 1 && std::is_same_v<Number, Half>) {
        if (converts_narrow()) return multiply_panels_narrow<PANELS>(x, inputs, panels, prefetch, put);
    }
#endif
    const auto weights_of = [&](int64_t i) { return panels + i * PANEL; };
    const auto zero = [](int, int) { return Vector{}; };
    if constexpr (ROWS > MAX_ROWS) {
        multiply_panels<ROWS, PANELS>(x, 1, ROWS, inputs, weights_of, inputs * PANEL, prefetch, zero, put);
    } else {
        multiply_panels<ROWS, PANELS>(x, inputs, 1, inputs, weights_of, inputs * PANEL, prefetch, zero, put);
    }
}

// Multiplies ROWS rows by a block of panels.
template <int ROWS, typename Number, typename Prefetch>
__attribute__((noinline)) void multiply_panel_block(const Number* weight, const float* bias, int inputs, const float* x,
                                                    int outputs, const Target& target, Prefetch prefetch) {
    constexpr int PANELS = PANELS_OF<ROWS>;
    const int64_t size = inputs;
    float result[ROWS][PANELS * PANEL];
    // Copies, which the compiler keeps in registers.
    const bool is_plain = has_vector_epilogue(target), is_relu = target.activation == Activation::RELU,
               add = target.add;
    const int64_t stride = target.stride;
    float* const results = target.to;
    const auto run = [&](auto panels, int begin) {
        constexpr int COUNT = decltype(panels)::value;
        const int columns = std::min(outputs - begin, COUNT * PANEL);
        const bool is_whole = is_plain && columns == COUNT * PANEL;
        const float* own_bias = bias ? bias + begin : nullptr;
        const Number* first = weight + begin * size;
        const auto prefetch_step = prefetch.template start<ROWS, COUNT, PANEL * sizeof(Number)>(first, size);
        multiply<ROWS, COUNT>(x, size, first, prefetch_step, [&](int row, int v, Vector sums) {
            if (is_whole) {
                vector_epilogue(sums, own_bias ? own_bias + v * LANES : nullptr, is_relu, add,
                                results + row * stride + begin + v * LANES);
            } else {
                store(result[row] + v * LANES, sums);
            }
        });
        for (int r = 0; !is_whole && r < ROWS; ++r) epilogue(result[r], columns, own_bias, target.at(r, begin));
    };
    int begin = 0;
    for (; begin + PANELS * PANEL <= outputs; begin += PANELS * PANEL) {
        run(std::integral_constant<int, PANELS>(), begin);
    }
    for (; begin < outputs; begin += PANEL) run(std::integral_constant<int, 1>(), begin);
}

// Multiplies by a weight that is read once: in the first of several passes it would be awaited.
template <typename Number>
void multiply_in_one_pass(const Number* weight, const float* bias, int inputs, const float* x, int64_t rows,
                          int outputs, const Target& target) {
    thread_local std::vector<float> interleaved;
    interleaved.resize(rows * inputs);
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < inputs; ++i) interleaved[i * rows + row] = x[row * inputs + i];
    }
    with_count<ONE_PASS_ROWS>(rows, [&](auto count) {
        if constexpr (count > MAX_ROWS) {
            multiply_panel_block<count>(weight, bias, inputs, interleaved.data(), outputs, target, PrefetchOwn());
        }
    });
}

// Multiplies all rows by a weight in panels, block by block. weight: the first of `outputs` outputs.
template <typename Number>
void multiply_in_panels(const Number* weight, const float* bias, int inputs, const float* x, int64_t rows, int outputs,
                        const Target& target) {
    constexpr int64_t CACHED_BYTES = 1 << 18;  // which are not awaited: interleaving the rows would take longer
    const int64_t bytes = static_cast<int64_t>(inputs) * outputs * sizeof(Number);
    if (rows > MAX_ROWS && rows <= ONE_PASS_ROWS && bytes > CACHED_BYTES) {
        return multiply_in_one_pass(weight, bias, inputs, x, rows, outputs, target);
    }
    by_panels<MAX_ROWS>(weight, inputs * sizeof(Number), rows, outputs,
                        [&](int64_t row, auto block, int first, int count, auto prefetch) {
                            multiply_panel_block<block>(weight + static_cast<int64_t>(first) * inputs,
                                                        bias ? bias + first : nullptr, inputs, x + row * inputs, count,
                                                        target.at(row, first), prefetch);
                        });
}

template <typename Number>
class PanelLinear final : public Linear {
public:
    PanelLinear(const Weight& weight, Aligned<Number> numbers)
        : Linear(weight, MAX_ROWS), numbers(std::move(numbers)) {}

    void run_outputs(const float* x, int64_t rows, int first, int last, const Target& target) const override {
        parallel_outputs(*this, rows, first, last, 1, [&](int begin, int end) {
            multiply_in_panels(numbers.data() + static_cast<int64_t>(begin) * inputs, bias_at(begin), inputs, x, rows,
                               end - begin, target.at(0, begin - first));
        });
    }

private:
    const Aligned<Number> numbers;
};

float identity(int64_t, float number) { return number; }

// Multiplies ROWS rows by a weight [outputs][inputs].
template <int ROWS>
__attribute__((noinline)) void multiply_row_block(const float* weight, const float* bias, int inputs, const float* x,
                                                  int outputs, const Target& target) {
    constexpr int OUTPUTS = OUTPUTS_OF<ROWS>;
    const int64_t size = inputs;
    float result[ROWS][LANES];
    const auto multiply = [&](auto count, int begin) {
        const float* from = weight + begin * size;
        const auto weights_of = [&](int output) { return from + output * size; };
        // Two blocks ahead, farther than the processor prefetches by itself.
        const auto prefetch = [&](int i, int output) {
            __builtin_prefetch(from + count * (2 * size + i) + output * LANES, 0, 2);
        };
        multiply_rows<ROWS, count>(x, size, weights_of, inputs, prefetch, result);
        for (int r = 0; r < ROWS; ++r) {
            epilogue(result[r], count, bias ? bias + begin : nullptr, target.at(r, begin));
        }
    };
    int begin = 0;
    for (; begin + OUTPUTS <= outputs; begin += OUTPUTS) multiply(std::integral_constant<int, OUTPUTS>(), begin);
    for (; begin < outputs; ++begin) multiply(std::integral_constant<int, 1>(), begin);
}

class RowLinear final : public Linear {
public:
    explicit RowLinear(const Weight& weight)
        : Linear(weight, MAX_ROWS),
          numbers(static_cast<const float*>(weight.numbers)),
          owner(weight.owner),
          packs_for_many_rows(!weight.is_batch_invariant) {}

    void run_outputs(const float* x, int64_t rows, int first, int last, const Target& target) const override {
        parallel_outputs(*this, rows, first, last, 1, [&](int begin, int end) {
            const Target own = target.at(0, begin - first);
            if (packs_for_many_rows && rows >= PACKING_MIN_ROWS) {
                run_packed(x, rows, begin, end, own);
            } else {
                run_in_place(x, rows, begin, end, own);
            }
        });
    }

private:
    // From this many rows on, as in an encoder, packing a block of the weight costs little next to the product.
    static constexpr int64_t PACKING_MIN_ROWS = 257;
    static constexpr int PACKED_OUTPUTS = 4 * PANEL;

    // A few outputs at a time for all rows, so that each weight is read from memory once.
    void run_in_place(const float* x, int64_t rows, int begin, int end, const Target& target) const {
        for (int from = begin; from < end; from += MAX_OUTPUTS) {
            const int count = std::min(MAX_OUTPUTS, end - from);
            by_rows<ROW_BLOCK>(rows, [&](int64_t row, auto block) {
                multiply_row_block<block>(numbers + static_cast<int64_t>(from) * inputs, bias_at(from), inputs,
                                          x + row * inputs, count, target.at(row, from - begin));
            });
        }
    }

    void run_packed(const float* x, int64_t rows, int begin, int end, const Target& target) const {
        for (int from = begin; from < end; from += PACKED_OUTPUTS) {
            const int count = std::min(PACKED_OUTPUTS, end - from);
            const Weight part{
                numbers + static_cast<int64_t>(from) * inputs, nullptr, nullptr, inputs, count, false, {}};
            const Floats panels = pack_panels<float, 1>(part, identity);
            multiply_in_panels(panels.data(), bias_at(from), inputs, x, rows, count, target.at(0, from - begin));
        }
    }

    const float* const numbers;
    const std::shared_ptr<const void> owner;
    const bool packs_for_many_rows;
};

#ifdef SPEC_DEC_FP16
Half to_half(int64_t, float number) {
#ifdef __aarch64__
    return {vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(number))), 0)};
#else
    return {static_cast<uint16_t>(_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(number), _MM_FROUND_TO_NEAREST_INT), 0))};
#endif
}
#endif

}  // namespace

std::unique_ptr<Linear> make_float_linear(const Weight& weight, WeightFormat format) {
    if (format == WeightFormat::ROWS) return std::make_unique<RowLinear>(weight);
#ifdef SPEC_DEC_FP16
    if (format == WeightFormat::FP16_PANELS) {
        return std::make_unique<PanelLinear<Half>>(weight, pack_panels<Half, 1>(weight, to_half));
    }
#endif
    return std::make_unique<PanelLinear<float>>(weight, pack_panels<float, 1>(weight, identity));
}

}  // namespace SPEC_DEC_ISA
}  // namespace spec_dec
