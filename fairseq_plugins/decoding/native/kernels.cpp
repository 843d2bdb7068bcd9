// Transformer layers on one CPU core, for the few rows that a decoding step has: at that size most of the time of
// PyTorch's own operations is spent between them. Compiled at first use and called through ctypes: see __init__.py.
//
// Every tensor is float32 and contiguous. Shapes: R = B * T rows of width D, H heads of width W = D / H.
// A weight is packed in panels of 16 outputs, [outputs / 16][inputs][16], the last one filled up with zeros.

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace {

constexpr int PANEL = 16;
#ifdef __AVX512F__
constexpr int LANES = 16, ACCUMULATORS = 24, MOST_ROWS = 12;
#else
constexpr int LANES = 8, ACCUMULATORS = 12, MOST_ROWS = 6;
#endif

typedef float Vector __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));

inline Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
inline void store(float* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }
inline Vector splat(float value) { return value - Vector{}; }

}  // namespace

extern "C" {

enum Activation { NONE = 0, RELU = 1, GELU = 2 };

struct Linear {
    const float* weight;
    const float* bias;  // null for none
    int32_t inputs, outputs;
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

// Keys and values [B][capacity][2][D] of one layer.
struct Memory {
    float* key_value;
    int64_t capacity;
    int64_t used;            // positions that may be attended to at all
    const uint8_t* allowed;  // [B][used], 0 where nobody may attend; null where all may
};

}  // extern "C"

namespace {

inline float activate(float x, int activation) {
    if (activation == RELU) return x > 0 ? x : 0;
    if (activation == GELU) return 0.5f * x * (1 + std::erf(x * 0.70710678118654752f));
    return x;
}

// Some panels of outputs for ROWS rows: as many accumulators as the registers hold, the more panels the fewer the rows.
template <int ROWS, int PANELS>
void multiply_panels(const float* x, int inputs, const float* panels, float result[][PANELS * PANEL]) {
    constexpr int VECTORS = PANELS * PANEL / LANES, IN_PANEL = PANEL / LANES;
    Vector sums[ROWS][VECTORS] = {};
    for (int i = 0; i < inputs; ++i) {
        Vector weights[VECTORS];
        for (int v = 0; v < VECTORS; ++v) {
            weights[v] = load(panels + (v / IN_PANEL * static_cast<int64_t>(inputs) + i) * PANEL + v % IN_PANEL * LANES);
        }
        for (int row = 0; row < ROWS; ++row) {
            const Vector value = splat(x[row * inputs + i]);
            for (int v = 0; v < VECTORS; ++v) sums[row][v] += value * weights[v];
        }
    }
    for (int row = 0; row < ROWS; ++row) {
        for (int v = 0; v < VECTORS; ++v) store(result[row] + v * LANES, sums[row][v]);
    }
}

// y[ROWS][outputs] = activation(x[ROWS][inputs] * weight + bias), added to y where `add`.
template <int ROWS>
void linear_rows(const Linear& layer, const float* x, float* y, int activation, bool add) {
    constexpr int FITTING = ACCUMULATORS / (ROWS * (PANEL / LANES));
    constexpr int PANELS = FITTING >= 4 ? 4 : FITTING >= 2 ? 2 : 1;
    float result[ROWS][PANELS * PANEL], single[ROWS][PANEL];
    const auto finish = [&](const float* from, int begin, int columns, float* to) {
        for (int c = 0; c < columns; ++c) {
            const float value = activate(from[c] + (layer.bias ? layer.bias[begin + c] : 0), activation);
            to[c] = add ? to[c] + value : value;
        }
    };
    int begin = 0;
    for (; begin + PANELS * PANEL <= layer.outputs; begin += PANELS * PANEL) {
        multiply_panels<ROWS, PANELS>(x, layer.inputs, layer.weight + static_cast<int64_t>(begin) * layer.inputs, result);
        for (int r = 0; r < ROWS; ++r) finish(result[r], begin, PANELS * PANEL, y + r * layer.outputs + begin);
    }
    for (; begin < layer.outputs; begin += PANEL) {
        const int columns = layer.outputs - begin < PANEL ? layer.outputs - begin : PANEL;
        multiply_panels<ROWS, 1>(x, layer.inputs, layer.weight + static_cast<int64_t>(begin) * layer.inputs, single);
        for (int r = 0; r < ROWS; ++r) finish(single[r], begin, columns, y + r * layer.outputs + begin);
    }
}

using LinearRows = void (*)(const Linear&, const float*, float*, int, bool);

template <int... COUNTS>
constexpr std::array<LinearRows, sizeof...(COUNTS)> rows_table(std::integer_sequence<int, COUNTS...>) {
    return {linear_rows<COUNTS + 1>...};
}
constexpr auto LINEAR_ROWS = rows_table(std::make_integer_sequence<int, MOST_ROWS>());

void linear(const Linear& layer, const float* x, int64_t rows, float* y, int activation = NONE, bool add = false) {
    // Parts of about the same size: a part of one row would read all weights for little.
    const int64_t parts = (rows + MOST_ROWS - 1) / MOST_ROWS;
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t row = part * rows / parts, count = (part + 1) * rows / parts - row;
        LINEAR_ROWS[count - 1](layer, x + row * layer.inputs, y + row * layer.outputs, activation, add);
    }
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

// Attention of one query over the positions 0 .. last of one sentence.
void attend(const float* query, const float* key_value, const uint8_t* allowed, int64_t last, int heads, int width,
            float* weights, float* out) {
    const int total = heads * width;
    const float scale = 1 / std::sqrt(static_cast<float>(width));
    for (int head = 0; head < heads; ++head) {
        const float* q = query + head * width;
        const float* keys = key_value + head * width;
        float highest = -1e30f;  // -ffast-math knows no infinity
        for (int64_t place = 0; place <= last; ++place) {
            if (allowed && !allowed[place]) continue;
            const float* key = keys + place * 2 * total;
            float dot = 0;
            for (int i = 0; i < width; ++i) dot += q[i] * key[i];
            weights[place] = dot * scale;
            if (weights[place] > highest) highest = weights[place];
        }
        float sum = 0;
        for (int64_t place = 0; place <= last; ++place) {
            weights[place] = allowed && !allowed[place] ? 0 : std::exp(weights[place] - highest);
            sum += weights[place];
        }
        float* o = out + head * width;
        std::memset(o, 0, width * sizeof(float));
        for (int64_t place = 0; place <= last; ++place) {
            const float weight = weights[place] / sum;
            const float* value = keys + place * 2 * total + total;
            for (int i = 0; i < width; ++i) o[i] += weight * value[i];
        }
    }
}

}  // namespace

extern "C" {

// y[rows][outputs] = x[rows][inputs] * weight + bias
void run_linear(const Linear* layer, const float* x, int64_t rows, float* y) { linear(*layer, x, rows, y); }

// Of every place of scores[B][K][V] choose the token, among the `candidates` best, whose score is the highest together with
// that of coming after the token chosen before it, before[previous][rank] * after[token][rank].
// first: [B], the token before the first place.
void choose_paths(const float* scores, int64_t batch, int64_t width, int64_t vocabulary, const float* before,
                  const float* after, int64_t rank, const int64_t* first, int64_t candidates, int64_t* chosen) {
    constexpr int64_t CHUNK = 64;
    std::vector<std::pair<float, int64_t>> best(candidates);
    for (int64_t row = 0; row < batch * width; ++row, scores += vocabulary) {
        int64_t found = 0;
        for (int64_t begin = 0; begin < vocabulary; begin += CHUNK) {
            const int64_t end = begin + CHUNK < vocabulary ? begin + CHUNK : vocabulary;
            float highest = scores[begin];
            for (int64_t token = begin; token < end; ++token) highest = scores[token] > highest ? scores[token] : highest;
            if (found == candidates && highest <= best[found - 1].first) continue;
            for (int64_t token = begin; token < end; ++token) {
                if (found == candidates && scores[token] <= best[found - 1].first) continue;
                int64_t place = found < candidates ? found++ : found - 1;
                for (; place > 0 && best[place - 1].first < scores[token]; --place) best[place] = best[place - 1];
                best[place] = {scores[token], token};
            }
        }
        const float* from = before + (row % width == 0 ? first[row / width] : chosen[row - 1]) * rank;
        float highest = -1e30f;
        for (int64_t candidate = 0; candidate < found; ++candidate) {
            const float* to = after + best[candidate].second * rank;
            float score = best[candidate].first;
            for (int64_t i = 0; i < rank; ++i) score += from[i] * to[i];
            if (candidate > 0 && score <= highest) continue;
            highest = score;
            chosen[row] = best[candidate].second;
        }
    }
}

// Run T new rows of each of B sentences through layers, in place in x[B][T][D].
//
// own: what every layer's self-attention keeps; row t of sentence b is written at lengths[b] + t.
// cross: what every layer's cross-attention reads.
// visible: [B][T], last position that each row attends to; null for its own (causal attention).
// states: [layers + 1][B][T][D], x before the first and behind every layer; null where nobody asks.
void run_layers(const Layer* layers, int32_t count, float* x, int64_t batch, int64_t width, int32_t dim,
                const int64_t* lengths, const int64_t* visible, const Memory* own, const Memory* cross, float* states) {
    const int64_t rows = batch * width, size = rows * dim;
    int widest = 3 * dim;
    for (int i = 0; i < count; ++i) widest = layers[i].fc1.outputs > widest ? layers[i].fc1.outputs : widest;
    int64_t longest = 1;
    for (int i = 0; i < count; ++i) {
        if (own[i].used > longest) longest = own[i].used;
        if (cross && cross[i].used > longest) longest = cross[i].used;
    }
    std::vector<float> wide(rows * widest), attended(size), normal(size), weights(longest);
    if (states) std::memcpy(states, x, size * sizeof(float));
    for (int index = 0; index < count; ++index) {
        const Layer& layer = layers[index];
        const int head_width = dim / layer.heads;
        const float* input = x;
        const auto begin = [&](const Norm& norm) {
            if (layer.normalize_before) normalize(norm, x, rows, dim, normal.data());
            input = layer.normalize_before ? normal.data() : x;
        };
        const auto end = [&](const Norm& norm) {
            if (!layer.normalize_before) normalize(norm, x, rows, dim, x);
        };

        begin(layer.self_norm);
        linear(layer.self_qkv, input, rows, wide.data());
        for (int64_t b = 0; b < batch; ++b) {
            float* memory = own[index].key_value + b * own[index].capacity * 2 * dim;
            for (int64_t t = 0; t < width; ++t) {
                const float* key_value = wide.data() + (b * width + t) * 3 * dim + dim;
                std::memcpy(memory + (lengths[b] + t) * 2 * dim, key_value, 2 * dim * sizeof(float));
            }
            const uint8_t* allowed = own[index].allowed ? own[index].allowed + b * own[index].used : nullptr;
            for (int64_t t = 0; t < width; ++t) {
                const int64_t row = b * width + t, last = visible ? visible[row] : lengths[b] + t;
                attend(wide.data() + row * 3 * dim, memory, allowed, last, layer.heads, head_width, weights.data(),
                       attended.data() + row * dim);
            }
        }
        linear(layer.self_out, attended.data(), rows, x, NONE, true);
        end(layer.self_norm);

        if (layer.has_cross) {
            begin(layer.cross_norm);
            linear(layer.cross_query, input, rows, wide.data());
            const Memory& memory = cross[index];
            for (int64_t row = 0; row < rows; ++row) {
                const int64_t b = row / width;
                attend(wide.data() + row * dim, memory.key_value + b * memory.capacity * 2 * dim,
                       memory.allowed ? memory.allowed + b * memory.used : nullptr, memory.used - 1, layer.heads,
                       head_width, weights.data(), attended.data() + row * dim);
            }
            linear(layer.cross_out, attended.data(), rows, x, NONE, true);
            end(layer.cross_norm);
        }

        begin(layer.final_norm);
        linear(layer.fc1, input, rows, wide.data(), layer.activation);
        linear(layer.fc2, wide.data(), rows, x, NONE, true);
        end(layer.final_norm);
        if (states) std::memcpy(states + (index + 1) * size, x, size * sizeof(float));
    }
}

}  // extern "C"
