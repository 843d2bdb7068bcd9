// fairseq's beam search over a batch, with the same hypotheses.
//
// The hypotheses of a sentence share its source's keys and values, and each writes its own row of the KV cache. Instead
// of reordering the cache, a table of ancestors gives the row of each earlier slot.

#pragma once

#include <cstdint>
#include <vector>

#include "greedy_search.h"

namespace spec_dec {

struct Hypothesis {
    std::vector<int64_t> tokens;   // EOS included
    std::vector<float> log_probs;  // of each
    float score;                   // sum of log_probs
};

class BeamSearch {
public:
    BeamSearch(std::shared_ptr<const Transformer> verifier, int64_t beam);

    // Decodes a batch whose sources are encoded. Returns the hypotheses of each sentence in the order in which they
    // ended; writes the number of steps of each sentence to `steps`.
    //
    // Throws std::runtime_error if scores are NaN, and std::domain_error if EOS is forbidden at the maximum length.
    std::vector<std::vector<Hypothesis>> run(Batch& batch, const RunOptions& options, std::vector<int64_t>& steps);

    StageSeconds seconds{};

private:
    std::shared_ptr<const Transformer> model;
    Decoder decoder;
    const int64_t beam;
};

}  // namespace spec_dec
