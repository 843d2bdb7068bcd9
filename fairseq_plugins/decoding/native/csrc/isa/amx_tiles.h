// Products of float32 rows and float16 weights on AMX tiles, which multiply bfloat16 numbers and sum in float32.
// Sixteen rows take as long as one.
//
// Inputs are split instead of rounded. A float32 number is the sum of three bfloat16 numbers (eight bits of its
// significand each); a float16 number is the sum of two. Of the six products of these parts the smallest, below 2^-24
// of the whole, is omitted. The order of the sums does not depend on the number of rows.

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

constexpr int ROWS = 16, INPUTS = 32, OUTPUTS = 16;  // of a tile
constexpr int PARTS = 3, WEIGHT_PARTS = 2;           // bfloat16 numbers that sum to an input, and to a weight
constexpr int LINE = 64, TILE = 16 * LINE;           // bytes of a line and of a tile

// Weights are stored times 1024, [outputs / 16][inputs / 2][16][2] in float16, so that they and their parts are normal
// numbers. A float16 number without its last three bits, shifted right by three, is a bfloat16 number whose exponent is
// too small by 112. Rows are scaled up to avoid underflow; results are scaled back by all three factors.
constexpr float WEIGHT_SCALE = 1024, ROW_SCALE = 0x1p60f, RESULT_SCALE = 0x1p42f;

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
                                   {lines, lines, lines, lines, lines, ROWS, ROWS, ROWS}};
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
    SplitRows(const float* x, int64_t rows, int inputs) : blocks(inputs / INPUTS), numbers(memory(rows)) {
        for (int64_t row = 0; row < rows; ++row) {
            for (int i = 0; i < inputs; i += OUTPUTS) {
                uint8_t* to = group(row / ROWS) + i / INPUTS * PARTS * TILE + row % ROWS * LINE + i % INPUTS * 2;
                __m512 rest = _mm512_loadu_ps(x + row * inputs + i) * ROW_SCALE;
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

// Splits the weights of one tile into bfloat16 parts, [WEIGHT_PARTS][16][16][2], a few lines at each call.
struct WeightSplitter {
    const uint8_t* from;
    uint8_t* to;
    int64_t ahead;  // bytes from `from` to the weights to prefetch

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
        memory_barrier();
    }
};

// The weights of `panels` panels, which are multiplied PANELS at a time.
template <int PANELS>
struct Weights {
    const uint8_t* numbers;
    int64_t panels, blocks;

    // Returns the splitter of a block of panel `panel` + i. Past the last panel it repeats that one, as padding.
    WeightSplitter splitter(int64_t panel, int i, int64_t block, uint8_t* to) const {
        const int64_t tile = std::min(panel + i, panels - 1) * blocks + block;
        return {numbers + tile * TILE, to + i * WEIGHT_PARTS * TILE, PANELS * blocks * TILE};
    }

    // Returns the splitter of the block after this one.
    WeightSplitter next(int64_t panel, int i, int64_t block, uint8_t* to) const {
        return block + 1 < blocks ? splitter(panel, i, block + 1, to) : splitter(panel + PANELS, i, 0, to);
    }
};

// The products of parts, in the order of summation: the part of the rows and the part of the weights.
constexpr int PRODUCTS = 5, PART_OF_ROWS[PRODUCTS] = {0, 1, 2, 0, 1}, PART_OF_WEIGHTS[PRODUCTS] = {0, 0, 0, 1, 1};
inline bool needs_weights(int product) {
    return product == 0 || PART_OF_WEIGHTS[product] != PART_OF_WEIGHTS[product - 1];
}

// Multiplies up to 16 rows. sums: `line` bytes for each row, with space for a multiple of three panels. Three panels at
// a time, with independent sums, hide the latency of the tile instructions.
//
// Vector and tile units work in parallel if their instructions alternate. So the weights of the next block are split
// between the products of this one (double buffering).
inline void multiply_16_rows(const uint8_t* x, const Weights<3>& weights, float* sums, int64_t line) {
    constexpr int PANELS = 3;
    alignas(LINE) uint8_t memory[2][PANELS][WEIGHT_PARTS][TILE];
    for (int i = 0; i < PANELS; ++i) weights.splitter(0, i, 0, memory[0][0][0]).split(16);
    bool buffer = false;
    for (int64_t panel = 0; panel < weights.panels; panel += PANELS, sums += PANELS * OUTPUTS) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        for (int64_t block = 0; block < weights.blocks; ++block, buffer = !buffer) {
            const auto& current = memory[buffer];
            uint8_t* const next = memory[!buffer][0][0];
            WeightSplitter a = weights.next(panel, 0, block, next), b = weights.next(panel, 1, block, next);
            WeightSplitter c = weights.next(panel, 2, block, next);
            // The 16 lines of each panel are split in five steps.
            const auto split = [&](int number) {
                (number < 5 ? a : number < 10 ? b : c).split(number % 5 == 4 ? 4 : 3);
            };
#pragma GCC unroll 5
            for (int product = 0; product < PRODUCTS; ++product) {
                if (needs_weights(product)) {
                    _tile_loadd(5, current[0][PART_OF_WEIGHTS[product]], LINE);
                    _tile_loadd(6, current[1][PART_OF_WEIGHTS[product]], LINE);
                    _tile_loadd(7, current[2][PART_OF_WEIGHTS[product]], LINE);
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
        memory_barrier();
    }
}

// Multiplies 17 to 32 rows (x and then `others`), two panels at a time.
inline void multiply_32_rows(const uint8_t* x, const uint8_t* others, const Weights<2>& weights, float* sums,
                             int64_t line) {
    constexpr int PANELS = 2;
    alignas(LINE) uint8_t memory[2][PANELS][WEIGHT_PARTS][TILE];
    for (int i = 0; i < PANELS; ++i) weights.splitter(0, i, 0, memory[0][0][0]).split(16);
    bool buffer = false;
    float* other_sums = sums + ROWS * line / static_cast<int64_t>(sizeof(float));
    for (int64_t panel = 0; panel < weights.panels;
         panel += PANELS, sums += PANELS * OUTPUTS, other_sums += PANELS * OUTPUTS) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t block = 0; block < weights.blocks; ++block, buffer = !buffer) {
            const auto& current = memory[buffer];
            uint8_t* const next = memory[!buffer][0][0];
            WeightSplitter a = weights.next(panel, 0, block, next), b = weights.next(panel, 1, block, next);
            const auto split = [&](int number) { (number < 10 ? a : b).split(number % 10 < 6 ? 2 : 1); };
#pragma GCC unroll 5
            for (int product = 0; product < PRODUCTS; ++product) {
                if (needs_weights(product)) {
                    _tile_loadd(5, current[0][PART_OF_WEIGHTS[product]], LINE);
                    _tile_loadd(6, current[1][PART_OF_WEIGHTS[product]], LINE);
                }
                const int64_t offset = (block * PARTS + PART_OF_ROWS[product]) * TILE;
                _tile_loadd(4, x + offset, LINE);
                _tile_loadd(7, others + offset, LINE);
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
        memory_barrier();
    }
}

}  // namespace amx
}  // namespace SPEC_DEC_ISA
}  // namespace spec_dec
