// The mask embeddings of a trained drafter, computed for a chunk of positions at a time and cached for each sentence.

#pragma once

#include "../kernels.h"
#include "drafters.h"

namespace spec_dec {

class MaskEmbeddings {
public:
    explicit MaskEmbeddings(MaskWeights weights) : weights(std::move(weights)), width(this->weights.vector.size()) {}

    // Begins a batch whose drafts need up to `wanted_positions` positions.
    void begin_batch(const Sources& new_sources, int64_t wanted_positions) {
        sources = &new_sources;
        if (!weights.copy_attention) return;
        require(static_cast<int64_t>(sources->embedding.size()) == sources->rows() * width,
                "the embeddings of the sources have another width than the masks");
        cached.resize(std::max<size_t>(cached.size(), sources->sentences()));
        prepare_queries(std::max(wanted_positions, sources->longest));
    }

    // Begins sentences, whose sources are known.
    void begin(const std::vector<int64_t>& sentences) {
        if (!weights.copy_attention) return;
        for (const int64_t b : sentences) cached[b].positions = 0;
    }

    // Returns the embedding [D] of a mask at a position of a sentence.
    const float* at(int64_t sentence, int64_t position) {
        if (!weights.copy_attention) return weights.vector.data();
        Sentence& own = cached[sentence];
        if (own.positions <= position) compute(own, sentence, position + 1 + (CHUNK - 1 - position % CHUNK));
        return own.embeddings.data() + position * width;
    }

private:
    static constexpr int64_t CHUNK = 32;  // positions computed at a time

    struct Sentence {
        int64_t positions = 0;  // computed so far
        Floats embeddings, key_values;
    };

    // Computes the queries of positions, which all sentences share. Positions past the table have its last embedding.
    void prepare_queries(int64_t positions) {
        positions += -positions % CHUNK + CHUNK;
        if (static_cast<int64_t>(queries.size()) >= positions * width) return;
        table.resize(positions * width);
        for (int64_t p = 0; p < positions; ++p) {
            const int64_t from = std::min(p, weights.positions.size - 1);
            std::copy_n(weights.positions.numbers + from * width, width, table.data() + p * width);
        }
        queries.resize(positions * width);
        weights.copy_attention->run(table.data(), positions, queries.data());
    }

    // Computes embeddings up to `end`: the mask vector plus attention from a position over the source tokens
    // (models/block_nat/decoder.py).
    void compute(Sentence& own, int64_t sentence, int64_t end) {
        thread_local Floats scratch_memory;
        thread_local std::vector<const float*> slots;
        const int64_t length = sources->length(sentence);
        const float* embedding = sources->embedding.data() + sources->begins[sentence] * width;
        if (own.positions == 0) {
            float* to = at_least(own.key_values, length * 2 * width);
            for (int64_t i = 0; i < length; ++i, embedding += width, to += 2 * width) {
                for (int64_t c = 0; c < width; ++c) to[c] = embedding[c] + table[i * width + c];
                std::copy_n(embedding, width, to + width);
            }
        }
        if (static_cast<int64_t>(own.embeddings.size()) < end * width)
            own.embeddings.resize(std::max(end, 2 * own.positions) * width);
        float* scratch = at_least(scratch_memory, attention_scratch(1, length));
        set_addresses(slots, own.key_values.data(), 2 * width, length);
        int64_t last[ROW_BLOCK];
        std::fill_n(last, ROW_BLOCK, length - 1);
        for_each_block(end - own.positions, ROW_BLOCK, [&](int64_t offset, int64_t block) {
            const int64_t position = own.positions + offset;
            kernels().attend(block, queries.data() + position * width, width, slots.data(), last, 1,
                             static_cast<int>(width), scratch, own.embeddings.data() + position * width);
        });
        for (int64_t i = own.positions * width; i < end * width; ++i) own.embeddings[i] += weights.vector[i % width];
        own.positions = end;
    }

    const MaskWeights weights;
    const int64_t width;
    const Sources* sources = nullptr;
    std::vector<float> table, queries;
    std::vector<Sentence> cached;
};

}  // namespace spec_dec
