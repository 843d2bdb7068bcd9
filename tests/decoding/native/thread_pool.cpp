// Calls the kernels' thread pool from several threads at once, with ever other numbers of parts, and in forked
// processes; lets parts throw, and allocations fail; and hands sentences over between threads. With an argument, two
// tasks write one number: a race that ThreadSanitizer must see.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "queue.h"
// For what is its own.
#include "threads.cpp"

thread_local int64_t allocations = -1;  // of a thread, until one fails; negative: none fails

void* operator new(size_t size) {
    if (allocations >= 0 && allocations-- == 0) throw std::bad_alloc();
    if (void* memory = std::malloc(size)) return memory;
    throw std::bad_alloc();
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

using namespace spec_dec;

// Whether every part of every call has been run once.
bool all_run(int calls, int seed) {
    for (int call = 0; call < calls; ++call) {
        const int64_t parts = 2 + (call + seed) % 3;
        std::vector<int64_t> done(parts);
        threads::run(parts, [&](int64_t part) { done[part] += part + 1; });
        for (int64_t part = 0; part < parts; ++part) {
            if (done[part] != part + 1) return false;
        }
    }
    return true;
}

// Two threads add to a number. The first waits for the other one, or it might run both parts.
int64_t race() {
    int64_t shared = 0;
    std::atomic<int> begun{0};
    threads::run(2, [&](int64_t) {
        begun.fetch_add(1, std::memory_order_relaxed);
        while (begun.load(std::memory_order_relaxed) < 2) std::this_thread::yield();
        ++shared;
    });
    return shared;
}

// Sentences that need 1 to 40 iterations, all of them the first worker's at first: whether each has as many as it
// needs. Counts those that another worker has ended.
bool all_decoded(int64_t workers, int64_t sentences, int64_t& ended_elsewhere) {
    std::vector<int64_t> had(sentences), ended_by(sentences, -1), all(sentences);
    for (int64_t b = 0; b < sentences; ++b) all[b] = b;
    Queue queue(all);
    threads::run(workers, [&](int64_t worker) {
        queue.begin();
        std::vector<int64_t> active = queue.take(worker == 0 ? sentences : 0);
        do {
            while (!active.empty()) {
                for (const int64_t b : active) {
                    if (++had[b] == 1 + b % 40) ended_by[b] = worker;
                }
                std::this_thread::sleep_for(std::chrono::microseconds(50));
                const auto is_over = [&](int64_t b) { return ended_by[b] >= 0; };
                active.erase(std::remove_if(active.begin(), active.end(), is_over), active.end());
                queue.offer(active);
            }
        } while (queue.wait(active));
    });
    bool is_right = true;
    for (int64_t b = 0; b < sentences; ++b) {
        is_right &= had[b] == 1 + b % 40;
        ended_elsewhere += ended_by[b] != 0;
    }
    return is_right;
}

// Whether the exceptions of parts arrive at the caller, after all parts have ended, and later calls are right.
bool all_caught(int64_t parts, int64_t thrower) {
    std::atomic<int64_t> ended{0};
    bool is_caught = false;
    try {
        threads::run(parts, [&](int64_t part) {
            if (part == thrower || thrower < 0) throw std::bad_alloc();
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            ++ended;
        });
    } catch (const std::bad_alloc&) {
        is_caught = true;
    }
    const int64_t expected = thrower < 0 ? 0 : parts - 1;
    return is_caught && ended == expected && threads::available() == 4 && all_run(2, 0);
}

// Whether calls are right after an allocation for a larger pool has failed. Without memory for all of its threads, one
// thread runs all parts.
bool all_run_without_memory() {
    int64_t failed = 0, had = 0;
    for (int64_t count = 0; count < 12; ++count) {
        const int64_t parts = 5 + count;
        std::vector<int64_t> done(parts);
        allocations = count;
        try {
            threads::run(parts, [&](int64_t part) { ++done[part]; });
            had += std::count(done.begin(), done.end(), 1) == parts;
        } catch (const std::bad_alloc&) {
            ++failed;
        }
        allocations = -1;
        if (!all_run(2, 0)) return false;
    }
    return failed > 0 && had > 0 && failed + had == 12;
}

}  // namespace

int main(int arguments, char**) {
    threads::set(4);
    if (arguments > 1) return race() > 2;
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    for (int seed = 0; seed < 4; ++seed) {
        callers.emplace_back([&wrong, seed] { wrong += !all_run(200, seed); });
    }
    // Forked while others use the pool. ThreadSanitizer starts no threads in such a child, so it takes the pool of
    // none.
    for (int child = 0; child < 5; ++child) {
        const pid_t process = fork();
        if (process == 0) {
            alarm(500);
            _exit(threads::pool_mutex.try_lock() && !threads::pool ? 0 : 1);
        }
        int status = 0;
        waitpid(process, &status, 0);
        wrong += status != 0;
    }
    for (std::thread& caller : callers) caller.join();
    if (wrong) std::fputs("calls or children went wrong\n", stderr);
    for (int64_t thrower = -1; thrower < 4; ++thrower) {
        if (all_caught(4, thrower)) continue;
        std::fputs("an exception was lost\n", stderr);
        wrong += 1;
    }
    if (!all_run_without_memory()) {
        std::fputs("a failed allocation was not survived\n", stderr);
        wrong += 1;
    }
    // Where the processors are busy, the first worker may be done before another one wakes.
    int64_t ended_elsewhere = 0;
    for (int turn = 0; turn < 1000 && (turn < 8 || ended_elsewhere == 0); ++turn) {
        if (all_decoded(1 + turn % 4, 100, ended_elsewhere)) continue;
        std::fputs("sentences were not decoded once\n", stderr);
        wrong += 1;
    }
    if (ended_elsewhere == 0) std::fputs("no sentence was handed over\n", stderr);
    if (wrong || ended_elsewhere == 0) return 1;
    std::puts("800 calls");
    // Threads of the pool never end.
    std::fflush(stdout);
    _exit(0);
}
