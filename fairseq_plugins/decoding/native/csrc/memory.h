// Reusable buffers, and the KV cache in one of them.

#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace spec_dec {

// Allocator that leaves new elements uninitialised: all are written before they are read.
template <typename Number>
struct Uninitialized : std::allocator<Number> {
    template <typename Other>
    struct rebind {
        using other = Uninitialized<Other>;
    };

    void construct(Number* place) { ::new (static_cast<void*>(place)) Number; }
    void construct(Number* place, Number value) { *place = value; }
};
using Floats = std::vector<float, Uninitialized<float>>;

// Grows a buffer to at least `size` numbers, and returns their address.
template <typename Buffer>
auto* at_least(Buffer& buffer, int64_t size) {
    if (static_cast<int64_t>(buffer.size()) < size) buffer.resize(size);
    return buffer.data();
}

// A large array of lazily mapped pages, which take no memory until they are written: a cache has slots for the longest
// output, but most outputs are short. Growing discards the contents.
class ReusableBuffer {
public:
    ReusableBuffer() = default;
    ~ReusableBuffer() { release(); }
    ReusableBuffer(const ReusableBuffer&) = delete;
    ReusableBuffer& operator=(const ReusableBuffer&) = delete;

    float* at_least(int64_t numbers) {
        const size_t wanted = numbers * sizeof(float);
        if (wanted > bytes) {
            release();
            void* mapped =
                mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (mapped == MAP_FAILED) throw std::bad_alloc();
            memory = static_cast<float*>(mapped);
            bytes = wanted;
        }
        return memory;
    }

private:
    void release() {
        if (memory) munmap(memory, bytes);
        memory = nullptr;
        bytes = 0;
    }

    float* memory = nullptr;
    size_t bytes = 0;
};

// Keys and values [layers][rows][2][D]: a row for each slot of each sentence, or for each source token.
class KeyValues {
public:
    void reset(int64_t layers, int64_t new_rows, int64_t width) {
        rows = new_rows;
        row_size = 2 * width;
        base = buffer.at_least(layers * rows * row_size);
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
    ReusableBuffer buffer;
    float* base = nullptr;
    int64_t rows = 0;
};

}  // namespace spec_dec
