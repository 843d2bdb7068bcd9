// Calls the kernels' thread pool from several threads at once, with ever other numbers of parts, and in forked processes.
// With an argument, a task writes what another one reads: a race that ThreadSanitizer must see.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "threads.h"

namespace {

// Whether every part of every call has been run once.
bool all_run(int calls, int seed, bool race) {
    int64_t shared = 0;
    for (int call = 0; call < calls; ++call) {
        const int64_t parts = 2 + (call + seed) % 3;
        std::vector<int64_t> done(parts);
        threads::run(parts, [&](int64_t part) {
            done[part] += part + 1;
            if (race) shared += part;
        });
        for (int64_t part = 0; part < parts; ++part) {
            if (done[part] != part + 1) return false;
        }
    }
    return shared >= 0;
}

}  // namespace

int main(int arguments, char**) {
    threads::set(4);
    const bool race = arguments > 1;
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    for (int seed = 0; seed < 4; ++seed) {
        callers.emplace_back([&wrong, seed, race] { wrong += !all_run(200, seed, race); });
    }
    // Forked while others use the pool. ThreadSanitizer starts no threads in such a child, so it takes the pool of none.
    for (int child = 0; child < 5; ++child) {
        const pid_t process = fork();
        if (process == 0) {
            alarm(20);
            _exit(threads::making.try_lock() && !threads::pool ? 0 : 1);
        }
        int status = 0;
        waitpid(process, &status, 0);
        wrong += status != 0;
    }
    for (std::thread& caller : callers) caller.join();
    if (wrong) return 1;
    std::puts("800 calls");
    // Threads of the pool never end.
    std::fflush(stdout);
    _exit(0);
}
