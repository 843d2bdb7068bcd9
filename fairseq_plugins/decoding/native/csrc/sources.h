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
    // Whether two sentences have the same tokens.
    bool are_equal(int64_t number, int64_t other) const;
    // Whether the rows of sentences follow each other without a gap.
    bool are_adjacent(const std::vector<int64_t>& numbers) const;
    // Returns the number of tokens of sentences.
    int64_t rows(const std::vector<int64_t>& numbers) const;

    // Removes all sentences.
    void clear();

    // Adds a sentence after the others.
    void add(const std::vector<int64_t>& source);

    // Makes room for sentences of up to `capacity` tokens that are set later. dim: of an encoder's output.
    void reserve(int64_t sentences, int64_t capacity, int64_t dim);

    // Sets the tokens of a sentence for which there is room. Throws std::invalid_argument if they do not fit.
    void set(int64_t number, const int64_t* source, int64_t length);

    // Allocates the output of `encoder`. Throws std::invalid_argument for a token outside of the vocabulary.
    void begin_encoding(const Transformer& encoder);

    // Encodes sentences together, because products of more rows are faster. Several samples of a sentence, one after
    // the other, are encoded once.
    void encode(const Transformer& encoder, const std::vector<int64_t>& numbers);
};

}  // namespace spec_dec
