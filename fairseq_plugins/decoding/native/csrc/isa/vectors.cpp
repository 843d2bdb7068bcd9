// Reductions, layer normalisation and GRU, and the table of all kernels of this instruction set.

#include "gemm.h"

#define SPEC_DEC_TEXT_OF(name) #name
#define SPEC_DEC_TEXT(name) SPEC_DEC_TEXT_OF(name)

namespace spec_dec {
namespace SPEC_DEC_ISA {

void attend(int64_t rows, const float* query, int64_t query_stride, const float* const* slots, const int64_t* last,
            int heads, int width, float* scratch, float* out);
int64_t noisy_argmax(const float* scores, int64_t size, int64_t likely, const NoiseKey& key);

namespace {

bool is_in_tiles(WeightFormat format) {
    return format == WeightFormat::FP32_AMX_TILES || format == WeightFormat::FP16_AMX_TILES;
}

bool supports(WeightFormat format) {
#ifndef SPEC_DEC_FP16
    if (format == WeightFormat::FP16_PANELS) return false;
#endif
    return !is_in_tiles(format) || has_amx_tiles();
}

std::unique_ptr<Linear> make_linear(const Weight& weight, WeightFormat format) {
    if (format == WeightFormat::INT8) return make_int8_linear(weight);
    if (is_in_tiles(format)) return make_amx_linear(weight, format);
    return make_float_linear(weight, format);
}

// Sums `width` terms: add(i, sum) adds those of the vector at i, and rest(i) returns a single one of the remainder.
template <typename Add, typename Rest>
float reduce(int width, const Add& add, const Rest& rest) {
    constexpr int CHAINS = 4;  // independent sums hide the latency of additions
    Vector sums[CHAINS] = {};
    int i = 0;
    for (; i + CHAINS * LANES <= width; i += CHAINS * LANES) {
        for (int c = 0; c < CHAINS; ++c) sums[c] = add(i + c * LANES, sums[c]);
    }
    for (; i + LANES <= width; i += LANES) sums[0] = add(i, sums[0]);
    float sum = reduce_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; i < width; ++i) sum += rest(i);
    return sum;
}

void layer_norm(const float* weight, const float* bias, float epsilon, const float* x, int64_t rows, int width,
                float* y) {
    for (int64_t row = 0; row < rows; ++row, x += width, y += width) {
        const auto add_values = [&](int i, Vector sum) { return sum + load(x + i); };
        const float mean = reduce(width, add_values, [&](int i) { return x[i]; }) / width;
        const auto add_square = [&](int i, Vector sum) {
            const Vector difference = load(x + i) - splat(mean);
            return fma(difference, difference, sum);
        };
        const float squares = reduce(width, add_square, [&](int i) { return (x[i] - mean) * (x[i] - mean); });
        const float scale = 1 / std::sqrt(squares / width + epsilon);
        int i = 0;
        for (; i + LANES <= width; i += LANES) {
            const Vector normal = (load(x + i) - splat(mean)) * splat(scale);
            store(y + i, fma(normal, load(weight + i), load(bias + i)));
        }
        for (; i < width; ++i) y[i] = (x[i] - mean) * scale * weight[i] + bias[i];
    }
}

Vector sigmoid(Vector x) {
    const Vector e = vector_exp(x < 0 ? x : -x), inverse = 1 / (1 + e);
    return x < 0 ? e * inverse : inverse;
}

void gru_step(const float* from_input, const float* from_state, int64_t rows, int width, float* state) {
    for (int64_t row = 0; row < rows; ++row, from_input += 3 * width, from_state += 3 * width, state += width) {
        for (int i = 0; i < width; i += LANES) {
            const int count = std::min(LANES, width - i);
            const auto gate = [&](const float* from, int number) {
                return load_partial(from + number * width + i, count);
            };
            const Vector reset = sigmoid(gate(from_input, 0) + gate(from_state, 0));
            const Vector update = sigmoid(gate(from_input, 1) + gate(from_state, 1));
            const Vector candidate = 2 * sigmoid(2 * (gate(from_input, 2) + reset * gate(from_state, 2))) - 1;  // tanh
            const Vector next = (1 - update) * candidate + update * load_partial(state + i, count);
            std::memcpy(state + i, &next, count * sizeof(float));
        }
    }
}

float sum_exp(const float* scores, int64_t size, float max) {
    Vector sums = {};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) sums += vector_exp(load(scores + i) - splat(max));
    float sum = reduce_sum(sums);
    for (; i < size; ++i) sum += std::exp(scores[i] - max);
    return sum;
}

float max(const float* scores, int64_t size) {
    constexpr int CHAINS = 4;  // independent maxima hide latency
    Vector maxima[CHAINS];
    for (int c = 0; c < CHAINS; ++c) maxima[c] = splat(scores[0]);
    int64_t i = 0;
    for (; i + CHAINS * LANES <= size; i += CHAINS * LANES) {
        for (int c = 0; c < CHAINS; ++c) maxima[c] = vector_max(maxima[c], load(scores + i + c * LANES));
    }
    for (; i + LANES <= size; i += LANES) maxima[0] = vector_max(maxima[0], load(scores + i));
    float result = reduce_max(vector_max(vector_max(maxima[0], maxima[1]), vector_max(maxima[2], maxima[3])));
    for (; i < size; ++i) result = scores[i] > result ? scores[i] : result;
    return result;
}

int64_t first_above(const float* scores, int64_t begin, int64_t size, float threshold) {
    for (; begin + LANES <= size; begin += LANES) {
        const Integers is_above = load(scores + begin) > threshold;
        if (any_lane(is_above)) break;
    }
    while (begin < size && !(scores[begin] > threshold)) ++begin;
    return begin;
}

int64_t argmax(const float* scores, int64_t size) {
    const float best = max(scores, size);
    int64_t i = 0;
    while (i + LANES <= size && !any_lane(load(scores + i) == best)) i += LANES;
    // The bound is for NaN, which equals nothing.
    while (i + 1 < size && scores[i] != best) ++i;
    return i;
}

float gelu(float x) { return 0.5f * x * (1 + std::erf(x * 0.70710678118654752f)); }
float silu(float x) { return x / (1 + std::exp(-x)); }

}  // namespace

void epilogue(float* products, int columns, const float* bias, const Target& target) {
    if (bias) {
        for (int c = 0; c < columns; ++c) products[c] += bias[c];
    }
    // This comparison keeps NaN.
    if (target.activation == Activation::RELU) {
        for (int c = 0; c < columns; ++c) products[c] = products[c] < 0 ? 0 : products[c];
    } else if (target.activation == Activation::GELU) {
        for (int c = 0; c < columns; ++c) products[c] = gelu(products[c]);
    } else if (target.activation == Activation::SILU) {
        for (int c = 0; c < columns; ++c) products[c] = silu(products[c]);
    }
    if (target.add) {
        for (int c = 0; c < columns; ++c) products[c] += target.to[c];
    }
    std::memcpy(target.to, products, columns * sizeof(float));
}

const Kernels& get_kernels() {
    static const Kernels table = {SPEC_DEC_TEXT(SPEC_DEC_ISA) + 4,  // without "isa_"

                                  &supports,
                                  &make_linear,
                                  &attend,
                                  &layer_norm,
                                  &gru_step,
                                  &sum_exp,
                                  &max,
                                  &first_above,
                                  &argmax,
                                  &noisy_argmax};
    return table;
}

}  // namespace SPEC_DEC_ISA
}  // namespace spec_dec
