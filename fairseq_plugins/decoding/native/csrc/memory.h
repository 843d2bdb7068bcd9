// Reusable buffers, and the KV cache.

#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace spec_dec {

// Allocator for what vectors and tiles read and write. Arrays begin at a cache line, since what lies in two lines takes
// twice as long; large ones at a huge page, and ask for such pages, since address translation of small ones limits how
// fast weights are read. New elements are left uninitialised, since all are written before they are read.
template <typename Number>
struct LineAllocator {
    using value_type = Number;
    static constexpr size_t LINE = 64, HUGE_PAGE = 2 << 20;

    LineAllocator() = default;
    template <typename Other>
    LineAllocator(const LineAllocator<Other>&) {}

    Number* allocate(size_t count) {
        void* memory = ::operator new(count * sizeof(Number), alignment(count));
#ifdef MADV_HUGEPAGE
        const size_t whole = count * sizeof(Number) / HUGE_PAGE * HUGE_PAGE;
        if (whole > 0) madvise(memory, whole, MADV_HUGEPAGE);
#endif
        return static_cast<Number*>(memory);
    }
    void deallocate(Number* numbers, size_t count) { ::operator delete(numbers, alignment(count)); }
    void construct(Number* place) { ::new (static_cast<void*>(place)) Number; }
    void construct(Number* place, Number value) { *place = value; }
    bool operator==(const LineAllocator&) const { return true; }
    bool operator!=(const LineAllocator&) const { return false; }

private:
    static std::align_val_t alignment(size_t count) {
        return std::align_val_t(count * sizeof(Number) < HUGE_PAGE ? LINE : HUGE_PAGE);
    }
};
template <typename Number>
using Aligned = std::vector<Number, LineAllocator<Number>>;
using Floats = Aligned<float>;

// Grows a buffer to at least `size` numbers, and returns their address.
template <typename Buffer>
auto* at_least(Buffer& buffer, int64_t size) {
    if (static_cast<int64_t>(buffer.size()) < size) buffer.resize(size);
    return buffer.data();
}

// Sets `rows` to the addresses of `count` rows that lie `stride` numbers apart.
inline void set_addresses(std::vector<const float*>& rows, const float* first, int64_t stride, int64_t count) {
    rows.resize(count);
    for (int64_t row = 0; row < count; ++row) rows[row] = first + row * stride;
}

// Keys and values [layers][rows][2][D]: a row for each slot of each sentence, or for each source token. Their pages are
// mapped lazily and take no memory until they are written: there are slots for the longest output, but most outputs are
// short.
class KeyValues {
public:
    KeyValues() = default;
    ~KeyValues() { unmap(); }
    KeyValues(const KeyValues&) = delete;
    KeyValues& operator=(const KeyValues&) = delete;

    // Discards the contents.
    void reset(int64_t layers, int64_t new_rows, int64_t width) {
        rows = new_rows;
        row_size = 2 * width;
        const size_t wanted = layers * rows * row_size * sizeof(float);
        if (wanted <= bytes) return;
        unmap();
        void* mapped =
            mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapped == MAP_FAILED) throw std::bad_alloc();
        base = static_cast<float*>(mapped);
        bytes = wanted;
    }

    float* at(int64_t layer, int64_t row) const { return base + (layer * rows + row) * row_size; }

    // Gives whole pages of some rows back to the system.
    void release(int64_t layer, int64_t row, int64_t count) const {
        const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
        const auto begin = (reinterpret_cast<uintptr_t>(at(layer, row)) + page - 1) / page * page;
        const auto end = reinterpret_cast<uintptr_t>(at(layer, row + count)) / page * page;
        if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
    }

    int64_t row_size = 0;  // floats of a key and its value

private:
    void unmap() {
        if (bytes > 0) munmap(base, std::exchange(bytes, 0));
    }

    float* base = nullptr;
    size_t bytes = 0;
    int64_t rows = 0;
};

}  // namespace spec_dec
