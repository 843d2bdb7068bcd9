// Products of float32 rows and float32 or float16 weights on AMX tiles, which multiply bfloat16 numbers and sum in
// float32. Sixteen rows take as long as one.
//
// Numbers are split instead of rounded. A float32 number is the sum of three bfloat16 numbers (eight bits of its
// significand each); a float16 number is the sum of two. The smallest products of these parts are omitted: together
// they are below 2^-21 of the whole, and 2^-24 on average. The order of the sums does not depend on the number of rows.
//
// The error of an output of n inputs is at most 2^-24 * (n / 5 + 25) times the sum of all |input * weight|; with fused
// multiply-adds in float32, 2^-24 * n times. Tiles take subnormal numbers as zero, so that float32 numbers below 2^-102
// lose bits. Infinite numbers give NaN.

#pragma once

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "../memory.h"
#include "simd.h"

namespace spec_dec {
namespace SPEC_DEC_ISA {
namespace amx {

constexpr int ROWS = 16, INPUTS = 32, OUTPUTS = 16;  // of a tile
constexpr int PARTS = 3;                             // bfloat16 numbers that sum to an input
constexpr int LINE = 64, TILE = 16 * LINE;           // bytes of a line and of a tile

// The products of parts, in the order of summation: the part of the rows and the part of the weights.
constexpr int PART_OF_ROWS[] = {2, 1, 0, 0, 1, 0}, PART_OF_WEIGHTS[] = {0, 0, 0, 1, 1, 2};
inline bool needs_rows(int product) { return product == 0 || PART_OF_ROWS[product] != PART_OF_ROWS[product - 1]; }
inline bool needs_weights(int product) {
    return product == 0 || PART_OF_WEIGHTS[product] != PART_OF_WEIGHTS[product - 1];
}

// Weights in float16, [outputs / 16][inputs / 2][16][2], times 1024, so that they and their parts are normal numbers. A
// float16 number without its last three bits, shifted right by three, is a bfloat16 number whose exponent is too small
// by 112. Rows are scaled up, so that products become zero only below 2^-84; results are scaled back by all three.
struct Float16 {
    using Number = uint16_t;
    static constexpr int PARTS = 2, PRODUCTS = 5, GROUP = 2;
    static constexpr float WEIGHT_SCALE = 1024, ROW_SCALE = 0x1p60f, RESULT_SCALE = 0x1p42f;

    static Number pack(float number) {
        const __m128i half = _mm_cvtps_ph(_mm_set_ss(number * WEIGHT_SCALE), _MM_FROUND_TO_NEAREST_INT);
        return static_cast<Number>(_mm_extract_epi16(half, 0));
    }

    // Splits the weights of two inputs and 16 outputs: a line of each part's tile.
    __attribute__((always_inline)) static inline void split(const Number* from, uint8_t* to) {
        const __m512i without_exponent = _mm512_set1_epi16(static_cast<int16_t>(0x8fff));
        const __m512i both = _mm512_loadu_si512(from);
        const __m512i first = _mm512_and_si512(both, _mm512_set1_epi16(~7));
        const __m512i last = (__m512i)((__m512h)both - (__m512h)first);
        _mm512_store_si512(to, _mm512_and_si512(_mm512_srai_epi16(both, 3), without_exponent));
        _mm512_store_si512(to + TILE, _mm512_and_si512(_mm512_srai_epi16(last, 3), without_exponent));
    }
};

// Weights in float32, [outputs / 16][inputs][16].
struct Float32 {
    using Number = float;
    static constexpr int PARTS = 3, PRODUCTS = 6, GROUP = 1;
    static constexpr float ROW_SCALE = 1, RESULT_SCALE = 1;

    static Number pack(float number) { return number; }

    __attribute__((always_inline)) static inline void split(const Number* from, uint8_t* to) {
        const __m512i upper = _mm512_set1_epi32(~0xffff);
        __m512 first = _mm512_loadu_ps(from), second = _mm512_loadu_ps(from + OUTPUTS);
#pragma GCC unroll 3
        for (int part = 0; part < PARTS; ++part, to += TILE) {
            const __m512i a = _mm512_and_si512((__m512i)first, upper), b = _mm512_and_si512((__m512i)second, upper);
            _mm512_store_si512(to, _mm512_or_si512(_mm512_srli_epi32((__m512i)first, 16), b));
            first = first - (__m512)a;
            second = second - (__m512)b;
        }
    }
};

// Asks Linux for permission to use the tiles, once for the process.
inline bool is_allowed() {
    constexpr int REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool allowed = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    return allowed;
}

// The operand of LDTILECFG.
struct TileShapes {
    uint8_t palette, start, reserved[14];
    uint16_t line_bytes[16];
    uint8_t lines[16];
};

// Compiler barrier: GCC does not know which memory tile instructions read and write.
inline void memory_barrier(const void* memory = nullptr) { asm volatile("" ::"r"(memory) : "memory"); }

// Configures the tiles of this thread for its lifetime. Tiles of inputs and results have min(rows, 16) lines.
struct TileConfig {
    explicit TileConfig(int64_t rows) {
        const auto lines = static_cast<uint8_t>(std::min<int64_t>(rows, ROWS));
        const TileShapes shapes = {1,
                                   0,
                                   {},
                                   {LINE, LINE, LINE, LINE, LINE, LINE, LINE, LINE},
                                   {lines, lines, lines, lines, lines, lines, ROWS, ROWS}};
        memory_barrier(&shapes);
        _tile_loadconfig(&shapes);
    }
    ~TileConfig() { _tile_release(); }
    TileConfig(const TileConfig&) = delete;
};

// Rows of x split into bfloat16 parts, [rows / 16][inputs / 32][PARTS][16][32]. Padding rows stay uninitialised, and
// their results are not read.
class SplitRows {
public:
    SplitRows(const float* x, int64_t rows, int inputs, float scale) : blocks(inputs / INPUTS), numbers(memory(rows)) {
        for (int64_t row = 0; row < rows; ++row) {
            for (int i = 0; i < inputs; i += OUTPUTS) {
                uint8_t* to = group(row / ROWS) + i / INPUTS * PARTS * TILE + row % ROWS * LINE + i % INPUTS * 2;
                __m512 rest = _mm512_loadu_ps(x + row * inputs + i) * scale;
                for (int part = 0; part < PARTS; ++part, to += TILE) {
                    const __m512i upper = _mm512_and_si512((__m512i)rest, _mm512_set1_epi32(~0xffff));
                    rest = rest - (__m512)upper;
                    const __m256i halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32(upper, 16));
                    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
                }
            }
        }
    }

    // Returns a group of 16 rows, [inputs / 32][PARTS][16][32].
    uint8_t* group(int64_t number) const { return numbers + number * blocks * PARTS * TILE; }

    const int64_t blocks;

private:
    uint8_t* memory(int64_t rows) const {
        thread_local Aligned<uint8_t> tiles;
        return at_least(tiles, (rows + ROWS - 1) / ROWS * blocks * PARTS * TILE);
    }

    uint8_t* const numbers;
};

// Splits the weights of one tile into bfloat16 parts, [PARTS][16][16][2], and prefetches those at `later`. from: null
// for padding, which stays as it is.
template <typename Format>
struct WeightSplitter {
    static constexpr int NUMBERS = 2 * OUTPUTS;  // of a line
    const typename Format::Number *from, *later;
    uint8_t* to;

    // Splits a share of the lines: step `step` of `steps`.
    __attribute__((always_inline)) inline void split(int step = 0, int steps = 1) const {
        if (!from) return;
        for (int line = 16 * step / steps; line < 16 * (step + 1) / steps; ++line) {
            Format::split(from + line * NUMBERS, to + line * LINE);
            for (int i = 0; i < NUMBERS; i += LINE / sizeof(*from)) {
                _mm_prefetch(later + line * NUMBERS + i, _MM_HINT_T1);
            }
        }
        memory_barrier();
    }
};

// A weight's panels, each of `blocks` blocks of inputs, of which `PANELS` are multiplied at a time.
template <typename Format, int PANELS>
struct Weights {
    const typename Format::Number* numbers;
    int64_t panels, blocks;

    // Returns the splitter of a block of panel `panel` + i.
    WeightSplitter<Format> splitter(int64_t panel, int i, int64_t block, uint8_t* to) const {
        constexpr int AHEAD = 8;  // blocks
        const int64_t number = index(panel + i, block);
        return {number < panels * blocks ? at(number) : nullptr, at(index(panel + i, block + AHEAD)),
                to + i * Format::PARTS * TILE};
    }

private:
    // After the last block of a panel comes the first of the panel that is multiplied next.
    int64_t index(int64_t panel, int64_t block) const {
        for (; block >= blocks; block -= blocks) panel += PANELS;
        return panel * blocks + block;
    }
    const typename Format::Number* at(int64_t number) const { return numbers + number * INPUTS * OUTPUTS; }
};

// Multiplies 16 rows by four panels at a time, or 32 rows by two: four sums hide the latency of the tile instructions.
// x: the groups of 16 rows. put(panel, sums) receives the sums [rows][PANELS][16] from a panel on.
//
// Vector and tile units work in parallel if their instructions alternate. So the weights of the next block are split
// between the products of this one (double buffering).
template <typename Format, int ROW_TILES, typename Put>
void multiply_tiles(const std::array<const uint8_t*, ROW_TILES>& x, const typename Format::Number* numbers,
                    int64_t panels, int64_t blocks, const Put& put) {
    constexpr int SUMS = 4, PANELS = SUMS / ROW_TILES, PRODUCTS = Format::PRODUCTS, STRIDE = PANELS * LINE;
    const Weights<Format, PANELS> weights{numbers, panels, blocks};
    alignas(LINE) uint8_t memory[2][PANELS][Format::PARTS][TILE];
    alignas(LINE) float sums[ROW_TILES * ROWS][PANELS][OUTPUTS];
    // Where the second half of the sums lies: two panels on, or 16 rows.
    float* const others = ROW_TILES == 1 ? sums[0][PANELS / 2] : sums[ROW_TILES * ROWS / 2][0];
    for (int i = 0; i < PANELS; ++i) weights.splitter(0, i, 0, memory[0][0][0]).split();
    bool buffer = false;
    for (int64_t panel = 0; panel < panels; panel += PANELS) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t block = 0; block < blocks; ++block, buffer = !buffer) {
            const auto& current = memory[buffer];
            std::array<WeightSplitter<Format>, PANELS> next;
            for (int i = 0; i < PANELS; ++i) next[i] = weights.splitter(panel, i, block + 1, memory[!buffer][0][0]);
#pragma GCC unroll 6
            for (int product = 0; product < PRODUCTS; ++product) {
                const auto split = [&](int sum) __attribute__((always_inline)) {
                    next[sum % PANELS].split(product * ROW_TILES + sum / PANELS, PRODUCTS * ROW_TILES);
                };
                const int64_t offset = (block * PARTS + PART_OF_ROWS[product]) * TILE;
                const int part = PART_OF_WEIGHTS[product];
                if (needs_rows(product)) _tile_loadd(4, x[0] + offset, LINE);
                if (ROW_TILES == 1 || needs_weights(product)) {
                    _tile_loadd(6, current[0][part], LINE);
                    _tile_loadd(7, current[1][part], LINE);
                }
                _tile_dpbf16ps(0, 4, 6);
                split(0);
                _tile_dpbf16ps(1, 4, 7);
                split(1);
                if constexpr (ROW_TILES == 1) {
                    _tile_loadd(6, current[2][part], LINE);
                    _tile_loadd(7, current[3][part], LINE);
                    _tile_dpbf16ps(2, 4, 6);
                    split(2);
                    _tile_dpbf16ps(3, 4, 7);
                } else {
                    if (needs_rows(product)) _tile_loadd(5, x[1] + offset, LINE);
                    _tile_dpbf16ps(2, 5, 6);
                    split(2);
                    _tile_dpbf16ps(3, 5, 7);
                }
                split(3);
            }
        }
        _tile_stored(0, sums[0][0], STRIDE);
        _tile_stored(1, sums[0][1], STRIDE);
        _tile_stored(2, others, STRIDE);
        _tile_stored(3, others + OUTPUTS, STRIDE);
        memory_barrier();
        put(panel, sums);
    }
}

}  // namespace amx
}  // namespace SPEC_DEC_ISA
}  // namespace spec_dec
