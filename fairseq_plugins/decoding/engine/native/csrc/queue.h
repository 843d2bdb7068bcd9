// Which thread decodes which sentences of a batch.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "threads.h"

namespace spec_dec {

// Sentences that wait for a worker, and those that a worker hands to an idle one.
class Queue {
public:
    explicit Queue(std::vector<int64_t> sentences) : waiting(std::move(sentences)) {}

    // Calls `work(number)` on some threads. Where one throws, the others stop, and the exception is thrown here.
    template <typename Work>
    void run(int64_t workers, const Work& work) {
        std::exception_ptr failure;
        threads::run(workers, [&](int64_t number) {
            try {
                work(number);
            } catch (...) {
                std::lock_guard<std::mutex> lock(mutex);
                if (!has_failed) failure = std::current_exception();
                has_failed = true;
            }
        });
        if (failure) std::rethrow_exception(failure);
    }

    // Up to `most` of the sentences that wait; none where a worker has failed.
    std::vector<int64_t> take(int64_t most) {
        std::lock_guard<std::mutex> lock(mutex);
        const int64_t count = has_failed ? 0 : std::clamp<int64_t>(most, 0, waiting.size() - next);
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

    std::atomic<bool> has_failed{false};

    // Waits for offered sentences; false where no worker has any left, or one has failed.
    bool wait(std::vector<int64_t>& active) {
        --busy;
        ++idle;
        bool found = false;
        for (int looks = 0; !found && !has_failed && (is_full || busy > 0); ++looks) {
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
