// Distribution of a batch's sentences over threads, with work sharing.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "threads.h"

namespace spec_dec {

// Sentences that wait for a worker, and those that a worker offers to an idle one.
class Queue {
public:
    explicit Queue(std::vector<int64_t> sentences) : waiting(std::move(sentences)) {}

    // Calls work(0) .. work(workers - 1) on threads. If one throws, the others stop.
    template <typename Work>
    void run(int64_t workers, const Work& work) {
        threads::run(workers, [&](int64_t number) {
            try {
                work(number);
            } catch (...) {
                has_failed = true;
                throw;
            }
        });
    }

    // Takes up to `most` waiting sentences; none after a worker has failed.
    std::vector<int64_t> take(int64_t most) {
        std::lock_guard<std::mutex> lock(mutex);
        const int64_t count = has_failed ? 0 : std::clamp<int64_t>(most, 0, waiting.size() - next);
        next += count;
        return {waiting.begin() + (next - count), waiting.begin() + next};
    }

    // Offers every second active sentence to an idle worker, if there is one.
    void offer(std::vector<int64_t>& active) {
        if (idle == 0 || has_offer || active.size() < 2) return;
        std::lock_guard<std::mutex> lock(mutex);
        if (has_offer) return;
        std::vector<int64_t> kept;
        for (size_t index = 0; index < active.size(); ++index) (index % 2 ? offered : kept).push_back(active[index]);
        active.swap(kept);
        has_offer = true;
    }

    // Registers a worker that has sentences.
    void begin() { ++busy; }

    std::atomic<bool> has_failed{false};

    // Waits for offered sentences. Returns false once all workers are idle, or one has failed.
    bool wait(std::vector<int64_t>& active) {
        --busy;
        ++idle;
        bool found = false;
        for (int polls = 0; !found && !has_failed && (has_offer || busy > 0); ++polls) {
            if (!has_offer) {
                threads::back_off(polls);
                continue;
            }
            std::lock_guard<std::mutex> lock(mutex);
            if (!has_offer) continue;
            active.swap(offered);
            offered.clear();
            ++busy;
            has_offer = false;
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
    std::atomic<bool> has_offer{false};
    std::atomic<int64_t> busy{0}, idle{0};
};

}  // namespace spec_dec
