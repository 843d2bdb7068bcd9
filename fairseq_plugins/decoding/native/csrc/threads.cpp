#include "threads.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace spec_dec {
namespace threads {
namespace {

// Polls of a counter before a thread sleeps: the next step comes soon, and waking up takes longer than polling.
constexpr int SPINS = 4000;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // takes about as long as x86's pause; `yield` takes no time
#else
    std::this_thread::yield();
#endif
}

class Pool {
public:
    // Makes a pool of `wanted_size` threads, including the caller's; of fewer if the system refuses.
    explicit Pool(int64_t wanted_size) : wanted_size(wanted_size) {
        try {
            for (int64_t number = 1; number < wanted_size; ++number) {
                workers.emplace_back([this] { work(); });
            }
        } catch (const std::exception&) {  // std::system_error, or std::bad_alloc
        }
    }

    int64_t size() const { return static_cast<int64_t>(workers.size()) + 1; }

    // Calls task(0) .. task(parts - 1), at most size() of them. The caller takes the first, and then those that no
    // thread has begun: the system may have given its core to another program.
    void run(int64_t parts, const std::function<void(int64_t)>& task) {
        uint32_t own = 0;
        {
            std::lock_guard<std::mutex> lock(mutex);
            current = &task;
            wanted = parts;
            unfinished.store(parts, std::memory_order_relaxed);
            own = round_of(next.load(std::memory_order_relaxed)) + 1;
            next.store(static_cast<uint64_t>(own) << 32 | 1, std::memory_order_release);
        }
        wake.notify_all();
        task(0);
        unfinished.fetch_sub(1, std::memory_order_relaxed);
        run_parts(own, parts, task);
        for (int polls = 0; unfinished.load(std::memory_order_acquire) > 0; ++polls) back_off(polls);
    }

    const int64_t wanted_size;
    std::mutex in_use;

private:
    static uint32_t round_of(uint64_t next) { return static_cast<uint32_t>(next >> 32); }

    void work() {
        for (uint32_t seen = 0;;) {
            const auto is_new = [&] { return round_of(next.load(std::memory_order_acquire)) != seen; };
            for (int spin = 0; spin < SPINS && !is_new(); ++spin) pause();
            const std::function<void(int64_t)>* task;
            int64_t parts;
            {
                std::unique_lock<std::mutex> lock(mutex);
                wake.wait(lock, is_new);
                seen = round_of(next.load(std::memory_order_relaxed));
                task = current;
                parts = wanted;
            }
            run_parts(seen, parts, *task);
        }
    }

    // Runs parts of a round until all have begun. `task` may be called only while a part of its round is unfinished.
    void run_parts(uint32_t own, int64_t parts, const std::function<void(int64_t)>& task) {
        uint64_t claim = next.load(std::memory_order_acquire);
        while (round_of(claim) == own && static_cast<uint32_t>(claim) < parts) {
            if (!next.compare_exchange_weak(claim, claim + 1, std::memory_order_acquire)) continue;
            task(static_cast<uint32_t>(claim));
            unfinished.fetch_sub(1, std::memory_order_release);
            claim = next.load(std::memory_order_acquire);
        }
    }

    std::vector<std::thread> workers;  // they end with the process
    std::mutex mutex;
    std::condition_variable wake;
    const std::function<void(int64_t)>* current = nullptr;
    int64_t wanted = 0;
    std::atomic<int64_t> unfinished{0};  // parts of the round
    std::atomic<uint64_t> next{0};       // the round, in the upper half, and the part that begins next
};

std::atomic<int64_t> limit{1};
std::mutex pool_mutex;
Pool* pool = nullptr;
thread_local bool is_inside = false;
thread_local int64_t own_limit = 0;

// A forked child has none of its parent's threads, so it drops the pool. `pool_mutex` is held during a fork: otherwise
// the child might inherit it locked by a thread that it lacks.
const int handles_forks = pthread_atfork([] { pool_mutex.lock(); }, [] { pool_mutex.unlock(); },
                                         [] {
                                             pool = nullptr;
                                             pool_mutex.unlock();
                                         });

}  // namespace

void set(int64_t count) { limit.store(count < 1 ? 1 : count); }

void set_own(int64_t count) { own_limit = count; }

int64_t available() { return is_inside ? 1 : own_limit > 0 ? own_limit : limit.load(); }

void back_off(int polls) { polls < SPINS ? pause() : std::this_thread::yield(); }

void run(int64_t parts, const std::function<void(int64_t)>& task) {
    if (parts == 1) return task(0);
    Pool* own = nullptr;
    {
        std::lock_guard<std::mutex> lock(pool_mutex);
        // A pool that is too small is abandoned asleep.
        if (!pool || pool->wanted_size < parts) pool = new Pool(parts);
        own = pool;
    }
    std::unique_lock<std::mutex> lock(own->in_use, std::try_to_lock);
    if (!lock.owns_lock() || own->size() < parts) {
        for (int64_t part = 0; part < parts; ++part) task(part);
        return;
    }
    std::exception_ptr failure;
    std::mutex failing;
    own->run(parts, [&](int64_t part) {
        is_inside = true;
        try {
            task(part);
        } catch (...) {
            std::lock_guard<std::mutex> lock(failing);
            if (!failure) failure = std::current_exception();
        }
        is_inside = false;
    });
    if (failure) std::rethrow_exception(failure);
}

}  // namespace threads
}  // namespace spec_dec
