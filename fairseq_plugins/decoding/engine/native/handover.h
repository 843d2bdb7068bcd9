// Threads that have no sentences left take some over from those that have several. Part of kernels.cpp.

#pragma once

#include "threads.h"

namespace {

// Sentences that go from a thread which has several to one which has none.
class Handover {
public:
    // A thread begins that has sentences of its own.
    void begin() { ++busy; }

    // Offers every second one of `sentences`, which have had so many iterations, where somebody waits for some.
    void offer(std::vector<int64_t>& sentences, int64_t iterations) {
        if (waiting == 0 || is_full || sentences.size() < 2) return;
        std::lock_guard<std::mutex> lock(mutex);
        if (is_full) return;
        std::vector<int64_t> kept;
        for (size_t index = 0; index < sentences.size(); ++index) {
            (index % 2 ? offered : kept).push_back(sentences[index]);
        }
        sentences.swap(kept);
        done = iterations;
        is_full = true;
    }

    // Waits for some, for a thread that has none left; returns false when nobody has any.
    bool take(std::vector<int64_t>& sentences, int64_t& iterations) {
        --busy;
        ++waiting;
        bool found = false;
        for (int looks = 0; !found && (is_full || busy > 0); ++looks) {
            if (!is_full) {
                threads::pause_after(looks);
                continue;
            }
            std::lock_guard<std::mutex> lock(mutex);
            if (!is_full) continue;
            sentences.swap(offered);
            offered.clear();
            iterations = done;
            ++busy;
            is_full = false;
            found = true;
        }
        --waiting;
        return found;
    }

private:
    std::mutex mutex;
    std::vector<int64_t> offered;
    int64_t done = 0;
    std::atomic<bool> is_full{false};
    std::atomic<int64_t> busy{0}, waiting{0};
};

}  // namespace
