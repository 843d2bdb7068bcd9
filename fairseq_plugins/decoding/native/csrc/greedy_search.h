// Greedy decoding of a batch: draft, verify in one pass, emit the longest accepted prefix and the verifier's own next
// token, repeat.
//
// Each thread decodes a micro-batch of sentences and refills it as sentences finish. Rows are packed: a sentence has
// one for its last token and one for each drafted token, and none once it has finished.

#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>

#include "acceptance.h"
#include "drafter.h"
#include "policy.h"
#include "predictor.h"

namespace spec_dec {

// Stages of decoding, and the seconds of each, summed over threads.
enum Stage { ENCODE, PREPARE, DRAFT, VERIFY, ACCEPT, OBSERVE, STAGES };
using StageSeconds = std::array<double, STAGES>;
using Clock = double (*)();  // returns seconds

inline double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Adds the time of a call to `seconds`.
template <typename Call>
void timed(double& seconds, const Call& call, Clock clock = seconds_now) {
    const double began = clock();
    call();
    seconds += clock() - began;
}

// Options of a call that decodes.
struct RunOptions {
    int64_t iterations = -1;              // maximum for each sentence; negative for no limit
    int64_t min_sentences = 8;            // of a thread's micro-batch
    int64_t micro_batch_rows = 1;         // rows for which a micro-batch gets more sentences than that
    std::function<void()> check_signals;  // throws to interrupt the call; may be empty

    // Calls `check_signals` every 50 ms, on the caller's thread (worker 0), because Python handles signals there only.
    void check(int64_t worker, double& checked) const {
        if (worker != 0 || !check_signals || seconds_now() - checked <= 0.05) return;
        check_signals();
        checked = seconds_now();
    }
};

class GreedySearch {
public:
    // drafter, acceptance, policy: null for none, for exact acceptance, and to verify all drafts in full.
    GreedySearch(std::shared_ptr<const Transformer> verifier, OutputHead head, std::shared_ptr<Drafter> drafter,
                 std::shared_ptr<const Acceptance> acceptance, std::shared_ptr<Policy> policy);

    // Begins a batch whose sources are encoded.
    void begin(Batch& batch);

    // Decodes until all sentences have finished or have had `options.iterations`. Throws std::runtime_error if scores
    // are NaN.
    void run(Batch& batch, const RunOptions& options);

    // Measures the costs that the policy needs.
    void profile();

    // Gives back the memory of a sentence that has ended, except for its first positions.
    void release(int64_t sentence, int64_t kept) const { verifier.release(sentence, kept); }

    // Returns the number of sentences of a thread's micro-batch: enough for efficient products, drafts included.
    int64_t micro_batch_size(const Batch& batch, const RunOptions& options) const;

    // Returns the maximum length of a draft of a batch.
    int64_t max_width(const Batch& batch) const {
        return filled_width > 0 ? filled_width : drafter ? drafter->max_width(batch) : 0;
    }

    StageSeconds seconds{};
    int64_t filled_width = 0;  // to measure costs: all drafts are filled to this length

private:
    friend class Worker;

    double drafted_share(const Batch& batch) const;

    std::shared_ptr<const Transformer> model;
    Decoder verifier;
    const OutputHead head;
    const std::shared_ptr<Drafter> drafter;
    const std::shared_ptr<const Acceptance> acceptance;
    const std::shared_ptr<Policy> policy;
};

}  // namespace spec_dec
