// A decoder with the KV cache of a batch. The rows of a step may be of any sentence and position.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sources.h"
#include "transformer.h"

namespace spec_dec {

// The rows of a step: one for each token that is run through the decoder. Rows of one sentence are adjacent.
struct Rows {
    std::vector<int64_t> sentence, position;  // position in the output, and the slot that is written
    std::vector<int64_t> last_visible;        // last slot that the row attends to
    std::vector<int64_t> tokens;
    Floats x;       // [rows][D], the final states
    Floats states;  // [rows][kept layers][D], the states of the kept layers

    int64_t size() const { return static_cast<int64_t>(tokens.size()); }
    void clear();
    // Adds a row that attends to the slots up to its own.
    void add(int64_t sentence, int64_t position, int64_t token) { add(sentence, position, token, position); }
    void add(int64_t sentence, int64_t position, int64_t token, int64_t last_visible);
};

// Rolling back is free: slots after a sentence's length are overwritten before any row attends to them.
class Decoder {
public:
    explicit Decoder(std::shared_ptr<const Transformer> model) : model(std::move(model)) {}

    // Begins a batch: `beam` cache rows for each sentence, with `capacity` slots each.
    void begin(const Sources& sources, int64_t capacity, int64_t beam = 1);

    // Computes the cross-attention keys and values of sentences.
    void read_sources(const std::vector<int64_t>& sentences);

    // Runs rows through the layers. The states after the layers `kept` (0: before the first) go to rows.states.
    //
    // input(row, x): writes the input embedding of a row, without position, to x. If empty, tokens are embedded.
    // ancestors(row): for beam search, where rows.sentence is the cache row of a hypothesis. Returns, for each earlier
    // slot, which hypothesis of the sentence wrote it. If empty, rows read slots of their own sentence.
    void run(Rows& rows, const std::function<void(int64_t, float*)>& input, const std::vector<int>& kept,
             const std::function<const int64_t*(int64_t)>& ancestors = {}) const;

    // Returns the key and value of a slot. row: the cache row, which is the sentence, in beam search the hypothesis.
    float* slot(int64_t layer, int64_t row, int64_t position) const {
        return self_cache.at(layer, row * capacity + position);
    }

    // Gives back the memory of a cache row's slots from `first` on, and that of its source.
    void release(int64_t row, int64_t first) const;

private:
    // Embeds the rows into rows.x. Sets `longest` to the largest number of slots or source tokens of a row's attention.
    float* embed(Rows& rows, const std::function<void(int64_t, float*)>& input, int64_t& longest) const;
    std::shared_ptr<const Transformer> model;
    const Sources* sources = nullptr;
    KeyValues self_cache, cross_cache;
    int64_t capacity = 0, beam = 1;
};

}  // namespace spec_dec
