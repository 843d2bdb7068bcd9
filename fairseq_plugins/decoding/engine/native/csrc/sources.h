// The sources of a batch: encoded once, read by verifier and drafters.

#pragma once

#include <cstdint>
#include <vector>

#include "transformer.h"

namespace spec_dec {

// Tokens of all sentences, one after the other, without padding.
struct Sources {
    std::vector<int64_t> begins;  // [B + 1], row of each sentence's first token
    std::vector<int64_t> tokens;  // [rows]
    Floats embedding;             // [rows][D], scaled, without positions
    Floats encoded;               // [rows][D]

    int64_t sentences() const { return static_cast<int64_t>(begins.size()) - 1; }
    int64_t rows() const { return begins.back(); }
    int64_t length(int64_t sentence) const { return begins[sentence + 1] - begins[sentence]; }

    // Takes the tokens [sentences][width] that are not `pad`, and their states and embeddings [sentences][width][dim]
    // where another encoder has read them. Throws std::invalid_argument for an empty sentence.
    void read(const int64_t* source, int64_t sentences, int64_t width, int64_t pad, int64_t dim = 0,
              const float* given = nullptr, const float* given_embedding = nullptr);

    // Has room for the tokens as `encoder` encodes them. Throws std::invalid_argument for a token outside of the
    // vocabulary.
    void begin_encoding(const Transformer& encoder);

    // Encodes the sentences `first` .. `last`.
    void encode(const Transformer& encoder, int64_t first, int64_t last);
};

// Calls `run(first, last)` for sentences that follow one another: products of more rows are faster.
template <typename Run>
void by_neighbours(const std::vector<int64_t>& sentences, const Run& run) {
    for (size_t first = 0, last; first < sentences.size(); first = last) {
        for (last = first + 1; last < sentences.size() && sentences[last] == sentences[last - 1] + 1;) ++last;
        run(sentences[first], sentences[last - 1] + 1);
    }
}

}  // namespace spec_dec
