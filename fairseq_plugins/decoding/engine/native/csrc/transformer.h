// Transformer layers, with what stands before the first and after the last one.

#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "linear.h"
#include "memory.h"

namespace spec_dec {

// Layer normalisation; without weights it is none.
struct Norm {
    std::vector<float> weight, bias;
    float epsilon = 0;

    explicit operator bool() const { return !weight.empty(); }

    // y[rows][width] of x[rows][width], which may be the same.
    void run(const float* x, int64_t rows, float* y) const;
};

using SharedLinear = std::shared_ptr<const Linear>;

// The weights of a layer; those of cross-attention are null in an encoder.
struct Layer {
    SharedLinear self_qkv, self_out, cross_query, cross_key_value, cross_out, fc1, fc2;
    Norm self_norm, cross_norm, final_norm;
    int heads = 1;
    bool normalize_before = false;
    Activation activation = Activation::RELU;
};

// A table of vectors [size][width] that PyTorch holds.
struct Table {
    const float* numbers = nullptr;
    int64_t size = 0;
    std::shared_ptr<const void> owner;
};

// An encoder or decoder. Rows of a step stand anywhere: how they attend is said by those who lay them out.
class Transformer {
public:
    int width = 0;
    std::vector<Layer> layers;
    Table embedding;  // of tokens
    float embedding_scale = 1;
    Table positions;                             // later positions have the last embedding; empty for none
    bool adds_positions_to_every_layer = false;  // --positions-every-layer of drafters
    Norm embedding_norm, final_norm;
    SharedLinear projection;  // to the vocabulary; null in an encoder

    // Checks that all parts fit each other. Throws std::invalid_argument.
    void check() const;

    // Writes the embedding of a token to x[width].
    void embed(int64_t token, float* x) const;

    // Adds the embedding of a position to x[width].
    void add_position(int64_t position, float* x) const;

    // Attention of all rows in layer `index`: from projected rows (of 3 * width, or of width) to out[rows][width].
    using Attend = std::function<void(size_t index, const float* projected, float* out)>;

    // Runs x[rows][width] through all layers, in place.
    //
    // positions: [rows] where they are added to every layer, else null.
    // keep(number, x): called with the states before the first (0) and after every layer; may be empty.
    void run(float* x, int64_t rows, const int64_t* positions, const Attend& attend_self, const Attend& attend_source,
             const std::function<void(size_t, const float*)>& keep) const;

    // Multiply-adds of a row.
    int64_t products() const;
};

}  // namespace spec_dec
