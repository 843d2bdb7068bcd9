// The arithmetic that is compiled once for every instruction set, and chosen when the module is loaded (isa/).
// Everything else is compiled once.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "linear.h"

namespace spec_dec {

// Rows of a sentence that attention takes at a time.
constexpr int MORE_ROWS = 6;

// Numbers that attention over this many slots needs for the weights of a row: whole vectors of any instruction set.
constexpr int64_t weights_size(int64_t slots) { return slots + 16; }

struct Kernels {
    const char* name;

    // Whether this processor computes with a format; `make_linear` takes no others.
    bool (*supports)(WeightFormat format);
    std::unique_ptr<Linear> (*make_linear)(const Weight& weight, WeightFormat format);

    // Attends from `rows` (at most MORE_ROWS) queries of one sentence, each to the slots 0 .. last[row].
    //
    // A value stands heads * width numbers after its key; query, key_values: rows and slots are query_stride and
    // slot_stride apart; weights: room for MORE_ROWS times `weights_size` of all slots; out: [rows][heads * width].
    void (*attend)(int64_t rows, const float* query, int64_t query_stride, const float* key_values, int64_t slot_stride,
                   const int64_t* last, int heads, int width, float* weights, float* out);

    // Attends from one query to `slots` keys and values that stand anywhere, as those of a hypothesis do. After the
    // slots there are 16 further pointers that may be read.
    void (*attend_scattered)(const float* query, const float* const* key_values, int64_t slots, int heads, int width,
                             float* weights, float* out);

    // Layer normalisation of x[rows][width]; y may be x.
    void (*normalize)(const float* weight, const float* bias, float epsilon, const float* x, int64_t rows, int width,
                      float* y);

    // One step of a GRU for `rows` rows: state[rows][width] becomes the next one. read, recurrent: [rows][3][width]
    // (reset, update, new), what is read and the state, each through its own layer.
    void (*update_gru)(const float* read, const float* recurrent, int64_t rows, int width, float* state);

    // Of `size` scores: the sum of e^(score - top); the highest; the index, from `begin` on, of the first above `least`
    // (else size); the index of the first of the highest.
    float (*sum_exponentials)(const float* scores, int64_t size, float top);
    float (*highest)(const float* scores, int64_t size);
    int64_t (*first_above)(const float* scores, int64_t begin, int64_t size, float least);
    int64_t (*first_best)(const float* scores, int64_t size);
};

// The kernels in use: at first the best that this processor runs.
const Kernels& kernels();

// Names of the instruction sets that are built in and that this processor runs, the best first.
std::vector<std::string> runnable_instruction_sets();

// Uses an instruction set from now on. Throws std::invalid_argument for one that does not run here.
void use_instruction_set(const std::string& name);

// What is to be subtracted from each of `size` scores to make them log-probabilities.
float log_normalizer(const float* scores, int64_t size);

}  // namespace spec_dec
