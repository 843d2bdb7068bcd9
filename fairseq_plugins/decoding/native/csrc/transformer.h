// A Transformer: embeddings, layers, final normalisation and vocabulary projection.

#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "linear.h"
#include "memory.h"

namespace spec_dec {

// Layer normalisation; disabled if `weight` is empty.
struct Norm {
    std::vector<float> weight, bias;
    float epsilon = 0;

    explicit operator bool() const { return !weight.empty(); }

    // Normalizes x[rows][width] into y[rows][width], which may be x.
    void run(const float* x, int64_t rows, float* y) const;
};

using SharedLinear = std::shared_ptr<const Linear>;

// The weights of a layer. Those of cross-attention are null in an encoder.
struct Layer {
    SharedLinear self_qkv, self_out, cross_query, cross_key_value, cross_out, fc1, fc2;
    Norm self_norm, cross_norm, final_norm;
    int heads = 1;
    bool normalize_before = false;
    Activation activation = Activation::RELU;
};

// A table of numbers [size][width] in PyTorch's memory.
struct Table {
    const float* numbers = nullptr;
    int64_t size = 0;
    std::shared_ptr<const void> owner;
};

// A table of token embeddings [size][width], in float32 or in int8 with a scale for each row, in PyTorch's memory.
struct Embedding {
    const void* numbers = nullptr;
    const float* scales = nullptr;  // [size]; null for float32
    int64_t size = 0;
    std::shared_ptr<const void> owner, owner_of_scales;
};

// An encoder or decoder. Rows may be of any sentence and position; the caller knows which, and computes attention.
class Transformer {
public:
    int width = 0;
    std::vector<Layer> layers;
    Embedding embedding;
    float embedding_scale = 1;
    Table positions;  // positional embeddings; empty for none. Later positions have the last
    Norm embedding_norm, final_norm;
    SharedLinear projection;    // to the vocabulary; null in an encoder
    SharedLinear screen;        // the projection in int8, which bounds its scores (predictor.h); null for none
    bool scores_later = false;  // whether log-probabilities may be computed after tokens (predictor.h)

    // Throws std::invalid_argument if the shapes of two parts do not match.
    void check() const;

    // Throws std::invalid_argument for a source token outside of the vocabulary.
    void check_tokens(const int64_t* tokens, int64_t count) const;

    // Writes the embedding of a token to x[width].
    void embed(int64_t token, float* x) const;

    // Adds the embedding of a position to x[width].
    void add_position(int64_t position, float* x) const;

    // Computes attention of layer `index` for all rows. projected: [rows][3 * width] (query, key, value) for
    // self-attention, [rows][width] (query) for cross-attention. out: [rows][width].
    using Attend = std::function<void(size_t index, const float* projected, float* out)>;

    // Runs x[rows][width] through all layers, in place.
    //
    // keep(number, x): called with the states before the first layer (number 0) and after each one; may be empty.
    void run(float* x, int64_t rows, const Attend& attend_self, const Attend& attend_source,
             const std::function<void(size_t, const float*)>& keep) const;

    // Multiply-adds for each row, attention excluded.
    int64_t multiply_adds() const;
};

}  // namespace spec_dec
