// Sums, maxima and small layers over vectors, and the table of all kernels of this instruction set.

#include "products.h"

#define SPEC_DEC_TEXT_OF(name) #name
#define SPEC_DEC_TEXT(name) SPEC_DEC_TEXT_OF(name)

namespace spec_dec {
namespace SPEC_DEC_ISA {

void attend(int64_t rows, const float* query, int64_t query_stride, const float* key_values, int64_t slot_stride,
            const int64_t* last, int heads, int width, float* weights, float* out);
void attend_scattered(const float* query, const float* const* key_values, int64_t slots, int heads, int width,
                      float* weights, float* out);

namespace {

bool supports(WeightFormat format) {
#ifndef SPEC_DEC_FP16
    if (format == WeightFormat::FP16_PANELS) return false;
#endif
#ifndef SPEC_DEC_INT8
    if (format == WeightFormat::INT8_PANELS) return false;
#endif
    return format != WeightFormat::FP16_AMX_TILES || has_amx_tiles();
}

std::unique_ptr<Linear> make_linear(const Weight& weight, WeightFormat format) {
    if (format == WeightFormat::INT8_PANELS) return make_int8_linear(weight);
    if (format == WeightFormat::FP16_AMX_TILES) return make_amx_linear(weight);
    return make_float_linear(weight, format);
}

// The sum of `term(i)` over vectors from 0 on, and of `rest(i)` over the numbers after them.
template <typename Term, typename Rest>
float sum_up(int width, const Term& term, const Rest& rest) {
    constexpr int CHAINS = 4;  // a sum waits for the one before
    Vector sums[CHAINS] = {};
    int i = 0;
    for (; i + CHAINS * LANES <= width; i += CHAINS * LANES) {
        for (int c = 0; c < CHAINS; ++c) sums[c] = term(i + c * LANES, sums[c]);
    }
    for (; i + LANES <= width; i += LANES) sums[0] = term(i, sums[0]);
    float sum = sum_of_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; i < width; ++i) sum += rest(i);
    return sum;
}

void normalize(const float* weight, const float* bias, float epsilon, const float* x, int64_t rows, int width,
               float* y) {
    for (int64_t row = 0; row < rows; ++row, x += width, y += width) {
        const auto load_sum = [&](int i, Vector sum) { return sum + load(x + i); };
        const float mean = sum_up(width, load_sum, [&](int i) { return x[i]; }) / width;
        const auto add_square = [&](int i, Vector sum) {
            const Vector difference = load(x + i) - splat(mean);
            return fma(difference, difference, sum);
        };
        const float squares = sum_up(width, add_square, [&](int i) { return (x[i] - mean) * (x[i] - mean); });
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
    const Vector e = exponential(x < 0 ? x : -x), share = 1 / (1 + e);
    return x < 0 ? e * share : share;
}

void update_gru(const float* read, const float* recurrent, int64_t rows, int width, float* state) {
    for (int64_t row = 0; row < rows; ++row, read += 3 * width, recurrent += 3 * width, state += width) {
        for (int i = 0; i < width; i += LANES) {
            const int count = std::min(LANES, width - i);
            const auto part = [&](const float* from, int number) {
                return load_some(from + number * width + i, count);
            };
            const Vector reset = sigmoid(part(read, 0) + part(recurrent, 0));
            const Vector update = sigmoid(part(read, 1) + part(recurrent, 1));
            const Vector fresh = 2 * sigmoid(2 * (part(read, 2) + reset * part(recurrent, 2))) - 1;  // tanh
            const Vector next = (1 - update) * fresh + update * load_some(state + i, count);
            std::memcpy(state + i, &next, count * sizeof(float));
        }
    }
}

float sum_exponentials(const float* scores, int64_t size, float top) {
    Vector sums = {};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) sums += exponential(load(scores + i) - splat(top));
    float sum = sum_of_lanes(sums);
    for (; i < size; ++i) sum += std::exp(scores[i] - top);
    return sum;
}

float highest(const float* scores, int64_t size) {
    constexpr int CHAINS = 4;  // a maximum waits for the one before
    Vector found[CHAINS];
    for (int c = 0; c < CHAINS; ++c) found[c] = splat(scores[0]);
    int64_t i = 0;
    for (; i + CHAINS * LANES <= size; i += CHAINS * LANES) {
        for (int c = 0; c < CHAINS; ++c) found[c] = larger(found[c], load(scores + i + c * LANES));
    }
    for (; i + LANES <= size; i += LANES) found[0] = larger(found[0], load(scores + i));
    float result = highest_lane(larger(larger(found[0], found[1]), larger(found[2], found[3])));
    for (; i < size; ++i) result = scores[i] > result ? scores[i] : result;
    return result;
}

int64_t first_above(const float* scores, int64_t begin, int64_t size, float least) {
    for (; begin + LANES <= size; begin += LANES) {
        const Integers is_above = load(scores + begin) > least;
        if (any_lane(is_above)) break;
    }
    while (begin < size && !(scores[begin] > least)) ++begin;
    return begin;
}

int64_t first_best(const float* scores, int64_t size) {
    const float best = highest(scores, size);
    int64_t i = 0;
    while (i + LANES <= size && !any_lane(load(scores + i) == best)) i += LANES;
    // Bounded, because nothing equals NaN.
    while (i + 1 < size && scores[i] != best) ++i;
    return i;
}

float gelu(float x) { return 0.5f * x * (1 + std::erf(x * 0.70710678118654752f)); }
float silu(float x) { return x / (1 + std::exp(-x)); }

}  // namespace

void finish(float* products, int columns, const float* scale, const float* bias, const Target& target) {
    if (scale) {
        for (int c = 0; c < columns; ++c) products[c] *= scale[c];
    }
    if (bias) {
        for (int c = 0; c < columns; ++c) products[c] += bias[c];
    }
    // NaN stays NaN.
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
    // The name without "isa_".
    static const Kernels table = {SPEC_DEC_TEXT(SPEC_DEC_ISA) + 4,
                                  &supports,
                                  &make_linear,
                                  &attend,
                                  &attend_scattered,
                                  &normalize,
                                  &update_gru,
                                  &sum_exponentials,
                                  &highest,
                                  &first_above,
                                  &first_best};
    return table;
}

}  // namespace SPEC_DEC_ISA
}  // namespace spec_dec
