// A thread pool. The calls of a decoding step are too short to start threads for each.

#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

namespace spec_dec {
namespace threads {

// Sets the number of threads of a call, including the caller's.
void set(int64_t count);

// Sets that number for calls from this thread only; 0 for the common one.
void set_own(int64_t count);

// Returns the number of threads that a call may use; 1 inside `run`, because parallelism is not nested.
int64_t available();

// Calls task(0) .. task(parts - 1) on threads; sequentially if another call has the pool. A single part runs on the
// caller's thread and may use the pool itself. Rethrows the first exception of a part here, once the others have ended.
void run(int64_t parts, const std::function<void(int64_t)>& task);

// Waits between two polls of another thread. After many polls it yields the core.
void back_off(int polls);

// Multiply-adds from which a further thread pays.
constexpr int64_t MIN_MULTIPLY_ADDS = 1 << 19;

// Calls `task(begin, end)` for ranges of 0 .. count, on as many threads as the work pays for. multiply_adds: of each
// item.
template <typename Task>
void parallel_for(int64_t count, int64_t multiply_adds, const Task& task) {
    const int64_t parts = std::min({available(), count, count * multiply_adds / MIN_MULTIPLY_ADDS});
    if (parts <= 1) return task(0, count);
    run(parts, [&](int64_t part) { task(part * count / parts, (part + 1) * count / parts); });
}

}  // namespace threads
}  // namespace spec_dec
