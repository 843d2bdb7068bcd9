// The decoding loop of one thread: sentences join it, advance together, and leave it when they have ended.

#pragma once

#include <cstdint>
#include <vector>

namespace spec_dec {

class SearchWorker {
public:
    virtual ~SearchWorker() = default;

    // Adds sentences that have no output yet. batch_size: expected number of sentences in a call, for the policy.
    virtual void admit(const std::vector<int64_t>& sentences, int64_t batch_size) = 0;

    // Runs one iteration of the active sentences, and removes those that have finished.
    virtual void iterate() = 0;

    // Removes an active sentence.
    virtual void drop(int64_t sentence) = 0;
};

}  // namespace spec_dec
