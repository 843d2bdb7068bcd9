// A few threads that wait for work: the calls of a decoding step are too short to start threads for each.

#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

namespace spec_dec {
namespace threads {

// Sets how many threads may work on a call, the caller's among them.
void set(int64_t count);

// How many threads a call may use; 1 inside of `run`, which is not divided further.
int64_t available();

// Calls task(0) .. task(parts - 1) on as many threads; one after the other where these are busy with another call. A
// single part may use several threads itself.
void run(int64_t parts, const std::function<void(int64_t)>& task);

// Waits a moment before another look at what a thread does; after many looks, lets that thread have this core.
void pause_after(int looks);

// Multiply-adds that take long enough for another thread to help.
constexpr int64_t MIN_PRODUCTS = 1 << 19;

// Calls `task` for parts of 0 .. `count`, on as many threads as `products` multiply-adds of each are worth.
template <typename Task>
void share(int64_t count, int64_t products, const Task& task) {
    const int64_t parts = std::min({available(), count, count * products / MIN_PRODUCTS});
    if (parts <= 1) return task(0, count);
    run(parts, [&](int64_t part) { task(part * count / parts, (part + 1) * count / parts); });
}

}  // namespace threads
}  // namespace spec_dec
