// Iterations of the loop for the sentences of one thread.

#pragma once

#include <optional>
#include <vector>

#include "greedy_search.h"

namespace spec_dec {

class Worker {
public:
    Worker(GreedySearch& search, Batch& batch)
        : search(search), work(batch), batch(batch), counts(search.policy ? search.policy->width : 0) {}

    // Takes sentences that have no output yet. `share`: sentences that a call has together.
    void admit(const std::vector<int64_t>& sentences, int64_t share);

    // One iteration of the active sentences; removes those that have ended.
    void iterate();

    // Hands what was counted over to the policy.
    void learn();

    std::vector<int64_t>& active() { return work.active; }

    PartSeconds seconds{};
    std::optional<int64_t> profiled_width;  // while costs are profiled: tokens of a draft; half are accepted

private:
    void draft();
    void verify();
    void accept();
    void predict_all();
    void predict_accepted();
    void project(const float* states, int64_t rows, float* scores);
    bool choose(size_t index, int64_t rows, float* scores);
    bool emit(size_t index, int64_t token, float log_prob);
    void draft_prefix();
    void count_drafts();

    GreedySearch& search;
    Work work;
    Batch& batch;
    SurvivalCounts counts;
    int64_t iterations = 0;
    Plan plan;
    Floats scores, head_states, states_ahead;
    std::vector<BestToken> best;
};

}  // namespace spec_dec
