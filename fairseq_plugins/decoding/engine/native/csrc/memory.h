// Reusable buffers, and keys and values in them.

#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace spec_dec {

// Allocator that does not initialise new numbers: all are written before they are read.
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

// A large array mapped from the system, whose pages take no memory until they are written: a cache has slots for the
// longest output, and most outputs are short. Growing loses the contents.
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
            void* found =
                mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (found == MAP_FAILED) throw std::bad_alloc();
            memory = static_cast<float*>(found);
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

// Keys and values [layers][rows][2][D]. A cached sentence has `capacity` rows, a source one for each token.
class KeyValues {
public:
    void reset(int64_t layers, int64_t new_rows, int64_t width) {
        rows = new_rows;
        row_size = 2 * width;
        base = buffer.at_least(layers * rows * row_size);
    }

    float* at(int64_t layer, int64_t row) const { return base + (layer * rows + row) * row_size; }

    int64_t row_size = 0;  // numbers of a key and its value

private:
    ReusableBuffer buffer;
    float* base = nullptr;
    int64_t rows = 0;
};

}  // namespace spec_dec
