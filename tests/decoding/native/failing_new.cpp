// An `operator new` that fails in all threads but one: the program of test_failed_allocations.py loads it first.

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

constexpr long NEVER = -1;
std::atomic<long> left{NEVER};  // calls until one fails
std::atomic<bool> has_failed{false}, goes_on{false};
pthread_t spared;

}  // namespace

// Lets the call after `calls` others fail, and all later ones if `is_lasting`, except those of this thread.
extern "C" void fail_after(long calls, bool is_lasting) {
    spared = pthread_self();
    has_failed = false;
    goes_on = is_lasting;
    left = calls;
}

// Lets no call fail. Returns whether one has failed.
extern "C" bool fail_no_more() {
    left = NEVER;
    return has_failed;
}

void* operator new(size_t size) {
    if (left != NEVER && !pthread_equal(pthread_self(), spared) && left.fetch_sub(left > 0 || !goes_on) == 0) {
        has_failed = true;
        throw std::bad_alloc();
    }
    if (void* memory = std::malloc(size)) return memory;
    throw std::bad_alloc();
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
