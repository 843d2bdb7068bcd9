// GEMM micro-kernels, which keep the sums of a few rows in registers, and their epilogue: bias and activation.

#pragma once

#include <algorithm>

#include "../kernels.h"
#include "../threads.h"
#include "simd.h"

namespace spec_dec {
namespace SPEC_DEC_ISA {

// Makers of each kind of format.
std::unique_ptr<Linear> make_float_linear(const Weight& weight, WeightFormat format);
std::unique_ptr<Linear> make_int8_linear(const Weight& weight);
std::unique_ptr<Linear> make_amx_linear(const Weight& weight, WeightFormat format);  // null without AMX
bool has_amx_tiles();

#ifdef __AVX512F__
constexpr int ACCUMULATORS = 24, MAX_ROWS = 12;
#elif defined(__aarch64__)
constexpr int ACCUMULATORS = 24, MAX_ROWS = 6;
#else
constexpr int ACCUMULATORS = 12, MAX_ROWS = 6;
#endif

constexpr int PANEL = Linear::PANEL;
// Rows whose sums for one panel fit in registers.
constexpr int ONE_PASS_ROWS = PANEL == LANES ? ACCUMULATORS : MAX_ROWS;

// Calls `run` with `count` (1 to MOST) as an integral constant.
template <int MOST, typename Run>
void with_count(int64_t count, const Run& run) {
    if constexpr (MOST > 1) {
        if (count < MOST) return with_count<MOST - 1>(count, run);
    }
    run(std::integral_constant<int, MOST>());
}

// Calls `run(row, count)` for blocks of at most MOST rows; `count` is an integral constant.
template <int MOST, typename Run>
void by_rows(int64_t rows, const Run& run) {
    for_each_block(rows, MOST,
                   [&](int64_t row, int64_t block) { with_count<MOST>(block, [&](auto count) { run(row, count); }); });
}

// Packs a weight as [outputs / 16][inputs / GROUP][16][GROUP], padded with zeros. convert(output, number) returns the
// packed number.
template <typename Number, int GROUP, typename Given = float, typename Convert>
Aligned<Number> pack_panels(const Weight& weight, const Convert& convert) {
    const auto* from = static_cast<const Given*>(weight.numbers);
    const int64_t size = (weight.inputs + GROUP - 1) / GROUP * GROUP, panels = (weight.outputs + PANEL - 1) / PANEL;
    Aligned<Number> numbers(panels * size * PANEL, Number{});
    for (int64_t output = 0; output < weight.outputs; ++output) {
        Number* panel = numbers.data() + output / PANEL * size * PANEL + output % PANEL * GROUP;
        for (int64_t i = 0; i < weight.inputs; ++i) {
            panel[i / GROUP * GROUP * PANEL + i % GROUP] = convert(output, *from++);
        }
    }
    return numbers;
}

// Number of panels whose accumulators for ROWS rows fit in registers.
template <int ROWS, int FITTING = ACCUMULATORS / (ROWS * (PANEL / LANES))>
constexpr int PANELS_OF = FITTING >= 4   ? 4
                          : FITTING >= 2 ? 2
                                         : 1;

// Calls `run(begin, end)` for ranges of whole panels of outputs, on as many threads as the multiply-adds pay for.
// speed: multiply-adds in the time of one in float32.
template <typename Run>
void parallel_outputs(const Linear& layer, int64_t rows, int first, int last, int64_t speed, const Run& run) {
    // One row is bound by memory: reading the weights takes as long as the arithmetic of this many rows.
    constexpr int64_t MEMORY_BOUND_ROWS = 8;
    const int64_t products = std::max(rows, MEMORY_BOUND_ROWS) * layer.inputs * PANEL / speed;
    const int64_t panels = (last - first + PANEL - 1) / PANEL;
    threads::parallel_for(panels, products, [&](int64_t begin, int64_t end) {
        run(first + static_cast<int>(begin) * PANEL, std::min(first + static_cast<int>(end) * PANEL, last));
    });
}

// Stores `columns` products of one row in `target`, after bias (null: none) and activation. Overwrites `products`.
void epilogue(float* products, int columns, const float* bias, const Target& target);

// The common case for one vector in registers: ReLU or no activation.
__attribute__((always_inline)) inline void vector_epilogue(Vector sums, const float* bias, bool is_relu, bool add,
                                                           float* to) {
    if (bias) sums += load(bias);
    if (is_relu) sums = sums < 0 ? Vector{} : sums;
    store(to, add ? sums + load(to) : sums);
}

inline bool has_vector_epilogue(const Target& target) {
    return target.activation == Activation::NONE || target.activation == Activation::RELU;
}

// Prefetches weights a little before they are read: so far ahead that memory delivers them in time, and near enough for
// the first-level cache.
struct PrefetchOwn {
    // Returns what a kernel calls in each of `steps` steps, which read STEP_BYTES of PANELS panels side by side.
    template <int ROWS, int PANELS, int STEP_BYTES>
    auto start(const void* panels, int64_t steps) const {
        return [panels, steps](int64_t step) __attribute__((always_inline)) {
            constexpr int64_t AHEAD_BYTES = 12 << 10, AHEAD = AHEAD_BYTES / (PANELS * STEP_BYTES);
            // After the last step come the next panels.
            const int64_t from = step + (step + AHEAD < steps ? AHEAD : AHEAD + (PANELS - 1) * steps);
            for (int panel = 0; panel < PANELS; ++panel) {
                __builtin_prefetch(static_cast<const char*>(panels) + (panel * steps + from) * STEP_BYTES);
            }
        };
    }
};

// Prefetches the block of panels after the one that `rows` rows are multiplied by, into the second-level cache. All of
// their steps share the work: a core waits for memory that is asked for more than it delivers.
struct PrefetchNext {
    const char* next;
    int64_t rows;

    template <int ROWS, int PANELS, int STEP_BYTES>
    auto start(const void*, int64_t) {
        const int64_t bytes = std::max<int64_t>(ROWS * PANELS * STEP_BYTES / rows, 1);
        return [this, bytes](int64_t) __attribute__((always_inline)) {
            __builtin_prefetch(next, 0, 2);
            next += bytes;
        };
    }
};

// Calls `run(row, count, first, outputs, prefetch)` for blocks of at most MOST rows and blocks of outputs in whole
// panels, which stay in the second-level cache while all rows are multiplied; `count` is an integral constant. bytes:
// of an output.
template <int MOST, typename Run>
void by_panels(const void* weight, int64_t bytes, int64_t rows, int outputs, const Run& run) {
    if (rows <= MOST) {
        return by_rows<MOST>(rows, [&](int64_t row, auto count) { run(row, count, 0, outputs, PrefetchOwn()); });
    }
    constexpr int64_t BLOCK_BYTES = 1 << 16, MIN_PANELS = PANELS_OF<MOST / 2>;
    const int block = PANEL * static_cast<int>(std::max(BLOCK_BYTES / (bytes * PANEL), MIN_PANELS));
    for (int first = 0; first < outputs; first += block) {
        const int last = std::min(first + block, outputs);
        // After the last block, prefetch cached weights.
        const int next = last < outputs ? last : first;
        const char* from = static_cast<const char*>(weight) + next * bytes;
        const int64_t next_bytes = (std::min(next + block, outputs) - next) * bytes;
        by_rows<MOST>(rows, [&](int64_t row, auto count) {
            // Several blocks have at least half of MOST rows each.
            if constexpr (count >= MOST / 2) {
                run(row, count, first, last - first, PrefetchNext{from + next_bytes * row / rows, rows});
            }
        });
    }
}

// Multiplies ROWS rows of x by PANELS panels of a weight. start(row, v) returns what the products of vector v of a row
// are added to; put(row, v, sums) receives the sums. weights_of(i) returns those of an input in the first panel.
// Strides: between rows of x and their values, and between panels. prefetch(i) is called for each input.
template <int ROWS, int PANELS, typename Weights, typename Prefetch, typename Start, typename Put>
__attribute__((always_inline)) inline void multiply_panels(const float* x, int64_t row_stride, int64_t value_stride,
                                                           int64_t inputs, const Weights& weights_of,
                                                           int64_t panel_stride, const Prefetch& prefetch,
                                                           const Start& start, const Put& put) {
    constexpr int VECTORS = PANELS * PANEL / LANES, IN_PANEL = PANEL / LANES;
    // For one row of float32 the processor's own prefetching is faster.
    constexpr bool PREFETCHES = ROWS > 1 || sizeof(*weights_of(0)) < sizeof(float);
    Vector sums[ROWS][VECTORS];
    for (int row = 0; row < ROWS; ++row) {
        for (int v = 0; v < VECTORS; ++v) sums[row][v] = start(row, v);
    }
    for (int64_t i = 0; i < inputs; ++i) {
        if (PREFETCHES) prefetch(i);
        const auto* from = weights_of(i);
        const auto weight = [&](int v) { return load(from + v / IN_PANEL * panel_stride + v % IN_PANEL * LANES); };
        // Keep the smaller operand in registers.
        if constexpr (ROWS < VECTORS) {
            Vector values[ROWS];
            for (int row = 0; row < ROWS; ++row) values[row] = splat(x[row * row_stride + i * value_stride]);
#pragma GCC unroll 24
            for (int v = 0; v < VECTORS; ++v) {
                const Vector weights = weight(v);
                for (int row = 0; row < ROWS; ++row) sums[row][v] = fma(values[row], weights, sums[row][v]);
            }
        } else {
            Vector weights[VECTORS];
            for (int v = 0; v < VECTORS; ++v) weights[v] = weight(v);
#pragma GCC unroll 24
            for (int row = 0; row < ROWS; ++row) {
                const Vector value = splat(x[row * row_stride + i * value_stride]);
                for (int v = 0; v < VECTORS; ++v) sums[row][v] = fma(value, weights[v], sums[row][v]);
            }
        }
    }
#pragma GCC unroll 24
    for (int row = 0; row < ROWS; ++row) {
#pragma GCC unroll 24
        for (int v = 0; v < VECTORS; ++v) put(row, v, sums[row][v]);
    }
}

// Block sizes of `multiply_rows`: sums of ROWS rows and OUTPUTS_OF<ROWS> outputs fit in registers.
constexpr int FEW_ROWS = 3, MAX_OUTPUTS = std::min(ACCUMULATORS / FEW_ROWS, LANES);
template <int ROWS>
constexpr int OUTPUTS_OF = ROWS <= FEW_ROWS ? MAX_OUTPUTS : ACCUMULATORS / ROW_BLOCK;

// Multiplies ROWS rows of x by OUTPUTS rows of a weight: result[ROWS][OUTPUTS ..]. row_stride: between rows of x.
// weights_of(output) returns a row. prefetch(i, output) is called for each vector from input `i` on.
template <int ROWS, int OUTPUTS, typename Weights, typename Prefetch>
__attribute__((always_inline)) inline void multiply_rows(const float* x, int64_t row_stride, const Weights& weights_of,
                                                         int inputs, const Prefetch& prefetch, float result[][LANES]) {
    Vector sums[ROWS][OUTPUTS] = {};
    int i = 0;
    for (; i + LANES <= inputs; i += LANES) {
        Vector values[ROWS];
        for (int row = 0; row < ROWS; ++row) {
            values[row] = load(x + row * row_stride + i);
            keep_in_register(values[row]);
        }
        for (int output = 0; output < OUTPUTS; ++output) {
            prefetch(i, output);
            const Vector weights = load(weights_of(output) + i);
            for (int row = 0; row < ROWS; ++row) sums[row][output] = fma(values[row], weights, sums[row][output]);
        }
    }
    for (int row = 0; row < ROWS && i < inputs; ++row) {
        const Vector values = load_partial(x + row * row_stride + i, inputs - i);
        for (int output = 0; output < OUTPUTS; ++output) {
            sums[row][output] = fma(values, load_partial(weights_of(output) + i, inputs - i), sums[row][output]);
        }
    }
    for (int row = 0; row < ROWS; ++row) {
        sum_lanes<OUTPUTS>(sums[row]);
        store(result[row], sums[row][0]);
    }
}

}  // namespace SPEC_DEC_ISA
}  // namespace spec_dec
