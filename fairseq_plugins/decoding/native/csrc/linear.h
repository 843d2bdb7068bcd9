// Linear layers, whatever the format of their weights.

#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "memory.h"
#include "require.h"
#include "threads.h"

namespace spec_dec {

enum class Activation { NONE, RELU, GELU, SILU };

// Formats of a weight [outputs, inputs]:
// PANELS: [outputs / 16][inputs][16] in float32, a packed copy. The fastest format in float32.
// ROWS: [outputs][inputs] in float32, in PyTorch's own memory. Without a copy, but slower for few rows.
// FP16_PANELS: PANELS in float16, for weights that float16 holds exactly: the same products from half the memory.
// FP32_AMX_TILES, FP16_AMX_TILES: the same numbers, multiplied on AMX tiles (isa/linear_amx.cpp).
// INT8: weights and inputs quantized to int8: several times as fast, with errors of about one percent. For `--int8`,
//   and for drafters, because drafts are verified.
enum class WeightFormat { PANELS, ROWS, FP16_PANELS, FP32_AMX_TILES, FP16_AMX_TILES, INT8 };

// Where a product is stored: output `first` + c of row r at to[r * stride + c], after an activation; or added there.
struct Target {
    float* to;
    int64_t stride;
    Activation activation = Activation::NONE;
    bool add = false;

    // The same target, offset by rows and outputs.
    Target at(int64_t row, int64_t output) const { return {to + row * stride + output, stride, activation, add}; }
};

// A weight [outputs][inputs] in float32, or in int8 with a scale for each output.
struct Weight {
    const void* numbers;
    const float* scale;  // [outputs]; null for float32
    const float* bias;   // [outputs]; null for none
    int inputs, outputs;
    bool is_batch_invariant;            // whether the bits of a row's result must not depend on the number of rows
    std::shared_ptr<const void> owner;  // keeps `numbers` alive for formats that do not copy them
};

class Linear {
public:
    virtual ~Linear() = default;

    // Computes all outputs of x[rows][inputs] on the available threads.
    void run(const float* x, int64_t rows, float* y, Activation activation = Activation::NONE, bool add = false) const {
        run_outputs(x, rows, 0, outputs, {y, outputs, activation, add});
    }

    // Computes the outputs `first` .. `last`; `first` is a multiple of PANEL.
    virtual void run_outputs(const float* x, int64_t rows, int first, int last, const Target& target) const = 0;

    // Returns how far an output of a row may be from that of the weight in float32, in formats that round such a
    // weight.
    virtual float error_bound(const float* /*x*/) const { return 0; }

    // Multiply-adds for each row.
    int64_t multiply_adds() const { return static_cast<int64_t>(inputs) * outputs; }

    const int inputs, outputs;
    const int64_t efficient_rows;  // from which more rows no longer lower the time per row

    static constexpr int PANEL = 16;

protected:
    Linear(const Weight& weight, int64_t efficient_rows)
        : inputs(weight.inputs), outputs(weight.outputs), efficient_rows(efficient_rows) {
        if (weight.bias) bias.assign(weight.bias, weight.bias + outputs);
    }

    const float* bias_at(int output) const { return bias.empty() ? nullptr : bias.data() + output; }

    Floats bias;  // [outputs]; empty for none
};

// Calls `run(row, count)` for blocks of about equal size, at most `most` rows each: a leftover block of one row would
// read all weights for little.
template <typename Run>
void for_each_block(int64_t rows, int64_t most, const Run& run) {
    const int64_t parts = (rows + most - 1) / most;
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t row = part * rows / parts;
        run(row, (part + 1) * rows / parts - row);
    }
}

}  // namespace spec_dec
