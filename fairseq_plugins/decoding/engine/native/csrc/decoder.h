// A decoder with keys and values of a batch: steps over rows that stand anywhere.

#pragma once

#include <cstdint>
#include <vector>

#include "sources.h"
#include "transformer.h"

namespace spec_dec {

// The rows of a step. Rows of one sentence follow each other.
struct Rows {
    std::vector<int64_t> sentence, position;  // position in the output; also the slot that is written
    std::vector<int64_t> last_visible;        // last slot that a row attends to
    std::vector<int64_t> tokens;
    Floats x;       // [rows][D], the result
    Floats states;  // [rows][kept layers][D]

    int64_t size() const { return static_cast<int64_t>(tokens.size()); }
    void clear();
    // A row that sees all slots up to its own.
    void add(int64_t sentence, int64_t position, int64_t token) { add(sentence, position, token, position); }
    void add(int64_t sentence, int64_t position, int64_t token, int64_t last_visible);
};

// A decoder, and the keys and values of the sentences of a batch. Rolling back is free: slots after a sentence's length
// are overwritten before anything attends to them.
class Decoder {
public:
    explicit Decoder(std::shared_ptr<const Transformer> model) : model(std::move(model)) {}

    // Begins a batch with `beam` rows of the cache for each sentence, each with this many slots.
    void begin(const Sources& sources, int64_t capacity, int64_t beam = 1);

    // Makes keys and values of the sources of some sentences, whose numbers ascend.
    void read_sources(const std::vector<int64_t>& sentences);

    // Runs rows through the layers; states after the layers `kept` (0: before the first) go to rows.states.
    //
    // input(row, x): embeds a row without its position, where that is not its token's embedding; may be empty.
    void run(Rows& rows, const std::function<void(int64_t, float*)>& input, const std::vector<int>& kept) const;

    // Runs one row of each of some hypotheses: rows.sentence has their rows of the cache. A hypothesis reads its slot
    // `s` from row ancestors(row of the cache)[s] of its sentence.
    void run_beams(Rows& rows, const std::function<const int64_t*(int64_t)>& ancestors) const;

    // Where the keys and values of a slot are; `row` is the sentence without beams.
    float* slot(int64_t layer, int64_t row, int64_t position) const { return own.at(layer, row * capacity + position); }

private:
    // Numbers of a step whose longest row sees this many slots.
    float* embed(Rows& rows, const std::function<void(int64_t, float*)>& input, int64_t& longest) const;
    void attend_source(size_t layer, const Rows& rows, const float* query, float* weights, float* out) const;

    std::shared_ptr<const Transformer> model;
    const Sources* sources = nullptr;
    KeyValues own, source;
    int64_t capacity = 0, beam = 1;
};

}  // namespace spec_dec
