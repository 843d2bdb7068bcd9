#include "decoder.h"

#include <stdexcept>

#include "kernels.h"

namespace spec_dec {

void Rows::clear() {
    for (auto* values : {&sentence, &position, &last_visible, &tokens}) values->clear();
}

void Rows::add(int64_t row_sentence, int64_t row_position, int64_t token, int64_t row_last_visible) {
    sentence.push_back(row_sentence);
    position.push_back(row_position);
    last_visible.push_back(row_last_visible);
    tokens.push_back(token);
}

void Decoder::begin(const Sources& new_sources, int64_t new_capacity, int64_t new_beam) {
    sources = &new_sources;
    capacity = new_capacity;
    beam = new_beam;
    const int64_t layers = model->layers.size();
    require(model->layers[0].cross_query != nullptr, "a decoder needs cross-attention");
    const int64_t numbers = sources->rows() * model->layers[0].cross_key_value->inputs;
    require(static_cast<int64_t>(sources->encoded.size()) == numbers, "the sources have been encoded in another width");
    self_cache.reset(layers, sources->sentences() * beam * capacity, model->width);
    cross_cache.reset(layers, sources->rows(), model->width);
}

void Decoder::read_sources(const std::vector<int64_t>& sentences) {
    if (sentences.empty()) return;
    thread_local Floats encoded_memory, projected_memory;
    const int64_t inputs = model->layers[0].cross_key_value->inputs, rows = sources->rows(sentences),
                  size = cross_cache.row_size;
    const bool is_packed = !sources->are_adjacent(sentences);
    const float* encoded = sources->encoded.data();
    if (is_packed) {
        float* to = at_least(encoded_memory, rows * inputs);
        for (const int64_t b : sentences) {
            to = std::copy_n(encoded + sources->begins[b] * inputs, sources->length(b) * inputs, to);
        }
        encoded = encoded_memory.data();
    } else {
        encoded += sources->begins[sentences[0]] * inputs;
    }
    for (size_t layer = 0; layer < model->layers.size(); ++layer) {
        float* projected =
            is_packed ? at_least(projected_memory, rows * size) : cross_cache.at(layer, sources->begins[sentences[0]]);
        model->layers[layer].cross_key_value->run(encoded, rows, projected);
        for (const int64_t b : sentences) {
            const int64_t numbers = sources->length(b) * size;
            if (is_packed) std::copy_n(projected, numbers, cross_cache.at(layer, sources->begins[b]));
            projected += numbers;
        }
    }
}

void Decoder::release(int64_t row, int64_t first) const {
    for (size_t layer = 0; layer < model->layers.size(); ++layer) {
        if (first < capacity) self_cache.release(layer, row * capacity + first, capacity - first);
    }
    const int64_t b = row / beam, begin = sources->begins[b] + first, end = sources->begins[b + 1];
    for (size_t layer = 0; row % beam == 0 && begin < end && layer < model->layers.size(); ++layer) {
        cross_cache.release(layer, begin, end - begin);
    }
}

float* Decoder::embed(Rows& rows, const std::function<void(int64_t, float*)>& input, int64_t& longest) const {
    const int64_t count = rows.size(), width = model->width;
    float* x = at_least(rows.x, count * width);
    longest = 0;
    for (int64_t row = 0; row < count; ++row) {
        const int64_t position = rows.position[row];
        if (position < 0 || position >= capacity || rows.last_visible[row] >= capacity) {
            throw std::logic_error("a row is outside of the KV cache");
        }
        if (input) {
            input(row, x + row * width);
        } else {
            const int64_t token = rows.tokens[row];
            require(0 <= token && token < model->embedding.size, "a token is outside of the vocabulary");
            model->embed(token, x + row * width);
        }
        model->add_position(position, x + row * width);
        longest = std::max({longest, rows.last_visible[row] + 1, sources->length(rows.sentence[row] / beam)});
    }
    if (model->embedding_norm) model->embedding_norm.run(x, count, x);
    return x;
}

// Calls `run(first row, rows)` for blocks of adjacent rows of one sentence.
template <typename Run>
static void for_each_sentence_block(const std::vector<int64_t>& sentence, int64_t beam, const Run& run) {
    const int64_t count = sentence.size();
    for (int64_t begin = 0, next; begin < count; begin = next) {
        for (next = begin + 1; next < count && sentence[next] / beam == sentence[begin] / beam;) ++next;
        for_each_block(next - begin, ROW_BLOCK, [&](int64_t offset, int64_t block) { run(begin + offset, block); });
    }
}

void Decoder::run(Rows& rows, const std::function<void(int64_t, float*)>& input, const std::vector<int>& kept,
                  const std::function<const int64_t*(int64_t)>& ancestors) const {
    thread_local Floats scratch_memory;
    thread_local std::vector<const float*> slots;
    const int64_t count = rows.size(), width = model->width, slot_size = self_cache.row_size;
    int64_t longest = 0;
    float* x = embed(rows, input, longest);
    // Attends from a block of rows of a sentence to `slots`.
    const auto attend = [&](size_t layer, int64_t block, const float* query, int64_t query_stride, const int64_t* last,
                            float* out) {
        const int heads = model->layers[layer].heads;
        float* scratch = at_least(scratch_memory, attention_scratch(heads, longest));
        kernels().attend(block, query, query_stride, slots.data(), last, heads, static_cast<int>(width) / heads,
                         scratch, out);
    };
    const auto attend_self = [&](size_t layer, const float* qkv, float* out) {
        for (int64_t row = 0; row < count; ++row) {
            std::copy_n(qkv + row * 3 * width + width, 2 * width, slot(layer, rows.sentence[row], rows.position[row]));
        }
        for (int64_t row = 0; ancestors && row < count; ++row) {
            const int64_t own_row = rows.sentence[row], first = own_row - own_row % beam, length = rows.position[row];
            const int64_t* ancestor = ancestors(row);
            slots.resize(length + 1);
            for (int64_t s = 0; s < length; ++s) slots[s] = slot(layer, first + ancestor[s], s);
            slots[length] = slot(layer, own_row, length);
            attend(layer, 1, qkv + row * 3 * width, 3 * width, &length, out + row * width);
        }
        if (ancestors) return;
        for_each_sentence_block(rows.sentence, 1, [&](int64_t row, int64_t block) {
            const int64_t* last = rows.last_visible.data() + row;
            set_addresses(slots, slot(layer, rows.sentence[row], 0), slot_size,
                          *std::max_element(last, last + block) + 1);
            attend(layer, block, qkv + row * 3 * width, 3 * width, last, out + row * width);
        });
    };
    const auto attend_to_source = [&](size_t layer, const float* query, float* out) {
        for_each_sentence_block(rows.sentence, beam, [&](int64_t row, int64_t block) {
            const int64_t b = rows.sentence[row] / beam, length = sources->length(b);
            int64_t last[ROW_BLOCK];
            std::fill_n(last, block, length - 1);
            set_addresses(slots, cross_cache.at(layer, sources->begins[b]), cross_cache.row_size, length);
            attend(layer, block, query + row * width, width, last, out + row * width);
        });
    };
    std::function<void(size_t, const float*)> keep;
    if (!kept.empty()) {
        float* states = at_least(rows.states, count * kept.size() * width);
        keep = [&kept, count, width, states](size_t number, const float* from) {
            for (size_t n = 0; n < kept.size(); ++n) {
                if (kept[n] != static_cast<int>(number)) continue;
                for (int64_t row = 0; row < count; ++row) {
                    std::copy_n(from + row * width, width, states + (row * kept.size() + n) * width);
                }
            }
        };
    }
    model->run(x, count, attend_self, attend_to_source, keep);
}

}  // namespace spec_dec
