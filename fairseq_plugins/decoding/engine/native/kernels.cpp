// Transformer layers on a CPU, for the few rows that a decoding step has: at that size most of the time of PyTorch's own
// operations is spent between them. Compiled at first use and called through ctypes: see build.py.
//
// Cores: the sentences of a batch are independent of each other, so every thread runs all layers for some of them. Of a
// single sentence the outputs of a large layer are shared out. No sum depends on how many threads there are.
//
// Every tensor is contiguous, and float32 but for some weights. Shapes: R = B * T rows of width D, H heads of width
// W = D / H. A weight has one of five forms:
// IN_PANELS: [outputs / 16][inputs][16], panels of 16 outputs, the last one filled up with zeros. The fastest, but a copy.
// HALVES_IN_PANELS: the same in float16, for weights that are the same numbers in it, as those of a model that was saved in
//   half precision are. The products are those of IN_PANELS bit by bit, with half as much to read.
// IN_ROWS: [outputs][inputs], as PyTorch has it. The sums over lanes at the end cost little where there are many inputs.
// HALVES_IN_TILES: [outputs / 16][inputs / 2][16][2] of the same numbers times 1024, for processors whose tiles multiply them:
//   see tiles.h. The inputs are a multiple of 32.
// INT8_IN_ROWS: the same in int8, to be multiplied by a scale of each output.
// INT8_IN_PANELS: [outputs / 16][inputs / 4][16][4] in int8, to be multiplied by x rounded to int8 as well. Several times
//   as fast as the others, and off by about one percent: for drafts, which are verified.

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "threads.h"

#ifndef KERNELS_VERSION
#define KERNELS_VERSION ""
#endif

#ifdef __AVX2__
#include <immintrin.h>
#endif
#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
#define UNSIGNED_TIMES_SIGNED
#define INT8_PRODUCTS
#elif defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__))
#define INT8_PRODUCTS
#endif

#include "tiles.h"

namespace {

constexpr int PANEL = 16;
#ifdef __AVX512F__
constexpr int LANES = 16, ACCUMULATORS = 24, MAX_ROWS = 12;
#else
constexpr int LANES = 8, ACCUMULATORS = 12, MAX_ROWS = 6;
#endif

typedef float Vector __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));

inline Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
inline void store(float* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }
inline Vector splat(float value) { return value - Vector{}; }

typedef int32_t Indices __attribute__((vector_size(LANES * sizeof(int32_t))));

inline Vector load(const int8_t* from) {
    // Not by __builtin_convertvector, for which GCC 12 goes through the lanes one by one.
#if defined(__AVX512F__)
    return (Vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
    return (Vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
    Vector result;
    for (int lane = 0; lane < LANES; ++lane) result[lane] = from[lane];
    return result;
#endif
}

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__F16C__))
#define HALVES
#endif

// A number in float16.
struct Half {
    uint16_t bits;
};

#ifdef HALVES
inline Vector load(const Half* from) {
#ifdef __AVX512F__
    return (Vector)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#else
    return (Vector)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#endif
}
#endif

// The first `count` numbers of a vector, and zeros.
template <typename Number>
inline Vector load_some(const Number* from, int64_t count) {
    Number numbers[LANES] = {};
    std::memcpy(numbers, from, count * sizeof(Number));
    return load(numbers);
}

// Where there are registers enough for it, keeps a value in one: GCC would load it anew for every use.
inline void keep_in_register(Vector& value) {
#ifdef __AVX512F__
    asm("" : "+v"(value));
#endif
}

// A value that is there before the next step, so that no compiler makes another sum of several steps: scores must not
// depend on how many rows are computed together.
inline void keep_order(Vector& value) {
#if defined(__AVX512F__)
    asm("" : "+v"(value));
#elif defined(__AVX__)
    asm("" : "+x"(value));
#else
    asm("" : "+m"(value));
#endif
}

// Sums of neighbours, those of `a` in the lower half and those of `b` in the upper one.
template <int... LANE>
inline Vector pair_sums(Vector a, Vector b, std::integer_sequence<int, LANE...>) {
#ifdef __clang__
    return __builtin_shufflevector(a, b, (2 * LANE)...) + __builtin_shufflevector(a, b, (2 * LANE + 1)...);
#else
    return __builtin_shuffle(a, b, Indices{(2 * LANE)...}) + __builtin_shuffle(a, b, Indices{(2 * LANE + 1)...});
#endif
}

// The sums over the lanes of COUNT vectors, in sums[0]. The order of the additions does not depend on COUNT.
template <int COUNT, int STEP = LANES>
__attribute__((always_inline)) inline void sum_lanes(Vector* sums) {
    if constexpr (STEP > 1) {
        for (int pair = 0; pair < (COUNT + 1) / 2; ++pair) {
            const Vector second = sums[2 * pair + 1 < COUNT ? 2 * pair + 1 : 2 * pair];
            sums[pair] = pair_sums(sums[2 * pair], second, std::make_integer_sequence<int, LANES>());
        }
        sum_lanes<(COUNT + 1) / 2, STEP / 2>(sums);
    }
}

// Every lane has the value of the one STEP further.
template <int STEP, int... LANE>
inline Vector turn_lanes(Vector values, std::integer_sequence<int, LANE...>) {
#ifdef __clang__
    return __builtin_shufflevector(values, values, ((LANE + STEP) % LANES)...);
#else
    return __builtin_shuffle(values, Indices{((LANE + STEP) % LANES)...});
#endif
}

// The highest of the lanes.
template <int STEP = LANES / 2>
__attribute__((always_inline)) inline float highest_lane(Vector values) {
    if constexpr (STEP > 0) {
        const Vector others = turn_lanes<STEP>(values, std::make_integer_sequence<int, LANES>());
        return highest_lane<STEP / 2>(values > others ? values : others);
    }
    return values[0];
}

}  // namespace

extern "C" {

enum Activation { NONE = 0, RELU = 1, GELU = 2 };
enum Form { IN_PANELS = 0, IN_ROWS = 1, INT8_IN_ROWS = 2, INT8_IN_PANELS = 3, HALVES_IN_PANELS = 4, HALVES_IN_TILES = 5 };

struct Linear {
    const void* weight;
    const float* bias;   // null for none
    const float* scale;  // [outputs], of int8 weights
    const int32_t* sums;  // [outputs filled up to panels], of the weights of an output, in INT8_IN_PANELS
    int32_t inputs, outputs, form;
};

struct Norm {
    const float* weight;
    const float* bias;
    float epsilon;
};

struct Layer {
    Linear self_qkv, self_out, cross_query, cross_out, fc1, fc2;
    Norm self_norm, cross_norm, final_norm;
    int32_t heads, normalize_before, activation, has_cross;
};

// Keys and values [sentences][capacity][2][D] of all layers: a cache, or what cross-attention reads.
struct Memory {
    float* key_value;        // of the first layer
    int64_t layer;           // from one layer to the next, in numbers
    int64_t sentences, capacity;
    int64_t used;            // slots that may be attended to at all
    const uint8_t* allowed;  // [sentences][used], 0 where nobody may attend; null where all may
};

// Where the R rows of a step stand: see ../layout.py. Either a chain, `width` rows of every sentence from lengths[b] on, or
// the four arrays [R] and a width of 0.
struct Layout {
    int64_t rows, width;
    const int64_t* lengths;       // [B] of a chain
    const int64_t* sentence;      // row of the batch
    const int64_t* position;      // of the positional embedding
    const int64_t* slot;          // of the cache, where key and value are written
    const int64_t* last_visible;  // last slot that a row attends to; of a chain null for its own
};

// What stands before the first layer of a decoder, and after the last one.
struct Ends {
    const float* embedding;  // [V][D]
    float scale;
    int64_t mask_id;         // V: the token that is a drafter's mask
    const float* positions;  // [position_count][D], null for none
    int64_t position_count;  // for later positions the last embedding is taken
    Norm embedding_norm, final_norm;  // weight null for none
};

// The tokens of a step.
struct Input {
    const int64_t* tokens;  // [B][T - masks], or [R]
    int64_t masks;          // of a chain: so many masks stand after them
    const float* fed;       // what masks are fed, by sentence and position; null where there is no mask
    int64_t sentence, position;   // strides of it, 0 where all are fed the same
    int64_t fed_sentences, fed_positions;
    const float* added;     // [B][added_width][D], added to the embedded input; null for nothing
    int64_t added_width;    // T, or 1
};

// What fairseq's options allow at a position of the output.
struct Limits {
    int64_t vocabulary, pad, unk, eos;
    int64_t min_len, max_len;  // no EOS before the first, nothing else from the second on
    float unk_penalty;
};

// How the tokens of a draft are chosen from left to right: see models/transition.py.
struct Path {
    const int64_t* ids;   // [N], of the tokens that have scores
    int64_t size;         // N
    const float* before;  // [vocabulary][rank], of the token before; null where every token is chosen by itself
    int64_t vocabulary;
    Linear after;                          // rank to N
    Linear of_hidden, of_before, of_state;  // D, rank and S to 3 S: the cell of the state, reset, update and new
    Linear to_rank;                        // S to rank; its weight null where there is no state
};

// The next token after every row of a step: the best that the limits allow, or, with a path, a draft.
struct Predict {
    Linear projection;
    Limits limits;
    float* scores;     // [R][V]
    int64_t* best;     // [R]
    float* log_probs;  // [R], of the best; with a path null where nobody asks
    const Path* path;  // null for none
    const int64_t* first;  // [B], with a path: the token before each sentence's first row
};

}  // extern "C"

namespace {

// Of a number of a weight.
int64_t bytes_of(int32_t form) {
    if (form == INT8_IN_ROWS || form == INT8_IN_PANELS) return sizeof(int8_t);
    return form == HALVES_IN_PANELS || form == HALVES_IN_TILES ? sizeof(Half) : sizeof(float);
}

// Not inlined: in several loops -ffast-math would make several orders of these operations.
__attribute__((noinline)) float gelu(float x) { return 0.5f * x * (1 + std::erf(x * 0.70710678118654752f)); }

// As many panels as have accumulators in the registers, the more the fewer the rows.
template <int ROWS, int FITTING = ACCUMULATORS / (ROWS * (PANEL / LANES))>
constexpr int PANELS_OF = FITTING >= 4 ? 4 : FITTING >= 2 ? 2 : 1;

// Some panels of outputs for ROWS rows, each vector of them to put(row, vector, sums).
// Strides are from one row of x to the next, from one panel to the next, and within it from one input to the next.
template <int ROWS, int PANELS, typename Weight, typename Put>
__attribute__((always_inline)) inline void multiply_panels(const float* x, int64_t row_stride, int64_t inputs,
                                                           const Weight* panels, int64_t panel_stride,
                                                           int64_t input_stride, const Put& put) {
    constexpr int VECTORS = PANELS * PANEL / LANES, IN_PANEL = PANEL / LANES;
    Vector sums[ROWS][VECTORS] = {};
    for (int64_t i = 0; i < inputs; ++i) {
        const auto weight = [&](int v) {
            const Weight* from = panels + v / IN_PANEL * panel_stride + i * input_stride + v % IN_PANEL * LANES;
            // What the same place of the next panels has: several rows take long enough for it to come.
            if (ROWS > 1 && v % IN_PANEL == 0) __builtin_prefetch(from + PANELS * panel_stride, 0, 2);
            return load(from);
        };
        // In registers are those of which there are fewer.
        if constexpr (ROWS < VECTORS) {
            Vector values[ROWS];
            for (int row = 0; row < ROWS; ++row) values[row] = splat(x[row * row_stride + i]);
            for (int v = 0; v < VECTORS; ++v) {
                const Vector weights = weight(v);
                for (int row = 0; row < ROWS; ++row) sums[row][v] += values[row] * weights;
            }
        } else {
            Vector weights[VECTORS];
            for (int v = 0; v < VECTORS; ++v) weights[v] = weight(v);
            for (int row = 0; row < ROWS; ++row) {
                const Vector value = splat(x[row * row_stride + i]);
                for (int v = 0; v < VECTORS; ++v) sums[row][v] += value * weights[v];
            }
        }
    }
    for (int row = 0; row < ROWS; ++row) {
        for (int v = 0; v < VECTORS; ++v) put(row, v, sums[row][v]);
    }
}

// What becomes of `columns` products of one row: scaled, with bias, activated, and added to what is there where `add`.
// One thing after the other, so that each is done in vectors; `from` is changed. Not inlined: it is called for whole
// panels, and in every place it would be compiled for many seconds more.
__attribute__((noinline)) void finish(const Linear& layer, float* from, int begin, int columns, float* to,
                                      int activation, bool add) {
    if (layer.scale) {
        for (int c = 0; c < columns; ++c) from[c] *= layer.scale[begin + c];
    }
    if (layer.bias) {
        for (int c = 0; c < columns; ++c) from[c] += layer.bias[begin + c];
    }
    if (activation == RELU) {
        for (int c = 0; c < columns; ++c) from[c] = from[c] > 0 ? from[c] : 0;
    } else if (activation == GELU) {
        for (int c = 0; c < columns; ++c) from[c] = gelu(from[c]);
    }
    if (add) {
        for (int c = 0; c < columns; ++c) from[c] += to[c];
    }
    std::memcpy(to, from, columns * sizeof(float));
}

// The same for a vector of products that are not scaled, without gelu: most are, and in registers it costs next to nothing.
__attribute__((always_inline)) inline void finish_vector(Vector sums, const float* bias, float* to, bool is_relu, bool add) {
    if (bias) sums += load(bias);
    if (is_relu) sums = sums > 0 ? sums : Vector{};
    // Not first the bias and what is there.
    keep_order(sums);
    store(to, add ? sums + load(to) : sums);
}

// y[ROWS][outputs] = activation(x[ROWS][inputs] * weight + bias), added to y where `add`; the weight in panels. Of the
// outputs `begin` .. `end`, which begin with a panel.
template <typename Weight, int ROWS>
void panels_by_rows(const Linear& layer, const float* x, int begin, int end, float* y, int activation, bool add) {
    const auto* weight = static_cast<const Weight*>(layer.weight);
    constexpr int PANELS = PANELS_OF<ROWS>;
    const int64_t size = layer.inputs, panel = size * PANEL;
    float result[ROWS][PANELS * PANEL], single[ROWS][PANEL];
    const bool is_plain = activation != GELU && !layer.scale;
    for (; begin + PANELS * PANEL <= end; begin += PANELS * PANEL) {
        const auto put = [&](int row, int v, Vector sums) {
            float* to = y + row * layer.outputs + begin + v * LANES;
            if (is_plain) {
                finish_vector(sums, layer.bias ? layer.bias + begin + v * LANES : nullptr, to, activation == RELU, add);
            } else {
                store(result[row] + v * LANES, sums);
            }
        };
        multiply_panels<ROWS, PANELS>(x, size, size, weight + begin * size, panel, PANEL, put);
        for (int r = 0; !is_plain && r < ROWS; ++r) {
            finish(layer, result[r], begin, PANELS * PANEL, y + r * layer.outputs + begin, activation, add);
        }
    }
    for (; begin < end; begin += PANEL) {
        const int columns = end - begin < PANEL ? end - begin : PANEL;
        multiply_panels<ROWS, 1>(x, size, size, weight + begin * size, panel, PANEL,
                                 [&](int row, int v, Vector sums) { store(single[row] + v * LANES, sums); });
        for (int r = 0; r < ROWS; ++r) {
            finish(layer, single[r], begin, columns, y + r * layer.outputs + begin, activation, add);
        }
    }
}

// Products result[ROWS][OUTPUTS ..] of rows of x and rows of a weight; strides are from one row to the next.
template <typename Weight, int ROWS, int OUTPUTS, bool FROM_MEMORY = true>
__attribute__((always_inline)) inline void multiply_rows(const float* x, int64_t row_stride, const Weight* weight,
                                                         int64_t stride, int inputs, float result[][LANES]) {
    Vector sums[ROWS][OUTPUTS] = {};
    int i = 0;
    for (; i + LANES <= inputs; i += LANES) {
        Vector values[ROWS];
        for (int row = 0; row < ROWS; ++row) {
            values[row] = load(x + row * row_stride + i);
            keep_in_register(values[row]);
        }
        for (int output = 0; output < OUTPUTS; ++output) {
            // What comes two tiles later, in the order of memory: the processor does not see that far ahead by itself.
            if (FROM_MEMORY) __builtin_prefetch(weight + OUTPUTS * (2 * stride + i) + output * LANES, 0, 2);
            const Vector weights = load(weight + output * stride + i);
            for (int row = 0; row < ROWS; ++row) sums[row][output] += values[row] * weights;
        }
        // For some processors GCC rounds between product and sum where there is a single chain of them, and only there.
        if constexpr (ROWS * OUTPUTS == 1) keep_order(sums[0][0]);
    }
    for (int row = 0; row < ROWS && i < inputs; ++row) {
        const Vector values = load_some(x + row * row_stride + i, inputs - i);
        for (int output = 0; output < OUTPUTS; ++output) {
            sums[row][output] += values * load_some(weight + output * stride + i, inputs - i);
            keep_order(sums[row][output]);
        }
    }
    for (int row = 0; row < ROWS; ++row) {
        sum_lanes<OUTPUTS>(sums[row]);
        store(result[row], sums[row][0]);
    }
}

// So many rows of x, and outputs of the weight, have their sums in registers.
constexpr int FEW_ROWS = 3, MORE_ROWS = 6, MAX_OUTPUTS = ACCUMULATORS / FEW_ROWS;
template <int ROWS>
constexpr int OUTPUTS_OF = ROWS <= FEW_ROWS ? MAX_OUTPUTS : ACCUMULATORS / MORE_ROWS;

// The same as panels_by_rows for the outputs `begin` .. `end` of a weight [outputs][inputs].
template <typename Weight, int ROWS>
void some_outputs(const Linear& layer, const float* x, int begin, int end, float* y, int activation, bool add) {
    constexpr int OUTPUTS = OUTPUTS_OF<ROWS>;
    const int64_t size = layer.inputs;
    const auto* weight = static_cast<const Weight*>(layer.weight) + begin * size;
    float result[ROWS][LANES];
    const auto put = [&](int columns) {
        for (int r = 0; r < ROWS; ++r) {
            finish(layer, result[r], begin, columns, y + r * layer.outputs + begin, activation, add);
        }
    };
    for (; begin + OUTPUTS <= end; begin += OUTPUTS, weight += OUTPUTS * size) {
        multiply_rows<Weight, ROWS, OUTPUTS>(x, size, weight, size, layer.inputs, result);
        put(OUTPUTS);
    }
    for (; begin < end; ++begin, weight += size) {
        multiply_rows<Weight, ROWS, 1>(x, size, weight, size, layer.inputs, result);
        put(1);
    }
}

using SomeOutputs = void (*)(const Linear&, const float*, int, int, float*, int, bool);

template <typename Weight, int... COUNTS>
constexpr std::array<SomeOutputs, sizeof...(COUNTS)> panels_table(std::integer_sequence<int, COUNTS...>) {
    return {panels_by_rows<Weight, COUNTS + 1>...};
}
template <typename Weight, int... COUNTS>
constexpr std::array<SomeOutputs, sizeof...(COUNTS)> outputs_table(std::integer_sequence<int, COUNTS...>) {
    return {some_outputs<Weight, COUNTS + 1>...};
}
template <typename Weight>
constexpr auto PANELS_BY_ROWS = panels_table<Weight>(std::make_integer_sequence<int, MAX_ROWS>());
template <typename Weight>
constexpr auto SOME_OUTPUTS = outputs_table<Weight>(std::make_integer_sequence<int, MORE_ROWS>());

// Calls `run` for parts of about the same size, at most `most` rows each: a part of one row would read all weights for
// little.
template <typename Run>
void in_parts(int64_t rows, int64_t most, const Run& run) {
    const int64_t parts = (rows + most - 1) / most;
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t row = part * rows / parts;
        run(row, (part + 1) * rows / parts - row);
    }
}

// Every weight is read from memory once; for further rows it is in the cache.
template <typename Weight>
void linear_in_rows(const Linear& layer, const float* x, int64_t rows, int first, int last, float* y, int activation,
                    bool add) {
    for (int begin = first; begin < last; begin += MAX_OUTPUTS) {
        const int end = std::min(begin + MAX_OUTPUTS, last);
        in_parts(rows, MORE_ROWS, [&](int64_t row, int64_t count) {
            SOME_OUTPUTS<Weight>[count - 1](layer, x + row * layer.inputs, begin, end, y + row * layer.outputs, activation,
                                            add);
        });
    }
}

#ifdef INT8_PRODUCTS

typedef int32_t Integers __attribute__((vector_size(LANES * sizeof(int32_t)), aligned(sizeof(int32_t)), may_alias));

constexpr int INPUTS_AT_ONCE = 4;

// Processors multiply unsigned by signed bytes. What is added to inputs, which are rounded to -127 .. 127, for that: where
// there is no sum of four products in 32 bits, nothing, but their signs go to the weights. Two products then fit 16 bits,
// at most 2 * 127 * 127, so every processor comes to the same sums.
#ifdef UNSIGNED_TIMES_SIGNED
constexpr int SHIFT = 128;
#else
constexpr int SHIFT = 0;
#endif

// Adds to every lane of `sums` four products of inputs, as `round_row` leaves them, and weights.
inline Integers add_products(Integers sums, Integers inputs, Integers weights) {
#if defined(__AVX512VNNI__)
    return (Integers)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)inputs, (__m512i)weights);
#elif defined(UNSIGNED_TIMES_SIGNED)
    return (Integers)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)inputs, (__m256i)weights);
#elif defined(__AVX512F__)
    const __m512i given = (__m512i)inputs, signs = (__m512i)weights;
    const __m512i turned = _mm512_mask_sub_epi8(signs, _mm512_movepi8_mask(given), _mm512_setzero_si512(), signs);
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(given), turned);
    return sums + (Integers)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#else
    const __m256i given = (__m256i)inputs;
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(given), _mm256_sign_epi8((__m256i)weights, given));
    return sums + (Integers)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
}

// A row rounded, with zeros up to a multiple of four; returns what the result is to be multiplied by.
inline float round_row(const float* x, int inputs, uint8_t* rounded) {
    float largest = 0;
    for (int i = 0; i < inputs; ++i) largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
    const float steps = largest > 0 ? 127 / largest : 0;
    constexpr int ABOVE_ZERO = 128;  // so that to cut off digits rounds down
    for (int i = 0; i < inputs; ++i) {
        rounded[i] = static_cast<uint8_t>(static_cast<int>(x[i] * steps + ABOVE_ZERO + 0.5f) - ABOVE_ZERO + SHIFT);
    }
    for (int i = inputs; i % INPUTS_AT_ONCE; ++i) rounded[i] = SHIFT;
    return largest / 127;
}

// y[ROWS][outputs] of rounded rows, `size` bytes each.
template <int ROWS>
void int8_panels(const Linear& layer, const uint8_t* x, int size, const float* scales, int first, int last, float* y,
                 int activation, bool add) {
    constexpr int IN_PANEL = PANEL / LANES, PANELS = PANELS_OF<ROWS>, VECTORS = PANELS * IN_PANEL;
    const int64_t panel_bytes = static_cast<int64_t>(size) * PANEL, panels = (last + PANEL - 1) / PANEL;
    const auto* weight = static_cast<const int8_t*>(layer.weight);
    const auto multiply = [&](auto several, int64_t panel) {
        constexpr int COUNT = decltype(several)::value;
        Integers sums[ROWS][COUNT] = {};
        for (int i = 0; i < size; i += INPUTS_AT_ONCE) {
            Integers weights[COUNT];
            for (int v = 0; v < COUNT; ++v) {
                const int8_t* from = weight + (panel + v / IN_PANEL) * panel_bytes + i * PANEL;
                weights[v] = *reinterpret_cast<const Integers*>(from + v % IN_PANEL * LANES * INPUTS_AT_ONCE);
                // What the same place of the next panels has.
                if (v % IN_PANEL == 0) __builtin_prefetch(from + PANELS * panel_bytes, 0, 2);
            }
            for (int row = 0; row < ROWS; ++row) {
                int32_t four;
                std::memcpy(&four, x + static_cast<int64_t>(row) * size + i, INPUTS_AT_ONCE);
                const Integers inputs = four - Integers{};
                for (int v = 0; v < COUNT; ++v) sums[row][v] = add_products(sums[row][v], inputs, weights[v]);
            }
        }
        const int begin = panel * PANEL, left = last - begin;
        const int columns = left < COUNT * LANES ? left : COUNT * LANES;
        for (int row = 0; row < ROWS; ++row) {
            int32_t whole[COUNT * LANES];
            float result[COUNT * LANES];
            std::memcpy(whole, sums[row], sizeof(whole));
            for (int c = 0; c < COUNT * LANES; ++c) result[c] = (whole[c] - SHIFT * layer.sums[begin + c]) * scales[row];
            finish(layer, result, begin, columns, y + static_cast<int64_t>(row) * layer.outputs + begin, activation, add);
        }
    };
    int64_t panel = first / PANEL;
    for (; panel + PANELS <= panels; panel += PANELS) multiply(std::integral_constant<int, VECTORS>(), panel);
    for (; panel < panels; ++panel) multiply(std::integral_constant<int, IN_PANEL>(), panel);
}

using Int8Panels = void (*)(const Linear&, const uint8_t*, int, const float*, int, int, float*, int, bool);

template <int... COUNTS>
constexpr std::array<Int8Panels, sizeof...(COUNTS)> int8_table(std::integer_sequence<int, COUNTS...>) {
    return {int8_panels<COUNTS + 1>...};
}
constexpr auto INT8_PANELS = int8_table(std::make_integer_sequence<int, MAX_ROWS>());

// Rows of x rounded, and what their products are to be multiplied by: once, however many threads multiply.
struct RoundedRows {
    int size;
    std::vector<uint8_t> numbers;
    std::vector<float> scales;

    RoundedRows(const float* x, int64_t rows, int inputs)
        : size((inputs + INPUTS_AT_ONCE - 1) / INPUTS_AT_ONCE * INPUTS_AT_ONCE), numbers(rows * size), scales(rows) {
        for (int64_t row = 0; row < rows; ++row) {
            scales[row] = round_row(x + row * inputs, inputs, numbers.data() + row * size);
        }
    }
};

#endif

constexpr int64_t PANELS_TOGETHER_BYTES = 1 << 16, MIN_PANELS_TOGETHER = 4;

// So many products take long enough for another thread to help. Those of a single row wait for their weights, and take as
// long as those of so many.
constexpr int64_t MIN_PRODUCTS = 1 << 19, WAITING_ROWS = 8;

// Calls `run` for parts of 0 .. `count`, none of which depends on another, on as many threads as `products` of each are
// worth.
template <typename Run>
void share(int64_t count, int64_t products, const Run& run) {
    const int64_t parts = std::min({threads::available(), count, count * products / MIN_PRODUCTS});
    if (parts <= 1) return run(0, count);
    threads::run(parts, [&](int64_t part) { run(part * count / parts, (part + 1) * count / parts); });
}

// The same for the outputs of a layer, in whole panels.
template <typename Run>
void share_outputs(const Linear& layer, int64_t rows, const Run& run) {
    const int64_t products = std::max(rows, WAITING_ROWS) * layer.inputs * PANEL;
    // Products of int8 take half the time, or less.
    const int64_t in_time = layer.form == INT8_IN_PANELS ? products / 2 : products;
    share((layer.outputs + PANEL - 1) / PANEL, in_time, [&](int64_t first, int64_t last) {
        run(static_cast<int>(first * PANEL), std::min(static_cast<int>(last * PANEL), layer.outputs));
    });
}

// Some panels at a time, which stay in the processor's nearest cache for all rows.
template <typename Weight>
void linear_in_panels(const Linear& layer, const float* x, int64_t rows, int begin, int end, float* y, int activation,
                      bool add) {
    const int64_t fitting = PANELS_TOGETHER_BYTES / (layer.inputs * PANEL * static_cast<int64_t>(sizeof(Weight)));
    const int together = PANEL * static_cast<int>(std::max<int64_t>(fitting, MIN_PANELS_TOGETHER));
    for (int from = begin; from < end; from += together) {
        const int to = std::min(from + together, end);
        in_parts(rows, MAX_ROWS, [&](int64_t row, int64_t count) {
            PANELS_BY_ROWS<Weight>[count - 1](layer, x + row * layer.inputs, from, to, y + row * layer.outputs, activation,
                                              add);
        });
    }
}

#ifdef TILES

// What becomes of `columns` sums of some rows, which are `stride` numbers apart; `y` is the first row's.
void finish_sums(const Linear& layer, float* from, int stride, int begin, int columns, float* y, int64_t rows, int activation,
                 bool add) {
    const bool is_plain = activation != GELU && !layer.scale;
    const float* bias = layer.bias ? layer.bias + begin : nullptr;
    for (int64_t row = 0; row < rows; ++row, from += stride) {
        float* to = y + row * layer.outputs + begin;
        const int whole = is_plain ? columns / LANES * LANES : 0;
        for (int c = 0; c < whole; c += LANES) {
            const Vector sums = load(from + c) * tiles::RESULT_SCALE;
            finish_vector(sums, bias ? bias + c : nullptr, to + c, activation == RELU, add);
        }
        for (int c = whole; c < columns; ++c) from[c] *= tiles::RESULT_SCALE;
        if (whole < columns) finish(layer, from + whole, begin + whole, columns - whole, to + whole, activation, add);
    }
}

// Some panels at a time, which stay in the processor's cache for all rows.
void linear_in_tiles(const Linear& layer, const tiles::Rows& x, int64_t rows, int begin, int end, float* y, int activation,
                     bool add) {
    constexpr int MOST = 2 * tiles::ROWS, TOGETHER = 6 * PANEL;
    constexpr int64_t LINE = TOGETHER * sizeof(float);
    const tiles::InUse in_use(rows);
    alignas(tiles::LINE) float sums[MOST * TOGETHER];
    for (int from = begin; from < end; from += TOGETHER) {
        const int to = std::min(from + TOGETHER, end), panels = (to - from + PANEL - 1) / PANEL;
        const auto* weight = static_cast<const uint8_t*>(layer.weight) + from / PANEL * x.blocks * tiles::TILE;
        for (int64_t row = 0; row < rows; row += MOST) {
            const int64_t count = std::min<int64_t>(rows - row, MOST), group = row / tiles::ROWS;
            if (count <= tiles::ROWS) {
                tiles::multiply_few(x.group(group), {weight, panels, x.blocks}, sums, LINE);
            } else {
                tiles::multiply_more(x.group(group), x.group(group + 1), {weight, panels, x.blocks}, sums, LINE);
            }
            finish_sums(layer, sums, TOGETHER, from, to - from, y + row * layer.outputs, count, activation, add);
        }
    }
}

#endif

void linear(const Linear& layer, const float* x, int64_t rows, float* y, int activation = NONE, bool add = false) {
#ifdef TILES
    if (layer.form == HALVES_IN_TILES) {
        const tiles::Rows parts(x, rows, layer.inputs);
        return share_outputs(layer, rows, [&](int begin, int end) {
            linear_in_tiles(layer, parts, rows, begin, end, y, activation, add);
        });
    }
#endif
#ifdef INT8_PRODUCTS
    if (layer.form == INT8_IN_PANELS) {
        const RoundedRows rounded(x, rows, layer.inputs);
        return share_outputs(layer, rows, [&](int begin, int end) {
            in_parts(rows, MAX_ROWS, [&](int64_t row, int64_t count) {
                INT8_PANELS[count - 1](layer, rounded.numbers.data() + row * rounded.size, rounded.size,
                                       rounded.scales.data() + row, begin, end, y + row * layer.outputs, activation, add);
            });
        });
    }
#endif
    share_outputs(layer, rows, [&](int begin, int end) {
        if (layer.form == IN_ROWS) return linear_in_rows<float>(layer, x, rows, begin, end, y, activation, add);
        if (layer.form == INT8_IN_ROWS) return linear_in_rows<int8_t>(layer, x, rows, begin, end, y, activation, add);
#ifdef HALVES
        if (layer.form == HALVES_IN_PANELS) return linear_in_panels<Half>(layer, x, rows, begin, end, y, activation, add);
#endif
        linear_in_panels<float>(layer, x, rows, begin, end, y, activation, add);
    });
}

void normalize(const Norm& norm, const float* x, int64_t rows, int width, float* y) {
    for (int64_t row = 0; row < rows; ++row, x += width, y += width) {
        float sum = 0, squares = 0;
        for (int i = 0; i < width; ++i) sum += x[i];
        const float mean = sum / width;
        for (int i = 0; i < width; ++i) squares += (x[i] - mean) * (x[i] - mean);
        const float scale = 1 / std::sqrt(squares / width + norm.epsilon);
        for (int i = 0; i < width; ++i) y[i] = (x[i] - mean) * scale * norm.weight[i] + norm.bias[i];
    }
}

// e to the power of numbers up to 0, off by about a ten-millionth of it; 0 where that is next to nothing.
inline Vector exponential(Vector x) {
    constexpr float LEAST = -87, LOG_2 = 0.693147181f;
    const Vector bounded = x > LEAST ? x : splat(LEAST);
    const Indices power = __builtin_convertvector(bounded / LOG_2 - 0.5f, Indices);
    const Vector rest = bounded - __builtin_convertvector(power, Vector) * LOG_2;
    Vector series = splat(1 / 720.f);
    for (const float factor : {1 / 120.f, 1 / 24.f, 1 / 6.f, 1 / 2.f, 1.f, 1.f}) series = series * rest + factor;
    return x > LEAST ? series * (Vector)((power + 127) << 23) : Vector{};
}

constexpr float NO_SCORE = -3e38f;  // -ffast-math knows no infinity

// Scores of one row become weights: those of slots after `last` and of forbidden ones 0, the others their softmax. Behind
// the slots there is room up to whole vectors.
void softmax(float* scores, int64_t slots, int64_t last, const uint8_t* allowed) {
    int64_t first = 0;
    if (allowed) {
        // Padding before and after a sentence is left out: it would change the order in which the rest is added up.
        while (first < last && !allowed[first]) ++first;
        while (first < last && !allowed[last]) --last;
        for (int64_t i = 0; i < first; ++i) scores[i] = 0;
        for (int64_t i = first; i <= last; ++i) scores[i] = allowed[i] ? scores[i] : NO_SCORE;
    }
    // Whole vectors from the first slot on, the last one filled up.
    float* begin = scores + first;
    const int64_t count = last + 1 - first, filled = (count + LANES - 1) / LANES * LANES;
    for (int64_t i = count; i < filled; ++i) begin[i] = NO_SCORE;
    Vector highest = load(begin), sums = {};
    for (int64_t i = LANES; i < filled; i += LANES) {
        const Vector here = load(begin + i);
        highest = here > highest ? here : highest;
    }
    const float top = highest_lane(highest);
    for (int64_t i = 0; i < filled; i += LANES) {
        const Vector here = exponential(load(begin + i) - top);
        store(begin + i, here);
        sums += here;
    }
    sum_lanes<1>(&sums);
    const float share = 1 / sums[0];
    for (int64_t i = 0; i < filled; i += LANES) store(begin + i, load(begin + i) * share);
    for (int64_t i = last + 1; i < slots; ++i) scores[i] = 0;
}

// out[ROWS][width] = weights[ROWS][slots] * values, PANELS panels of columns at a time as long as there are so many.
template <int ROWS, int PANELS>
void weigh(const float* weights, int64_t row_stride, int64_t slots, const float* values, int64_t stride, int begin,
           int width, float* out, int64_t out_stride) {
    for (; begin + PANELS * PANEL <= width; begin += PANELS * PANEL) {
        multiply_panels<ROWS, PANELS>(weights, row_stride, slots, values + begin, PANEL, stride, [&](int row, int v, Vector sums) {
            store(out + row * out_stride + begin + v * LANES, sums);
        });
    }
    if constexpr (PANELS > 1) {
        weigh<ROWS, PANELS / 2>(weights, row_stride, slots, values, stride, begin, width, out, out_stride);
    } else if (begin < width) {
        // Slot by slot as above: padding, which weighs nothing, must not change the order of the sum.
        for (; begin < width; begin += LANES) {
            const int columns = std::min(LANES, width - begin);
            for (int row = 0; row < ROWS; ++row) {
                Vector sum = {};
                for (int64_t i = 0; i < slots; ++i) {
                    sum += weights[row * row_stride + i] * load_some(values + i * stride + begin, columns);
                    keep_order(sum);
                }
                std::memcpy(out + row * out_stride + begin, &sum, columns * sizeof(float));
            }
        }
    }
}

// Numbers that attention of so many slots needs for the weights of a row: whole vectors from any slot on.
inline int64_t weights_of(int64_t slots) { return slots + LANES; }

// Products of ROWS queries with the slots `slot` .. `slots`, OUTPUTS at a time as long as there are so many.
template <int ROWS, int OUTPUTS>
void score_slots(const float* query, int64_t query_stride, const float* keys, int64_t stride, int width, int64_t slot,
                 int64_t slots, float scale, float* scores, int64_t row_stride) {
    float result[ROWS][LANES];
    while (slot + OUTPUTS <= slots) {
        multiply_rows<float, ROWS, OUTPUTS, false>(query, query_stride, keys + slot * stride, stride, width, result);
        for (int row = 0; row < ROWS; ++row) {
            for (int i = 0; i < OUTPUTS; ++i) scores[row * row_stride + slot + i] = scale * result[row][i];
        }
        slot += OUTPUTS;
        // Some of them once more, which gives the same, rather than the last ones by themselves.
        if (slot < slots && slots < slot + OUTPUTS) slot = slots - OUTPUTS;
    }
    if constexpr (OUTPUTS > 1) {
        if (slot < slots) {
            score_slots<ROWS, OUTPUTS / 2>(query, query_stride, keys, stride, width, slot, slots, scale, scores, row_stride);
        }
    }
}

// Attention of ROWS queries of one sentence over its slots 0 .. last of each.
// query: rows are query_stride apart; those of `out` are heads * width.
// weights: room for ROWS times `weights_of` all slots.
template <int ROWS>
void attend(const float* query, int64_t query_stride, const float* key_value, const uint8_t* allowed,
            const int64_t* last, int heads, int width, float* weights, float* out) {
    constexpr int OUTPUTS = ROWS == 1 ? 8 : OUTPUTS_OF<ROWS>;
    const int64_t total = static_cast<int64_t>(heads) * width, stride = 2 * total;
    const float scale = 1 / std::sqrt(static_cast<float>(width));
    int64_t slots = 0;
    for (int row = 0; row < ROWS; ++row) slots = last[row] + 1 > slots ? last[row] + 1 : slots;
    const int64_t row_stride = weights_of(slots);
    for (int head = 0; head < heads; ++head) {
        const float *q = query + head * width, *keys = key_value + head * width;
        score_slots<ROWS, OUTPUTS>(q, query_stride, keys, stride, width, 0, slots, scale, weights, row_stride);
        for (int row = 0; row < ROWS; ++row) softmax(weights + row * row_stride, slots, last[row], allowed);
        weigh<ROWS, 4>(weights, row_stride, slots, keys + total, stride, 0, width, out + head * width, total);
    }
}

using Attend = void (*)(const float*, int64_t, const float*, const uint8_t*, const int64_t*, int, int, float*, float*);

template <int... COUNTS>
constexpr std::array<Attend, sizeof...(COUNTS)> attend_table(std::integer_sequence<int, COUNTS...>) {
    return {attend<COUNTS + 1>...};
}
constexpr auto ATTEND = attend_table(std::make_integer_sequence<int, MORE_ROWS>());

// A layout spelled out, row by row.
struct Rows {
    std::vector<int64_t> sentence, position, slot, last_visible;

    explicit Rows(const Layout& layout)
        : sentence(layout.rows), position(layout.rows), slot(layout.rows), last_visible(layout.rows) {
        for (int64_t row = 0; row < layout.rows; ++row) {
            if (layout.width) {
                sentence[row] = row / layout.width;
                // Unsigned: a length without sense may overflow, and is refused by `fit` like any other.
                const uint64_t length = layout.lengths[sentence[row]];
                position[row] = slot[row] = static_cast<int64_t>(length + row % layout.width);
                last_visible[row] = layout.last_visible ? layout.last_visible[row] : slot[row];
            } else {
                sentence[row] = layout.sentence[row];
                position[row] = layout.position[row];
                slot[row] = layout.slot[row];
                last_visible[row] = layout.last_visible[row];
            }
        }
    }

    // Whether no row reads or writes outside of what there is.
    bool fit(const Memory& own, const Memory* cross) const {
        if (own.used > own.capacity || (cross && cross->used > cross->capacity)) return false;
        if (cross && cross->used < 1 && !sentence.empty()) return false;
        const int64_t sentences = cross && cross->sentences < own.sentences ? cross->sentences : own.sentences;
        for (size_t row = 0; row < sentence.size(); ++row) {
            if (sentence[row] < 0 || sentence[row] >= sentences || position[row] < 0) return false;
            if (slot[row] < 0 || slot[row] >= own.capacity) return false;
            if (last_visible[row] < 0 || last_visible[row] >= own.used) return false;
        }
        return true;
    }

    // Calls `run` for parts of at most `most` rows of one sentence each, of the rows `begin` .. `end`.
    template <typename Run>
    void by_sentence(int64_t begin, int64_t end, int64_t most, const Run& run) const {
        for (int64_t next; begin < end; begin = next) {
            for (next = begin + 1; next < end && sentence[next] == sentence[begin];) ++next;
            in_parts(next - begin, most, [&](int64_t part, int64_t count) { run(begin + part, count); });
        }
    }

    // Calls `run` for parts of the rows, on as many threads as `products` of a row are worth; no sentence is divided: its
    // rows read what the others write. So rows of several sentences in turns are left to one thread.
    template <typename Run>
    void share(int64_t products, const Run& run) const {
        const int64_t rows = sentence.size();
        if (rows == 0) return;
        const int64_t parts = std::min<int64_t>(threads::available(), rows * products / MIN_PRODUCTS);
        if (parts <= 1 || !std::is_sorted(sentence.begin(), sentence.end())) return run(0, rows);
        std::vector<int64_t> cuts{0};
        for (int64_t row = 1; row < rows; ++row) {
            const bool is_full = row * parts >= static_cast<int64_t>(cuts.size()) * rows;
            if (sentence[row] != sentence[row - 1] && is_full) cuts.push_back(row);
        }
        cuts.push_back(rows);
        if (cuts.size() == 2) return run(0, rows);
        threads::run(cuts.size() - 1, [&](int64_t part) { run(cuts[part], cuts[part + 1]); });
    }
};

int64_t products_of(const Linear& layer) { return static_cast<int64_t>(layer.inputs) * layer.outputs; }

int64_t products_of(const Layer* layers, int32_t count) {
    int64_t sum = 0;
    for (const Layer* layer = layers; layer < layers + count; ++layer) {
        sum += products_of(layer->self_qkv) + products_of(layer->self_out) + products_of(layer->fc1) + products_of(layer->fc2);
        if (layer->has_cross) sum += products_of(layer->cross_query) + products_of(layer->cross_out);
    }
    return sum;
}

// Memory that stays with its thread from call to call.
inline float* scratch(std::vector<float>& memory, int64_t size) {
    if (static_cast<int64_t>(memory.size()) < size) memory.resize(size);
    return memory.data();
}

// The rows `first` .. `last` of a layout that fits, through all layers; x and states point to row 0.
void run_rows(const Layer* layers, int32_t count, float* x, int32_t dim, const Rows& where, int64_t first, int64_t last,
              const Memory& own, const Memory* cross, float* states) {
    thread_local std::vector<float> wide_memory, attended_memory, normal_memory, weights_memory;
    const int64_t rows = last - first, size = rows * dim, all = where.sentence.size() * static_cast<int64_t>(dim);
    int widest = 3 * dim;
    for (int i = 0; i < count; ++i) widest = std::max(widest, layers[i].fc1.outputs);
    const int64_t longest = cross ? std::max(cross->used, own.used) : own.used;
    float* wide = scratch(wide_memory, rows * widest);
    float* attended = scratch(attended_memory, size);
    float* normal = scratch(normal_memory, size);
    float* weights = scratch(weights_memory, MORE_ROWS * weights_of(longest));
    const std::vector<int64_t> whole_source(MORE_ROWS, cross ? cross->used - 1 : 0);
    const auto attend_all = [&](const Layer& layer, int64_t query_stride, const Memory& memory, int64_t index,
                                const int64_t* last_visible) {
        where.by_sentence(first, last, MORE_ROWS, [&](int64_t row, int64_t some) {
            const int64_t b = where.sentence[row];
            const float* key_value = memory.key_value + index * memory.layer + b * memory.capacity * 2 * dim;
            const uint8_t* allowed = memory.allowed ? memory.allowed + b * memory.used : nullptr;
            ATTEND[some - 1](wide + (row - first) * query_stride, query_stride, key_value, allowed,
                             last_visible ? last_visible + row : whole_source.data(), layer.heads, dim / layer.heads,
                             weights, attended + (row - first) * dim);
        });
    };
    x += first * dim;
    if (states) states += first * dim;
    if (states) std::memcpy(states, x, size * sizeof(float));
    for (int index = 0; index < count; ++index) {
        const Layer& layer = layers[index];
        const float* input = x;
        const auto begin = [&](const Norm& norm) {
            if (layer.normalize_before) normalize(norm, x, rows, dim, normal);
            input = layer.normalize_before ? normal : x;
        };
        const auto end = [&](const Norm& norm) {
            if (!layer.normalize_before) normalize(norm, x, rows, dim, x);
        };

        begin(layer.self_norm);
        linear(layer.self_qkv, input, rows, wide);
        for (int64_t row = first; row < last; ++row) {
            const int64_t slot = where.sentence[row] * own.capacity + where.slot[row];
            float* to = own.key_value + index * own.layer + slot * 2 * dim;
            std::memcpy(to, wide + (row - first) * 3 * dim + dim, 2 * dim * sizeof(float));
        }
        attend_all(layer, 3 * dim, own, index, where.last_visible.data());
        linear(layer.self_out, attended, rows, x, NONE, true);
        end(layer.self_norm);

        if (layer.has_cross) {
            begin(layer.cross_norm);
            linear(layer.cross_query, input, rows, wide);
            attend_all(layer, dim, *cross, index, nullptr);
            linear(layer.cross_out, attended, rows, x, NONE, true);
            end(layer.cross_norm);
        }

        begin(layer.final_norm);
        linear(layer.fc1, input, rows, wide, layer.activation);
        linear(layer.fc2, wide, rows, x, NONE, true);
        end(layer.final_norm);
        if (states) std::memcpy(states + (index + 1) * all, x, size * sizeof(float));
    }
}

// Embeds the rows `first` .. `last` of a step into x; returns whether all their tokens are known.
bool embed_rows(const Ends& ends, const Input& input, const Layout& layout, const Rows& where, int64_t first, int64_t last,
                float* x, int32_t dim) {
    const int64_t tokens = layout.width - input.masks;
    for (int64_t row = first; row < last; ++row) {
        const int64_t b = where.sentence[row], position = where.position[row];
        int64_t token = ends.mask_id;
        if (layout.width == 0) {
            token = input.tokens[row];
        } else if (row % layout.width < tokens) {
            token = input.tokens[b * tokens + row % layout.width];
        }
        float* to = x + row * dim;
        if (token == ends.mask_id) {
            if (!input.fed || (input.position && position >= input.fed_positions)) return false;
            if (input.sentence && b >= input.fed_sentences) return false;
            std::memcpy(to, input.fed + b * input.sentence + position * input.position, dim * sizeof(float));
        } else {
            if (token < 0 || token > ends.mask_id) return false;
            const float* from = ends.embedding + token * dim;
            for (int i = 0; i < dim; ++i) to[i] = ends.scale * from[i];
        }
        if (ends.positions) {
            const float* embedding = ends.positions + std::min(position, ends.position_count - 1) * dim;
            for (int i = 0; i < dim; ++i) to[i] += embedding[i];
        }
        if (input.added) {
            const float* added = input.added + (input.added_width == 1 ? b : row) * dim;
            for (int i = 0; i < dim; ++i) to[i] += added[i];
        }
    }
    if (ends.embedding_norm.weight) normalize(ends.embedding_norm, x + first * dim, last - first, dim, x + first * dim);
    return true;
}

// The first of the highest of `size` scores; some index of them where there is none, as among NaN.
int64_t first_best(const float* scores, int64_t size) {
    constexpr int64_t CHUNK = 64;
    float highest = scores[0];
    int64_t chunk = 0;
    for (int64_t begin = 0; begin < size; begin += CHUNK) {
        const int64_t end = std::min(begin + CHUNK, size);
        float here = scores[begin];
        for (int64_t i = begin; i < end; ++i) here = scores[i] > here ? scores[i] : here;
        if (here <= highest) continue;
        highest = here;
        chunk = begin;
    }
    // Bounded, because nothing equals what is not a number.
    while (chunk + 1 < size && scores[chunk] != highest) ++chunk;
    return chunk;
}

// The sum of the exponentials of `size` scores less `top`, the highest of them.
float sum_exponentials(const float* scores, int64_t size, float top) {
    Vector sums = {};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) sums += exponential(load(scores + i) - top);
    sum_lanes<1>(&sums);
    float sum = sums[0];
    for (; i < size; ++i) sum += std::exp(scores[i] - top);
    return sum;
}

// What is to be taken off each of `size` scores to make them log-probabilities.
float normaliser(const float* scores, int64_t size) {
    float highest = scores[0];
    for (int64_t i = 0; i < size; ++i) highest = scores[i] > highest ? scores[i] : highest;
    return highest + std::log(sum_exponentials(scores, size, highest));
}

// The best allowed token of a row at a position of the output, and its log-probability. The scores are left as they were.
void best_token(float* scores, const Limits& limits, int64_t position, int64_t* best, float* log_prob) {
    const float shift = normaliser(scores, limits.vocabulary);
    const float pad = scores[limits.pad], unk = scores[limits.unk], eos = scores[limits.eos];
    scores[limits.pad] = NO_SCORE;
    scores[limits.unk] -= limits.unk_penalty;
    if (position < limits.min_len) scores[limits.eos] = NO_SCORE;
    *best = position >= limits.max_len ? limits.eos : first_best(scores, limits.vocabulary);
    *log_prob = scores[*best] - shift;
    scores[limits.eos] = eos;
    scores[limits.unk] = unk;
    scores[limits.pad] = pad;
}

// One step of a recurrent cell (GRU) of width S for `count` rows: state[count][S] becomes the next one.
//
// read, recurrent: [count][3 S], what is read and the state, each through its own layer.
void update_states(const float* read, const float* recurrent, int64_t count, int width, float* state) {
    const auto sigmoid = [](float x) { return 1 / (1 + std::exp(-x)); };
    for (int64_t row = 0; row < count; ++row, read += 3 * width, recurrent += 3 * width, state += width) {
        for (int i = 0; i < width; ++i) {
            const float reset = sigmoid(read[i] + recurrent[i]);
            const float update = sigmoid(read[width + i] + recurrent[width + i]);
            const float twice = 2 * (read[2 * width + i] + reset * recurrent[2 * width + i]);
            const float fresh = 2 * sigmoid(twice) - 1;  // tanh
            state[i] = (1 - update) * fresh + update * state[i];
        }
    }
}

// Choose the tokens of B paths of K positions, one position of all of them after the other: each the one with the highest
// sum of its own score and that of coming after the tokens chosen before it. The sums are left in scores[B][K][N].
// Goes on as long as `goes_on`, asked after every position, says that some path is worth it.
// Returns false where a token before a path is outside of the vocabulary.
template <typename GoesOn>
bool follow(const Path& path, float* scores, const float* hidden, int64_t batch, int64_t width, const int64_t* first,
            int64_t* chosen, float* log_probs, const GoesOn& goes_on) {
    thread_local std::vector<float> before_memory, added_memory, read_memory, recurrent_memory, state_memory;
    const int64_t size = path.size, rank = path.after.inputs, state_width = path.to_rank.inputs;
    const bool has_state = path.before && path.to_rank.weight;
    float *before = nullptr, *added = nullptr, *read = nullptr, *recurrent = nullptr, *state = nullptr;
    if (path.before) {
        before = scratch(before_memory, batch * rank);
        added = scratch(added_memory, batch * size);
    }
    if (has_state) {
        read = scratch(read_memory, (width + 1) * batch * 3 * state_width);
        recurrent = scratch(recurrent_memory, batch * 3 * state_width);
        state = scratch(state_memory, batch * state_width);
        std::fill(state, state + batch * state_width, 0.0f);
        linear(path.of_hidden, hidden, batch * width, read + batch * 3 * state_width);
    }
    for (int64_t position = 0; position < width; ++position) {
        for (int64_t b = 0; path.before && b < batch; ++b) {
            const int64_t previous = position == 0 ? first[b] : chosen[b * width + position - 1];
            if (previous < 0 || previous >= path.vocabulary) return false;
            std::memcpy(before + b * rank, path.before + previous * rank, rank * sizeof(float));
        }
        if (has_state) {
            const int64_t gates = 3 * state_width;
            for (int64_t b = 0; b < batch; ++b) {
                std::memcpy(read + b * gates, read + (batch + b * width + position) * gates, gates * sizeof(float));
            }
            linear(path.of_before, before, batch, read, NONE, true);
            linear(path.of_state, state, batch, recurrent);
            update_states(read, recurrent, batch, state_width, state);
            linear(path.to_rank, state, batch, before, NONE, true);
        }
        if (path.before) linear(path.after, before, batch, added);
        for (int64_t b = 0; b < batch; ++b) {
            const int64_t row = b * width + position;
            float* sums = scores + row * size;
            for (int64_t i = 0; path.before && i < size; ++i) sums[i] += added[b * size + i];
            const int64_t best = first_best(sums, size);
            chosen[row] = path.ids[best];
            if (log_probs) log_probs[row] = -std::log(sum_exponentials(sums, size, sums[best]));
        }
        if (!goes_on(position)) return true;
    }
    return true;
}

bool follow(const Path& path, float* scores, const float* hidden, int64_t batch, int64_t width, const int64_t* first,
            int64_t* chosen, float* log_probs) {
    return follow(path, scores, hidden, batch, width, first, chosen, log_probs, [](int64_t) { return true; });
}

}  // namespace

extern "C" {

// What this was compiled from and how, as build.py says it: a file that says something else is none of its.
const char* kernels_version() { return KERNELS_VERSION; }

// Whether the processor has what INT8_IN_PANELS needs.
int32_t has_int8_products() {
#ifdef INT8_PRODUCTS
    return 1;
#else
    return 0;
#endif
}

// Whether the processor reads float16 numbers as fast as others, for HALVES_IN_PANELS.
int32_t has_halves() {
#ifdef HALVES
    return 1;
#else
    return 0;
#endif
}

// Whether the processor multiplies tiles, for HALVES_IN_TILES, and the system lets it.
int32_t has_tiles() {
#ifdef TILES
    return tiles::are_allowed();
#else
    return 0;
#endif
}

// y[rows][outputs] = x[rows][inputs] * weight + bias
void run_linear(const Linear* layer, const float* x, int64_t rows, float* y) { linear(*layer, x, rows, y); }

// How many threads may work on a call, the caller's own among them.
void set_threads(int64_t count) { threads::set(count); }

// scores[rows][size] become log-probabilities.
void log_softmax(float* scores, int64_t rows, int64_t size) {
    for (int64_t row = 0; row < rows; ++row, scores += size) {
        const float shift = normaliser(scores, size);
        for (int64_t i = 0; i < size; ++i) scores[i] -= shift;
    }
}

// The first of the highest of each row of scores[rows][size].
void choose_best(const float* scores, int64_t rows, int64_t size, int64_t* best) {
    for (int64_t row = 0; row < rows; ++row) best[row] = first_best(scores + row * size, size);
}

// Of every position of scores[B][K][N] choose the next token of a path; see `follow`. Returns 1 where a token before a path
// is outside of the vocabulary.
//
// hidden: [B][K][D], what the scores were made of; first: [B], ids of the tokens before the first position.
// chosen: [B][K], ids; log_probs: [B][K], of each given those before it, null where nobody asks.
int32_t choose_paths(float* scores, const float* hidden, int64_t batch, int64_t width, const Path* path,
                     const int64_t* first, int64_t* chosen, float* log_probs) {
    return follow(*path, scores, hidden, batch, width, first, chosen, log_probs) ? 0 : 1;
}

// A whole step of a decoder: embed the tokens, run the layers, normalise, and maybe predict the next tokens. Returns 0; 1
// and does nothing where the layout points outside of the cache, or there is no source to attend to; 2 where a token is
// none of the vocabulary, or a mask is fed nothing.
//
// x: [R][D], the result.
// own: what every layer's self-attention keeps; cross: what every layer's cross-attention reads.
// states: [layers + 1][R][D], x before the first and after every layer; null where nobody asks.
// predict: null for no prediction; a path is for chains only.
int32_t run_step(const Layer* layers, int32_t count, const Ends* ends, const Input* input, float* x, int32_t dim,
                 const Layout* layout, const Memory* own, const Memory* cross, float* states, const Predict* predict) {
    const Rows where(*layout);
    if (!where.fit(*own, cross)) return 1;
    if (!embed_rows(*ends, *input, *layout, where, 0, layout->rows, x, dim)) return 2;
    const int64_t products = products_of(layers, count) + (predict ? products_of(predict->projection) : 0);
    std::atomic<bool> failed{false};
    where.share(products, [&](int64_t first, int64_t last) {
        run_rows(layers, count, x, dim, where, first, last, *own, cross, states);
        float* from = x + first * dim;
        if (ends->final_norm.weight) normalize(ends->final_norm, from, last - first, dim, from);
        if (!predict) return;
        float* scores = predict->scores + first * predict->projection.outputs;
        linear(predict->projection, from, last - first, scores);
        if (predict->path) {
            const int64_t begin = first / layout->width, count = (last - first) / layout->width;
            float* log_probs = predict->log_probs ? predict->log_probs + first : nullptr;
            const bool known = follow(*predict->path, scores, from, count, layout->width, predict->first + begin,
                                      predict->best + first, log_probs);
            if (!known) failed = true;
            return;
        }
        for (int64_t row = first; row < last; ++row, scores += predict->limits.vocabulary) {
            best_token(scores, predict->limits, where.position[row], predict->best + row, predict->log_probs + row);
        }
    });
    return failed ? 2 : 0;
}

// Exact acceptance: of the drafted tokens, which are the tokens of a chain after its first one, the longest prefix that
// equals the verifier's best tokens [B][T] stands, and its next token is emitted, too; nothing after an `eos`.
//
// drafted: [B][T - 1]; num_drafted: [B] how many of them are meant, null for all.
// emitted, accepted, finished: [B].
void accept_exact(const int64_t* best, const int64_t* drafted, const int64_t* num_drafted, int64_t batch, int64_t width,
                  int64_t eos, int64_t* emitted, int64_t* accepted, int64_t* finished) {
    for (int64_t b = 0; b < batch; ++b, best += width, drafted += width - 1) {
        const int64_t meant = num_drafted ? std::min(num_drafted[b], width - 1) : width - 1;
        int64_t count = 0;
        while (count < meant && drafted[count] == best[count] && best[count] != eos) ++count;
        emitted[b] = count + 1;
        finished[b] = best[count] == eos;
        accepted[b] = count + (count < meant && drafted[count] == best[count]);
    }
}

}  // extern "C"

#include "source.h"
#include "decode.h"
#include "beam.h"
