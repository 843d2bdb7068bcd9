// Which thread decodes which sentences of a batch.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "threads.h"

namespace spec_dec {

// Sentences that wait for a worker, and those that a worker which has several hands to one which has none.
class Queue {
public:
    explicit Queue(std::vector<int64_t> sentences) : waiting(std::move(sentences)) {}

    // Up to `most` of the sentences that wait.
    std::vector<int64_t> take(int64_t most) {
        std::lock_guard<std::mutex> lock(mutex);
        const int64_t count = std::min<int64_t>(most, waiting.size() - next);
        next += count;
        return {waiting.begin() + (next - count), waiting.begin() + next};
    }

    // Offers every second one of `active` to a worker that waits for some.
    void offer(std::vector<int64_t>& active) {
        if (idle == 0 || is_full || active.size() < 2) return;
        std::lock_guard<std::mutex> lock(mutex);
        if (is_full) return;
        std::vector<int64_t> kept;
        for (size_t index = 0; index < active.size(); ++index) (index % 2 ? offered : kept).push_back(active[index]);
        active.swap(kept);
        is_full = true;
    }

    void begin() { ++busy; }

    // Waits for offered sentences; false when no worker has any left.
    bool wait(std::vector<int64_t>& active) {
        --busy;
        ++idle;
        bool found = false;
        for (int looks = 0; !found && (is_full || busy > 0); ++looks) {
            if (!is_full) {
                threads::pause_after(looks);
                continue;
            }
            std::lock_guard<std::mutex> lock(mutex);
            if (!is_full) continue;
            active.swap(offered);
            offered.clear();
            ++busy;
            is_full = false;
            found = true;
        }
        --idle;
        return found;
    }

private:
    std::mutex mutex;
    const std::vector<int64_t> waiting;
    size_t next = 0;
    std::vector<int64_t> offered;
    std::atomic<bool> is_full{false};
    std::atomic<int64_t> busy{0}, idle{0};
};

}  // namespace spec_dec
