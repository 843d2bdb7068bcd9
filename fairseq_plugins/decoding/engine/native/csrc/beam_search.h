// Beam search as fairseq has it, of the sentences of a batch until they have ended.
//
// Hypotheses of a sentence read its source together. Each has a row of the cache; a table of ancestors says in which
// row an earlier slot stands, so that nothing is copied when a hypothesis is continued twice.

#pragma once

#include <cstdint>
#include <vector>

#include "greedy_search.h"

namespace spec_dec {

struct Hypothesis {
    std::vector<int64_t> tokens;   // EOS included
    std::vector<float> log_probs;  // of each
    float score;                   // their sum
};

class BeamSearch {
public:
    BeamSearch(std::shared_ptr<const Transformer> verifier, int64_t beam);

    // Decodes a batch whose sources have been read and encoded. Returns the hypotheses of each sentence in the order in
    // which they ended; `steps` gets how many steps each took. Throws std::runtime_error where scores are NaN, and
    // std::domain_error where nothing may end at the limit.
    std::vector<std::vector<Hypothesis>> run(Batch& batch, const Budget& budget, std::vector<int64_t>& steps);

    PartSeconds seconds{};

private:
    std::shared_ptr<const Transformer> model;
    Decoder decoder;
    const int64_t beam;
};

}  // namespace spec_dec
