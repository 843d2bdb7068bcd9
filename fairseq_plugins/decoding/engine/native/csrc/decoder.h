// A decoder with the KV cache of a batch; the rows of a step may have any sentence and position.

#pragma once

#include <cstdint>
#include <vector>

#include "sources.h"
#include "transformer.h"

namespace spec_dec {

// The rows of a step. Rows of one sentence are adjacent.
struct Rows {
    std::vector<int64_t> sentence, position;  // position in the output; also the slot that is written
    std::vector<int64_t> last_visible;        // last slot that a row attends to
    std::vector<int64_t> tokens;
    Floats x;       // [rows][D], the result
    Floats states;  // [rows][kept layers][D]

    int64_t size() const { return static_cast<int64_t>(tokens.size()); }
    void clear();
    // Adds a row that attends to all slots up to its own.
    void add(int64_t sentence, int64_t position, int64_t token) { add(sentence, position, token, position); }
    void add(int64_t sentence, int64_t position, int64_t token, int64_t last_visible);
};

// A decoder and the KV cache of a batch. Rolling back is free: slots after a sentence's length are overwritten before a
// row attends to them.
class Decoder {
public:
    explicit Decoder(std::shared_ptr<const Transformer> model) : model(std::move(model)) {}

    // Begins a batch with `beam` rows of the cache for each sentence, each with this many slots.
    void begin(const Sources& sources, int64_t capacity, int64_t beam = 1);

    // Computes keys and values of the sources of sentences, given in ascending order.
    void read_sources(const std::vector<int64_t>& sentences);

    // Runs rows through the layers; states after the layers `kept` (0: before the first) go to rows.states.
    //
    // input(row, x): writes the embedding of a row, without position, instead of its token's; may be empty.
    // ancestors(cache row): in beam search, where rows.sentence is the cache row of a hypothesis, the rows of its
    // sentence [slots] from which it reads earlier slots; may be empty.
    void run(Rows& rows, const std::function<void(int64_t, float*)>& input, const std::vector<int>& kept,
             const std::function<const int64_t*(int64_t)>& ancestors = {}) const;

    // Returns the keys and values of a slot; `row` is the cache row: the sentence, in beam search the hypothesis.
    float* slot(int64_t layer, int64_t row, int64_t position) const { return own.at(layer, row * capacity + position); }

private:
    // Embeds the rows into rows.x; sets `longest` to the most slots or source tokens that a row attends to.
    float* embed(Rows& rows, const std::function<void(int64_t, float*)>& input, int64_t& longest) const;
    std::shared_ptr<const Transformer> model;
    const Sources* sources = nullptr;
    KeyValues own, source;
    int64_t capacity = 0, beam = 1;
};

}  // namespace spec_dec
