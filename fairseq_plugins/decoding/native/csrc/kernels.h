// Kernels that are compiled once for each instruction set (isa/). The best set that the processor runs is chosen when
// the module is loaded.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "linear.h"
#include "noise.h"

namespace spec_dec {

// Maximum of rows (queries) of one `attend` call; also the row block of products with weights in rows.
constexpr int ROW_BLOCK = 6;

// Space for the scores of a row and head, which are padded to whole vectors of any instruction set.
constexpr int64_t padded_slots(int64_t slots) { return slots + 16; }

// Floats of scratch that `attend` needs.
constexpr int64_t attention_scratch(int heads, int64_t slots) { return heads * ROW_BLOCK * padded_slots(slots); }

struct Kernels {
    const char* name;

    // Whether this processor supports a format. `make_linear` takes supported formats only.
    bool (*supports)(WeightFormat format);
    std::unique_ptr<Linear> (*make_linear)(const Weight& weight, WeightFormat format);

    // Computes attention of `rows` (at most ROW_BLOCK) queries of one sentence, each over the slots 0 .. last[row].
    //
    // query: [rows], query_stride apart. slots: where each slot lies; it holds a key [heads * width] and then a value
    // of the same size. scratch: attention_scratch(heads, slots) floats. out: [rows][heads * width].
    void (*attend)(int64_t rows, const float* query, int64_t query_stride, const float* const* slots,
                   const int64_t* last, int heads, int width, float* scratch, float* out);

    // Layer normalisation of x[rows][width]; y may be x.
    void (*layer_norm)(const float* weight, const float* bias, float epsilon, const float* x, int64_t rows, int width,
                       float* y);

    // Updates state[rows][width] by one step of a GRU. from_input, from_state: [rows][3][width], the input and the
    // state after their linear layers, for the reset, update and new gates.
    void (*gru_step)(const float* from_input, const float* from_state, int64_t rows, int width, float* state);

    // Reductions of scores[size].
    float (*sum_exp)(const float* scores, int64_t size, float max);  // sum of e^(score - max)
    float (*max)(const float* scores, int64_t size);
    // Index of the first score above `threshold`, from `begin` on; `size` if there is none.
    int64_t (*first_above)(const float* scores, int64_t begin, int64_t size, float threshold);
    // Index of the maximum; of equal ones, the first.
    int64_t (*argmax)(const float* scores, int64_t size);
    // Index of the maximum of score + noise; of equal ones, the first. likely: any index; a good one saves time.
    int64_t (*noisy_argmax)(const float* scores, int64_t size, int64_t likely, const NoiseKey& key);
};

// The kernels in use; by default the best that this processor runs.
const Kernels& kernels();

// Names of the compiled instruction sets that this processor runs, the best first.
std::vector<std::string> runnable_instruction_sets();

// Selects an instruction set. Throws std::invalid_argument for one that this processor does not run.
void use_instruction_set(const std::string& name);

// log(sum of e^score): subtracted from scores, it gives log-probabilities.
float log_sum_exp(const float* scores, int64_t size);

}  // namespace spec_dec
