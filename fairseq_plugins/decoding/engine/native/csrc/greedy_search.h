// Greedy decoding of a batch: draft, verify in one pass, keep the longest accepted prefix and the verifier's own next
// token, repeat.
//
// Sentences are independent. A thread decodes some of them and takes others as these end. Rows are packed: a sentence
// has as many as it has tokens to verify, and none once it has ended.

#pragma once

#include <array>
#include <functional>
#include <memory>

#include "acceptance.h"
#include "drafter.h"
#include "policy.h"

namespace spec_dec {

// Where the time of decoding goes, summed over threads.
enum Part { ENCODE, PREPARE, DRAFT, VERIFY, ACCEPT, OBSERVE, PARTS };
using PartSeconds = std::array<double, PARTS>;
double seconds_now();

// A head between the verifier's states and its projection (head 1 of blockwise decoding); null for none.
struct OutputHead {
    SharedLinear expand, shrink;
};

// How much a call decodes, and what may interrupt it.
struct Budget {
    int64_t iterations = -1;                        // of each sentence; below 0 for no end
    int64_t least_together = 1, rows_together = 1;  // sentences that a thread decodes together, or more with few rows
    std::function<void()> check_signals;            // may throw

    // Calls `check_signals` now and then on the calling thread, which Python's signals are for.
    void check(int64_t worker, double& checked) const {
        if (worker != 0 || !check_signals || seconds_now() - checked <= 0.05) return;
        check_signals();
        checked = seconds_now();
    }
};

class GreedySearch {
public:
    // drafter, acceptance (exact) and policy (all that is drafted is verified) may be null.
    GreedySearch(std::shared_ptr<const Transformer> verifier, OutputHead head, std::shared_ptr<Drafter> drafter,
                 std::shared_ptr<const Acceptance> acceptance, std::shared_ptr<Policy> policy);

    // Begins a batch whose sources have been read and encoded.
    void begin(Batch& batch);

    // Decodes until all sentences have ended or have had their iterations. Throws std::runtime_error where scores are
    // NaN.
    void run(Batch& batch, const Budget& budget);

    // Profiles the costs that the policy reckons with.
    void profile();

    PartSeconds seconds{};

private:
    friend class Worker;

    int64_t together(const Batch& batch, const Budget& budget) const;
    void profile(int64_t sentences, int64_t width, Costs& costs);

    std::shared_ptr<const Transformer> model;
    Decoder verifier;
    const OutputHead head;
    const std::shared_ptr<Drafter> drafter;
    const std::shared_ptr<const Acceptance> acceptance;
    const std::shared_ptr<Policy> policy;
};

}  // namespace spec_dec
