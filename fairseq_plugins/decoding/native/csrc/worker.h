// The decoding loop of one thread, over its micro-batch of sentences.

#pragma once

#include <vector>

#include "greedy_search.h"
#include "search_worker.h"

namespace spec_dec {

class Worker final : public SearchWorker {
public:
    // clock: measures `seconds`.
    Worker(GreedySearch& search, Batch& batch, Clock clock = seconds_now)
        : search(search),
          clock(clock),
          work(batch),
          batch(batch),
          counts(search.policy ? search.policy->width : 0),
          predictor(*search.model, search.head, batch) {}

    void admit(const std::vector<int64_t>& sentences, int64_t batch_size) override;
    void iterate() override;
    void drop(int64_t sentence) override;

    // Passes survival counts to the policy, and computes the log-probabilities that are left.
    void finish();

    std::vector<int64_t>& active() { return work.active; }

    StageSeconds seconds{};

private:
    void draft();
    void start_late();
    void observe_outputs(const std::vector<int64_t>& sentences, const std::vector<int>& layers);
    void verify();
    void accept();
    void predict_all_rows();
    void predict_accepted_rows();
    int64_t next_token(size_t index, int64_t row);
    bool emit(size_t index, int64_t token, int64_t row);
    void draft_prefix();
    void count_drafts();
    void learn();

    GreedySearch& search;
    const Clock clock;
    Work work;
    Batch& batch;
    SurvivalCounts counts;
    int64_t iterations = 0;
    Plan plan;
    Predictor predictor;
    Floats next_states;
};

}  // namespace spec_dec
