#include "sources.h"

#include <algorithm>

#include "kernels.h"

namespace spec_dec {

void Sources::clear() {
    begins.assign(1, 0);
    lengths.clear();
    longest = 0;
    tokens.clear();
}

void Sources::add(const std::vector<int64_t>& source) {
    tokens.insert(tokens.end(), source.begin(), source.end());
    lengths.push_back(source.size());
    longest = std::max(longest, lengths.back());
    begins.push_back(tokens.size());
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
    require(1 <= length && length <= begins[number + 1] - begins[number],
            "a source has no token, or more than there is room for");
    lengths[number] = length;
    std::copy_n(source, length, tokens.begin() + begins[number]);
}

void Sources::begin_encoding(const Transformer& encoder) {
    encoder.check_tokens(tokens.data(), tokens.size());
    embedding.resize(rows() * encoder.width);
    encoded.resize(rows() * encoder.width);
}

bool Sources::are_equal(int64_t number, int64_t other) const {
    const int64_t* tokens_of_other = sentence(other);
    return length(number) == length(other) &&
           std::equal(tokens_of_other, tokens_of_other + length(other), sentence(number));
}

bool Sources::are_adjacent(const std::vector<int64_t>& numbers) const {
    for (size_t index = 1; index < numbers.size(); ++index) {
        const int64_t before = numbers[index - 1];
        if (begins[before] + lengths[before] != begins[numbers[index]]) return false;
    }
    return true;
}

int64_t Sources::rows(const std::vector<int64_t>& numbers) const {
    int64_t count = 0;
    for (const int64_t b : numbers) count += lengths[b];
    return count;
}

void Sources::encode(const Transformer& encoder, const std::vector<int64_t>& numbers) {
    if (numbers.empty()) return;
    thread_local Floats scratch_memory, packed_memory;
    thread_local std::vector<const float*> slots;
    std::vector<int64_t> distinct, last_slots(ROW_BLOCK);
    for (const int64_t b : numbers) {
        if (distinct.empty() || !are_equal(b, distinct.back())) distinct.push_back(b);
    }
    const bool is_packed = distinct.size() < numbers.size() || !are_adjacent(numbers);
    const int64_t width = encoder.width, count = rows(distinct);
    float* x = is_packed ? at_least(packed_memory, count * width) : encoded.data() + begins[numbers[0]] * width;
    int64_t longest_source = 0;
    float* to = x;
    for (const int64_t b : distinct) {
        longest_source = std::max(longest_source, length(b));
        for (int64_t position = 0; position < length(b); ++position, to += width) {
            float* own = embedding.data() + (begins[b] + position) * width;
            encoder.embed(sentence(b)[position], own);
            std::copy_n(own, width, to);
            encoder.add_position(position, to);
        }
    }
    if (encoder.embedding_norm) encoder.embedding_norm.run(x, count, x);
    const auto attend_self = [&](size_t index, const float* qkv, float* out) {
        const int heads = encoder.layers[index].heads;
        float* scratch = at_least(scratch_memory, attention_scratch(heads, longest_source));
        int64_t row = 0;
        for (const int64_t b : distinct) {
            std::fill(last_slots.begin(), last_slots.end(), length(b) - 1);
            set_addresses(slots, qkv + row * 3 * width + width, 3 * width, length(b));
            for_each_block(length(b), ROW_BLOCK, [&](int64_t offset, int64_t block) {
                kernels().attend(block, qkv + (row + offset) * 3 * width, 3 * width, slots.data(), last_slots.data(),
                                 heads, static_cast<int>(width) / heads, scratch, out + (row + offset) * width);
            });
            row += length(b);
        }
    };
    encoder.run(x, count, attend_self, {}, {});
    if (!is_packed) return;
    size_t next = 0;
    for (const int64_t b : numbers) {
        const bool is_repeated = next == distinct.size() || b != distinct[next];
        const int64_t values = length(b) * width, begin = begins[b] * width;
        if (is_repeated) {
            std::copy_n(embedding.begin() + begins[distinct[next - 1]] * width, values, embedding.begin() + begin);
            std::copy_n(x - values, values, encoded.begin() + begin);
            continue;
        }
        std::copy_n(x, values, encoded.begin() + begin);
        x += values;
        ++next;
    }
}

}  // namespace spec_dec
