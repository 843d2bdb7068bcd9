// What is done once for the sources of a batch: they are encoded, and keys, values and what a drafter copies are made of
// them. Part of kernels.cpp, whose layers it runs.

#pragma once

#include <memory>

extern "C" {

// Encode the sources of a batch. A row for every token and none for padding, wherever that stands; the positions are
// those among the tokens.
//
// tokens: [B][width].
// embedding: [B][width][D], the scaled embeddings, of padding too.
// encoded: [B][width][D], zeros where there is padding; padding: [B][width], where that is.
// Returns 0, or 2 where a token is none of the vocabulary.
int32_t encode(const Layer* layers, int32_t count, const Ends* ends, int32_t dim, const int64_t* tokens, int64_t batch,
               int64_t width, int64_t pad, float* embedding, float* encoded, uint8_t* padding) {
    Rows where{Layout{}};
    std::vector<int64_t> places;  // of the rows in `tokens`
    std::vector<int64_t> known;
    for (int64_t b = 0; b < batch; ++b) {
        const int64_t first = places.size();
        for (int64_t i = b * width; i < (b + 1) * width; ++i) {
            const int64_t token = tokens[i];
            if (token < 0 || token >= ends->mask_id) return 2;
            const float* from = ends->embedding + token * dim;
            for (int column = 0; column < dim; ++column) embedding[i * dim + column] = ends->scale * from[column];
            padding[i] = token == pad;
            if (padding[i]) {
                std::fill_n(encoded + i * dim, dim, 0.0f);
                continue;
            }
            const int64_t slot = places.size() - first;
            where.sentence.push_back(b);
            where.position.push_back(slot);
            where.slot.push_back(slot);
            places.push_back(i);
            known.push_back(token);
        }
        where.last_visible.resize(places.size(), static_cast<int64_t>(places.size()) - 1 - first);
    }
    const int64_t rows = places.size();
    // A layer's keys and values are of no use to the next one: all write to the same memory.
    const std::unique_ptr<float[]> key_value(new float[batch * width * 2 * dim]), x(new float[rows * dim]);
    const Memory own{key_value.get(), 0, batch, width, width, nullptr};
    const Input input{known.data(), 0, nullptr, 0, 0, 0, 0, nullptr, 0};
    where.share(products_of(layers, count), [&](int64_t first, int64_t last) {
        embed_rows(*ends, input, Layout{}, where, first, last, x.get(), dim);
        run_rows(layers, count, x.get(), dim, where, first, last, own, nullptr, nullptr);
        float* from = x.get() + first * dim;
        if (ends->final_norm.weight) normalize(ends->final_norm, from, last - first, dim, from);
        for (int64_t row = first; row < last; ++row, from += dim) std::copy_n(from, dim, encoded + places[row] * dim);
    });
    return 0;
}

// y[layers][rows][outputs], what several layers of the same size make of x[rows][inputs].
void run_linears(const Linear* layers, int32_t count, const float* x, int64_t rows, float* y) {
    const int64_t inputs = layers->inputs, outputs = layers->outputs;
    share(rows, count * inputs * outputs, [&](int64_t first, int64_t last) {
        for (int32_t n = 0; n < count; ++n) {
            linear(layers[n], x + first * inputs, last - first, y + (n * rows + first) * outputs);
        }
    });
}

// What masks are fed that copy the source: at every position a mean of the source's embeddings, weighed by attention from
// the position to embedding and position of each, and added to what all are fed. See models/block_nat/decoder.py.
//
// queries: [count][D], of the positions.
// source: [B][width][D]; padding: [B][width]; table: [width][D], of positions.
// always: [D]; fed: [B][count][D].
void copy_source(const float* queries, int64_t count, const float* source, const uint8_t* padding, const float* table,
                 const float* always, int64_t batch, int64_t width, int32_t dim, float* fed) {
    share(batch, 2 * count * width * dim, [&](int64_t begin, int64_t end) {
        const std::unique_ptr<float[]> key_value(new float[width * 2 * dim]), weights(new float[MORE_ROWS * weights_of(width)]);
        const std::unique_ptr<uint8_t[]> allowed(new uint8_t[width]);
        const std::vector<int64_t> last(MORE_ROWS, width - 1);
        for (int64_t b = begin; b < end; ++b) {
            int64_t position = 0;
            for (int64_t i = 0; i < width; ++i) {
                const float* embedding = source + (b * width + i) * dim;
                const float* here = table + position * dim;
                float* key = key_value.get() + i * 2 * dim;
                for (int column = 0; column < dim; ++column) key[column] = embedding[column] + here[column];
                std::copy_n(embedding, dim, key + dim);
                allowed[i] = !padding[b * width + i];
                position += allowed[i];
            }
            float* to = fed + b * count * dim;
            in_parts(count, MORE_ROWS, [&](int64_t row, int64_t some) {
                ATTEND[some - 1](queries + row * dim, dim, key_value.get(), allowed.get(), last.data(), 1, dim, weights.get(),
                                 to + row * dim);
            });
            for (int64_t row = 0; row < count; ++row) {
                for (int column = 0; column < dim; ++column) to[row * dim + column] += always[column];
            }
        }
    });
}

}  // extern "C"
