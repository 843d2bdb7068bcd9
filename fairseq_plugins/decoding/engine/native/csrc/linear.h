// Linear layers. What reads them does not know the form in which a weight is held.

#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "memory.h"
#include "threads.h"

namespace spec_dec {

enum class Activation { NONE, RELU, GELU, SILU };

// The forms of a weight [outputs, inputs]:
// PANELS: [outputs / 16][inputs][16] in float32. The fastest form in float32; a copy.
// ROWS: [outputs][inputs] where PyTorch holds it: nothing is copied, and products of few rows are slower.
// FP16_PANELS: PANELS in float16, for weights that float16 holds exactly: the same products, half as much to read.
// FP16_AMX_TILES: the same numbers for processors whose tiles multiply them (isa/linear_amx.cpp).
// INT8_ROWS: ROWS in int8, with a scale for each output and float32 inputs: `--int8`.
// INT8_PANELS: in int8, multiplied by inputs that are rounded to int8 as well: several times as fast, off by about one
//   percent; for drafts, which are verified.
enum class WeightFormat { PANELS, ROWS, FP16_PANELS, FP16_AMX_TILES, INT8_ROWS, INT8_PANELS };

// Where results go: row r, output `first` + c of a product is written to (or added to) to[r * stride + c].
struct Target {
    float* to;
    int64_t stride;
    Activation activation = Activation::NONE;
    bool add = false;

    // For results from another row and output on.
    Target at(int64_t row, int64_t output) const { return {to + row * stride + output, stride, activation, add}; }
};

class Linear {
public:
    virtual ~Linear() = default;

    // Computes all outputs of x[rows][inputs], shared among threads.
    void run(const float* x, int64_t rows, float* y, Activation activation = Activation::NONE, bool add = false) const {
        run_outputs(x, rows, 0, outputs, {y, outputs, activation, add});
    }

    // Computes the outputs `first` .. `last`; `first` is a multiple of PANEL.
    virtual void run_outputs(const float* x, int64_t rows, int first, int last, const Target& target) const = 0;

    // Rows from which a product takes no less time per row.
    virtual int64_t efficient_rows() const = 0;

    // Multiply-adds of a row.
    int64_t products() const { return static_cast<int64_t>(inputs) * outputs; }

    const int inputs, outputs;

    static constexpr int PANEL = 16;

protected:
    Linear(int inputs, int outputs, const float* bias)
        : inputs(inputs), outputs(outputs), bias(bias ? bias : nullptr, bias ? bias + outputs : nullptr) {}

    const float* bias_at(int output) const { return bias.empty() ? nullptr : bias.data() + output; }

    std::vector<float> bias;  // of every output; empty for none
};

// A weight [outputs][inputs] in float32, or in int8 with the scale of each output.
struct Weight {
    const void* numbers;
    const float* scale;  // null for float32
    const float* bias;   // null for none
    int inputs, outputs;
    bool is_batch_invariant;            // whether a row's result may never depend on the number of rows
    std::shared_ptr<const void> owner;  // of `numbers`, for formats that read them where they are
};

// Calls `run(row, count)` for parts of about the same size, at most `most` rows each: a part of one row would read all
// weights for little.
template <typename Run>
void in_parts(int64_t rows, int64_t most, const Run& run) {
    const int64_t parts = (rows + most - 1) / most;
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t row = part * rows / parts;
        run(row, (part + 1) * rows / parts - row);
    }
}

}  // namespace spec_dec
