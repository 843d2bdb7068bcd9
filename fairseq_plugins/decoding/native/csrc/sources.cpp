#include "sources.h"

#include <algorithm>
#include <stdexcept>

#include "kernels.h"

namespace spec_dec {

void Sources::read(const int64_t* source, int64_t sentences, int64_t width, int64_t pad, int64_t dim,
                   const float* given, const float* given_embedding) {
    begins.assign(1, 0);
    lengths.clear();
    longest = 0;
    tokens.clear();
    encoded.clear();
    embedding.clear();
    for (int64_t b = 0; b < sentences; ++b) {
        for (int64_t i = b * width; i < (b + 1) * width; ++i) {
            if (source[i] == pad) continue;
            tokens.push_back(source[i]);
            if (given) encoded.insert(encoded.end(), given + i * dim, given + (i + 1) * dim);
            if (given_embedding) {
                embedding.insert(embedding.end(), given_embedding + i * dim, given_embedding + (i + 1) * dim);
            }
        }
        if (static_cast<int64_t>(tokens.size()) == begins.back()) throw std::invalid_argument("a source has no token");
        lengths.push_back(static_cast<int64_t>(tokens.size()) - begins.back());
        longest = std::max(longest, lengths.back());
        begins.push_back(tokens.size());
    }
}

void Sources::reserve(int64_t sentences, int64_t capacity, int64_t dim) {
    begins.clear();
    for (int64_t b = 0; b <= sentences; ++b) begins.push_back(b * capacity);
    lengths.assign(sentences, 0);
    longest = capacity;
    tokens.assign(rows(), 0);
    embedding.resize(rows() * dim);
    encoded.resize(rows() * dim);
}

void Sources::set(int64_t number, const int64_t* source, int64_t length) {
    if (length < 1 || length > begins[number + 1] - begins[number]) {
        throw std::invalid_argument("a source has no token, or more than there is room for");
    }
    lengths[number] = length;
    std::copy_n(source, length, tokens.begin() + begins[number]);
}

void Sources::begin_encoding(const Transformer& encoder) {
    for (int64_t b = 0; b < sentences(); ++b) check(encoder, b);
    embedding.resize(rows() * encoder.width);
    encoded.resize(rows() * encoder.width);
}

void Sources::check(const Transformer& encoder, int64_t number) const {
    for (int64_t row = begins[number]; row < begins[number] + lengths[number]; ++row) {
        if (tokens[row] < 0 || tokens[row] >= encoder.embedding.size) {
            throw std::invalid_argument("a source token is outside of the vocabulary");
        }
    }
}

bool Sources::is_repeated(int64_t number) const {
    const int64_t* before = sentence(number - 1);
    return length(number) == length(number - 1) && std::equal(before, before + length(number), sentence(number));
}

void Sources::encode(const Transformer& encoder, int64_t first, int64_t last) {
    if (first == last) return;
    thread_local Floats scratch_memory;
    const int64_t width = encoder.width;
    // The rows of all sentences but repeated ones, one after the other; they get their places at the end.
    float* x = encoded.data() + begins[first] * width;
    std::vector<int64_t> positions, distinct, last_slots(ROW_BLOCK);
    int64_t longest_source = 0;
    for (int64_t b = first; b < last; ++b) {
        const bool is_new = b == first || !is_repeated(b);
        if (is_new) distinct.push_back(b);
        longest_source = std::max(longest_source, length(b));
        for (int64_t position = 0; position < length(b); ++position) {
            const int64_t row = begins[b] + position;
            encoder.embed(tokens[row], embedding.data() + row * width);
            if (!is_new) continue;
            float* own = x + positions.size() * width;
            std::copy_n(embedding.data() + row * width, width, own);
            encoder.add_position(position, own);
            positions.push_back(position);
        }
    }
    const auto count = static_cast<int64_t>(positions.size());
    if (encoder.embedding_norm) encoder.embedding_norm.run(x, count, x);
    float* scratch = at_least(scratch_memory, ROW_BLOCK * attention_scratch(longest_source));
    const auto attend_self = [&](size_t index, const float* qkv, float* out) {
        const int heads = encoder.layers[index].heads;
        int64_t row = 0;
        for (const int64_t b : distinct) {
            std::fill(last_slots.begin(), last_slots.end(), length(b) - 1);
            for_each_block(length(b), ROW_BLOCK, [&](int64_t offset, int64_t block) {
                kernels().attend(block, qkv + (row + offset) * 3 * width, 3 * width, qkv + row * 3 * width + width,
                                 3 * width, last_slots.data(), heads, static_cast<int>(width) / heads, scratch,
                                 out + (row + offset) * width);
            });
            row += length(b);
        }
    };
    encoder.run(x, count, positions.data(), attend_self, {}, {});
    // From the last sentence on: places are behind the rows that are still to be copied.
    int64_t end = count;
    for (int64_t b = last - 1; end < begins[b] + length(b) - begins[first]; --b) {
        const float* own = x + (end - length(b)) * width;
        std::copy_backward(own, own + length(b) * width, encoded.data() + (begins[b] + length(b)) * width);
        if (b == distinct.back()) {
            end -= length(b);
            distinct.pop_back();
        }
    }
}

}  // namespace spec_dec
