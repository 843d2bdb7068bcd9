// Products of float32 rows and float16 weights on AMX tiles, which multiply bfloat16 numbers and add up in float32:
// sixteen rows take as long as one.
//
// Nothing is rounded for it. A float32 number is the sum of three bfloat16 numbers (the first eight bits of its
// significand, the next eight and the last); a float16 number is the sum of two. Of the six products of such parts,
// that of the last parts, less than 2^-24 of the whole, is left out. The order of the sums does not depend on the
// number of rows.

#pragma once

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "simd.h"

namespace spec_dec {
namespace SPEC_DEC_ISA {
namespace amx {

constexpr int ROWS = 16, INPUTS = 32, OUTPUTS = 16;  // of a tile of rows, and of weights
constexpr int PARTS = 3, WEIGHT_PARTS = 2;
constexpr int LINE = 64, TILE = 16 * LINE;  // bytes

// Weights are held times 1024, [outputs / 16][inputs / 2][16][2] in float16, so that they and their parts are normal
// numbers. Such a number without its last three bits, shifted by three, is a bfloat16 number whose exponent is too
// small by 112. Rows are scaled up so that nothing is lost to that, and results are scaled to make up for all three
// factors.
constexpr float WEIGHT_SCALE = 1024, ROW_SCALE = 0x1p60f, RESULT_SCALE = 0x1p42f;

// Whether the system lets this process use the tiles; it has to be asked.
inline bool is_allowed() {
    constexpr int REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool allowed = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    return allowed;
}

struct Shapes {
    uint8_t palette, start, reserved[14];
    uint16_t line_bytes[16];
    uint8_t lines[16];
};

// Tells the compiler that memory is read or written: it does not know what tile instructions do.
inline void memory_is_read(const void* memory = nullptr) { asm volatile("" ::"r"(memory) : "memory"); }

// This thread has its tiles while this lives, with as many lines as there are rows in those of rows and results.
struct InUse {
    explicit InUse(int64_t rows) {
        const auto own = static_cast<uint8_t>(std::min<int64_t>(rows, ROWS));
        const Shapes shapes = {
            1, 0, {}, {LINE, LINE, LINE, LINE, LINE, LINE, LINE, LINE}, {own, own, own, own, own, ROWS, ROWS, ROWS}};
        memory_is_read(&shapes);
        _tile_loadconfig(&shapes);
    }
    ~InUse() { _tile_release(); }
    InUse(const InUse&) = delete;
};

// Rows of x in parts, [rows / 16][inputs / 32][PARTS][16][32]. Lines of no row are not set; their results are not read.
class Rows {
public:
    Rows(const float* x, int64_t rows, int inputs) : blocks(inputs / INPUTS), numbers(memory(rows)) {
        for (int64_t row = 0; row < rows; ++row) {
            for (int i = 0; i < inputs; i += OUTPUTS) {
                uint8_t* to = group(row / ROWS) + i / INPUTS * PARTS * TILE + row % ROWS * LINE + i % INPUTS * 2;
                __m512 rest = _mm512_loadu_ps(x + row * inputs + i) * ROW_SCALE;
                for (int part = 0; part < PARTS; ++part, to += TILE) {
                    const __m512i first = _mm512_and_si512((__m512i)rest, _mm512_set1_epi32(~0xffff));
                    rest = rest - (__m512)first;
                    const __m256i halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32(first, 16));
                    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
                }
            }
        }
    }

    // 16 rows, [inputs / 32][PARTS][16][32].
    uint8_t* group(int64_t number) const { return numbers + number * blocks * PARTS * TILE; }

    const int64_t blocks;

private:
    uint8_t* memory(int64_t rows) const {
        struct alignas(LINE) Line {
            uint8_t bytes[LINE];
        };
        thread_local std::vector<Line> lines;
        const size_t size = (rows + ROWS - 1) / ROWS * blocks * PARTS * TILE / LINE;
        if (lines.size() < size) lines.resize(size);
        return lines.data()->bytes;
    }

    uint8_t* const numbers;
};

// Splits the weights of one tile into parts, [WEIGHT_PARTS][16][16][2], line by line.
struct Splitting {
    const uint8_t* from;
    uint8_t* to;
    int64_t ahead;  // bytes from here to the weights to prefetch

    __attribute__((always_inline)) inline void split(int lines) {
        const __m512i without_exponent = _mm512_set1_epi16(static_cast<int16_t>(0x8fff));
        for (int line = 0; line < lines; ++line, from += LINE, to += LINE) {
            const __m512i both = _mm512_loadu_si512(from);
            _mm_prefetch(from + ahead, _MM_HINT_T1);
            const __m512i first = _mm512_and_si512(both, _mm512_set1_epi16(~7));
            const __m512i last = (__m512i)((__m512h)both - (__m512h)first);
            _mm512_store_si512(to, _mm512_and_si512(_mm512_srai_epi16(both, 3), without_exponent));
            _mm512_store_si512(to + TILE, _mm512_and_si512(_mm512_srai_epi16(last, 3), without_exponent));
        }
        memory_is_read();
    }
};

// The weights of some panels, of which PANELS are multiplied at a time.
template <int PANELS>
struct Weights {
    const uint8_t* numbers;
    int64_t panels, blocks;

    // For a block of the panel `panel` + i; after the last panel that one again, whose results are not read.
    Splitting splitting(int64_t panel, int i, int64_t block, uint8_t* to) const {
        const int64_t place = std::min(panel + i, panels - 1) * blocks + block;
        return {numbers + place * TILE, to + i * WEIGHT_PARTS * TILE, PANELS * blocks * TILE};
    }

    // For the block after this one.
    Splitting next(int64_t panel, int i, int64_t block, uint8_t* to) const {
        return block + 1 < blocks ? splitting(panel, i, block + 1, to) : splitting(panel + PANELS, i, 0, to);
    }
};

// The products of parts in the order of their sum: the part of the rows, and that of the weights.
constexpr int PRODUCTS = 5, PART_OF_ROWS[PRODUCTS] = {0, 1, 2, 0, 1}, PART_OF_WEIGHTS[PRODUCTS] = {0, 0, 0, 1, 1};
inline bool are_other_weights(int product) {
    return product == 0 || PART_OF_WEIGHTS[product] != PART_OF_WEIGHTS[product - 1];
}

// Multiplies up to 16 rows; sums have `line` bytes a row. Three panels at a time, each with a sum of its own, because a
// sum has to wait for itself; there is room for the sums of missing panels.
//
// Vectors and tiles work at the same time if their instructions alternate. So the weights of the next block are split
// meanwhile, some lines after every product.
inline void multiply_few(const uint8_t* x, const Weights<3>& weights, float* sums, int64_t line) {
    constexpr int PANELS = 3;
    alignas(LINE) uint8_t memory[2][PANELS][WEIGHT_PARTS][TILE];
    for (int i = 0; i < PANELS; ++i) weights.splitting(0, i, 0, memory[0][0][0]).split(16);
    bool turn = false;
    for (int64_t panel = 0; panel < weights.panels; panel += PANELS, sums += PANELS * OUTPUTS) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        for (int64_t block = 0; block < weights.blocks; ++block, turn = !turn) {
            const auto& ready = memory[turn];
            uint8_t* const coming = memory[!turn][0][0];
            Splitting a = weights.next(panel, 0, block, coming), b = weights.next(panel, 1, block, coming);
            Splitting c = weights.next(panel, 2, block, coming);
            // 16 lines of each panel between five products each.
            const auto split = [&](int number) {
                (number < 5 ? a : number < 10 ? b : c).split(number % 5 == 4 ? 4 : 3);
            };
#pragma GCC unroll 5
            for (int product = 0; product < PRODUCTS; ++product) {
                if (are_other_weights(product)) {
                    _tile_loadd(5, ready[0][PART_OF_WEIGHTS[product]], LINE);
                    _tile_loadd(6, ready[1][PART_OF_WEIGHTS[product]], LINE);
                    _tile_loadd(7, ready[2][PART_OF_WEIGHTS[product]], LINE);
                }
                _tile_loadd(3, x + (block * PARTS + PART_OF_ROWS[product]) * TILE, LINE);
                _tile_dpbf16ps(0, 3, 5);
                split(3 * product);
                _tile_dpbf16ps(1, 3, 6);
                split(3 * product + 1);
                _tile_dpbf16ps(2, 3, 7);
                split(3 * product + 2);
            }
        }
        _tile_stored(0, sums, line);
        _tile_stored(1, sums + OUTPUTS, line);
        _tile_stored(2, sums + 2 * OUTPUTS, line);
        memory_is_read();
    }
}

// Multiplies 32 rows, of which `others` are the last 16, two panels at a time.
inline void multiply_more(const uint8_t* x, const uint8_t* others, const Weights<2>& weights, float* sums,
                          int64_t line) {
    constexpr int PANELS = 2;
    alignas(LINE) uint8_t memory[2][PANELS][WEIGHT_PARTS][TILE];
    for (int i = 0; i < PANELS; ++i) weights.splitting(0, i, 0, memory[0][0][0]).split(16);
    bool turn = false;
    float* other_sums = sums + ROWS * line / static_cast<int64_t>(sizeof(float));
    for (int64_t panel = 0; panel < weights.panels;
         panel += PANELS, sums += PANELS * OUTPUTS, other_sums += PANELS * OUTPUTS) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t block = 0; block < weights.blocks; ++block, turn = !turn) {
            const auto& ready = memory[turn];
            uint8_t* const coming = memory[!turn][0][0];
            Splitting a = weights.next(panel, 0, block, coming), b = weights.next(panel, 1, block, coming);
            const auto split = [&](int number) { (number < 10 ? a : b).split(number % 10 < 6 ? 2 : 1); };
#pragma GCC unroll 5
            for (int product = 0; product < PRODUCTS; ++product) {
                if (are_other_weights(product)) {
                    _tile_loadd(5, ready[0][PART_OF_WEIGHTS[product]], LINE);
                    _tile_loadd(6, ready[1][PART_OF_WEIGHTS[product]], LINE);
                }
                const int64_t place = (block * PARTS + PART_OF_ROWS[product]) * TILE;
                _tile_loadd(4, x + place, LINE);
                _tile_loadd(7, others + place, LINE);
                _tile_dpbf16ps(0, 4, 5);
                split(4 * product);
                _tile_dpbf16ps(1, 4, 6);
                split(4 * product + 1);
                _tile_dpbf16ps(2, 7, 5);
                split(4 * product + 2);
                _tile_dpbf16ps(3, 7, 6);
                split(4 * product + 3);
            }
        }
        _tile_stored(0, sums, line);
        _tile_stored(1, sums + OUTPUTS, line);
        _tile_stored(2, other_sums, line);
        _tile_stored(3, other_sums + OUTPUTS, line);
        memory_is_read();
    }
}

}  // namespace amx
}  // namespace SPEC_DEC_ISA
}  // namespace spec_dec
