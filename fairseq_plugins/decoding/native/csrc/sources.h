// The source sentences of a batch. They are encoded once, for the verifier and the drafters.

#pragma once

#include <cstdint>
#include <vector>

#include "transformer.h"

namespace spec_dec {

// Tokens of all sentences, packed without padding.
struct Sources {
    std::vector<int64_t> begins;   // [B + 1], row of each sentence's first token; the last is the number of rows
    std::vector<int64_t> lengths;  // [B], numbers of tokens
    int64_t longest = 0;           // the largest length
    std::vector<int64_t> tokens;   // [rows]
    Floats embedding;              // [rows][D], scaled, without positions
    Floats encoded;                // [rows][D], the encoder's output

    int64_t sentences() const { return static_cast<int64_t>(begins.size()) - 1; }
    int64_t rows() const { return begins.back(); }
    int64_t length(int64_t sentence) const { return lengths[sentence]; }
    const int64_t* sentence(int64_t number) const { return tokens.data() + begins[number]; }
    // Whether a sentence has the tokens of the one before it.
    bool is_repeated(int64_t number) const;
    // Whether a sentence's rows follow those of the sentence before it.
    bool is_adjacent(int64_t number) const { return begins[number - 1] + lengths[number - 1] == begins[number]; }

    // Copies the tokens [sentences][width] that are not `pad`. Throws std::invalid_argument for an empty sentence.
    //
    // given, given_embedding: [sentences][width][dim], output and embeddings of an encoder outside of the kernels.
    void read(const int64_t* source, int64_t sentences, int64_t width, int64_t pad, int64_t dim = 0,
              const float* given = nullptr, const float* given_embedding = nullptr);

    // Makes room for sentences of up to `capacity` tokens that are set later. dim: of an encoder's output.
    void reserve(int64_t sentences, int64_t capacity, int64_t dim);

    // Sets the tokens of a sentence for which there is room. Throws std::invalid_argument if they do not fit.
    void set(int64_t number, const int64_t* source, int64_t length);

    // Allocates the output of `encoder`. Throws std::invalid_argument for a token outside of the vocabulary.
    void begin_encoding(const Transformer& encoder);

    // Throws std::invalid_argument if a token of a sentence is outside of the vocabulary.
    void check(const Transformer& encoder, int64_t number) const;

    // Encodes the sentences `first` .. `last`, whose rows are adjacent. Several samples of a sentence are encoded once:
    // a sentence with the tokens of the one before it is copied.
    void encode(const Transformer& encoder, int64_t first, int64_t last);
};

// Calls `run(first, last)` for ranges of sentences with adjacent rows, because products of more rows are faster.
template <typename Run>
void for_each_range(const Sources& sources, const std::vector<int64_t>& sentences, const Run& run) {
    const auto continues = [&](size_t index) {
        return sentences[index] == sentences[index - 1] + 1 && sources.is_adjacent(sentences[index]);
    };
    for (size_t first = 0, last; first < sentences.size(); first = last) {
        for (last = first + 1; last < sentences.size() && continues(last);) ++last;
        run(sentences[first], sentences[last - 1] + 1);
    }
}

}  // namespace spec_dec
