// What the masks of a trained drafter are fed, computed for some positions of a sentence at a time.

#pragma once

#include <stdexcept>

#include "../kernels.h"
#include "drafters.h"

namespace spec_dec {

class MaskInputs {
public:
    explicit MaskInputs(MaskFeed feed) : feed(std::move(feed)), width(this->feed.vector.size()) {}

    // Begins a batch whose drafts reach `positions` positions.
    void begin_batch(const Sources& new_sources, int64_t wanted_positions) {
        sources = &new_sources;
        if (!feed.copy_attention) return;
        if (static_cast<int64_t>(sources->embedding.size()) != sources->rows() * width) {
            throw std::invalid_argument("the embeddings of the sources have another width than the masks");
        }
        inputs.resize(std::max<size_t>(inputs.size(), sources->sentences()));
        for (Sentence& sentence : inputs) sentence.known = 0;
        int64_t longest = 0;
        for (int64_t b = 0; b < sources->sentences(); ++b) longest = std::max(longest, sources->length(b));
        know(std::max(wanted_positions, longest));
    }

    // The input [D] of a mask at a position of a sentence.
    const float* at(int64_t sentence, int64_t position) {
        if (!feed.copy_attention) return feed.vector.data();
        Sentence& own = inputs[sentence];
        if (own.known <= position) compute(own, sentence, position + 1 + (CHUNK - 1 - position % CHUNK));
        return own.inputs.data() + position * width;
    }

private:
    static constexpr int64_t CHUNK = 32;  // positions computed at a time

    struct Sentence {
        int64_t known = 0;
        Floats inputs, key_values;
    };

    // Has queries for positions of all sentences; later positions than those of the table are like its last one.
    void know(int64_t positions) {
        positions += -positions % CHUNK + CHUNK;
        if (static_cast<int64_t>(queries.size()) >= positions * width) return;
        table.resize(positions * width);
        for (int64_t p = 0; p < positions; ++p) {
            const int64_t from = std::min(p, feed.positions.size - 1);
            std::copy_n(feed.positions.numbers + from * width, width, table.data() + p * width);
        }
        queries.resize(positions * width);
        feed.copy_attention->run(table.data(), positions, queries.data());
    }

    // Attention from each position to embedding and position of every source token (models/block_nat/decoder.py).
    void compute(Sentence& own, int64_t sentence, int64_t end) {
        thread_local Floats weights_memory;
        const int64_t length = sources->length(sentence);
        const float* embedding = sources->embedding.data() + sources->begins[sentence] * width;
        if (own.known == 0) {
            float* to = at_least(own.key_values, length * 2 * width);
            for (int64_t i = 0; i < length; ++i, embedding += width, to += 2 * width) {
                for (int64_t c = 0; c < width; ++c) to[c] = embedding[c] + table[i * width + c];
                std::copy_n(embedding, width, to + width);
            }
        }
        if (static_cast<int64_t>(own.inputs.size()) < end * width)
            own.inputs.resize(std::max(end, 2 * own.known) * width);
        float* weights = at_least(weights_memory, MORE_ROWS * weights_size(length));
        int64_t last[MORE_ROWS];
        std::fill_n(last, MORE_ROWS, length - 1);
        in_parts(end - own.known, MORE_ROWS, [&](int64_t part, int64_t some) {
            const int64_t position = own.known + part;
            kernels().attend(some, queries.data() + position * width, width, own.key_values.data(), 2 * width, last, 1,
                             static_cast<int>(width), weights, own.inputs.data() + position * width);
        });
        for (int64_t i = own.known * width; i < end * width; ++i) own.inputs[i] += feed.vector[i % width];
        own.known = end;
    }

    const MaskFeed feed;
    const int64_t width;
    const Sources* sources = nullptr;
    std::vector<float> table, queries;
    std::vector<Sentence> inputs;
};

}  // namespace spec_dec
