// fairseq's beam search over a batch, with the same hypotheses.
//
// The hypotheses of a sentence share its source's keys and values, and each writes its own row of the KV cache. Instead
// of reordering the cache, a table of ancestors gives the row of each earlier slot.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "greedy_search.h"
#include "search_worker.h"

namespace spec_dec {

struct Hypothesis {
    std::vector<int64_t> tokens;   // EOS included
    std::vector<float> log_probs;  // of each
    float score;                   // sum of log_probs
};

class BeamSearch {
public:
    // max_beam: the largest beam of a sentence.
    BeamSearch(std::shared_ptr<const Transformer> verifier, int64_t max_beam);

    // Decodes a batch whose sources are encoded, with the beam of each sentence's limits. Returns the hypotheses of
    // each sentence in the order in which they ended; writes the number of steps of each sentence to `steps`.
    //
    // Throws std::runtime_error if scores are NaN, and std::domain_error if EOS is forbidden at the maximum length.
    std::vector<std::vector<Hypothesis>> run(Batch& batch, const RunOptions& options, std::vector<int64_t>& steps);

    // Begins a batch whose sentences come later.
    void begin(Batch& batch);

    // Returns a worker for an open batch. outputs: [B], the hypotheses of each sentence; steps: [B].
    std::unique_ptr<SearchWorker> worker(Batch& batch, std::vector<std::vector<Hypothesis>>& outputs,
                                         std::vector<int64_t>& steps);

    // Gives back the memory of a sentence that has ended, except for its first positions.
    void release(int64_t sentence, int64_t kept) const {
        for (int64_t h = 0; h < max_beam; ++h) decoder.release(sentence * max_beam + h, kept);
    }

    const int64_t max_beam;
    StageSeconds seconds{};

private:
    std::shared_ptr<const Transformer> model;
    Decoder decoder;
};

}  // namespace spec_dec
