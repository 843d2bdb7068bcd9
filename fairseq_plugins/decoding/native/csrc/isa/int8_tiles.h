// Products of quantized rows and int8 weights on AMX tiles: the same sums as on vectors, sixteen rows at a time.

#pragma once

#include "amx_tiles.h"

namespace spec_dec {
namespace SPEC_DEC_ISA {
namespace amx {

constexpr int INT8_INPUTS = LINE, INT8_PANELS = 2;  // inputs of a tile; panels that are multiplied at a time

// Quantized rows [rows][size] and two panels [size / 4][16][4] of a weight. Prefetches `lines` lines of the next panels
// in each step.
struct Int8Operands {
    const uint8_t* x;
    const int8_t *first, *second, *next;
    int64_t size, lines;
};

// Multiplies 16 or 32 rows: sums [rows][2][16].
template <int ROW_TILES>
void multiply_int8(Int8Operands operands, int32_t* sums) {
    const int64_t size = operands.size;
    constexpr int64_t STRIDE = INT8_PANELS * LINE;
    _tile_zero(0);
    _tile_zero(1);
    if (ROW_TILES == 2) _tile_zero(2);
    if (ROW_TILES == 2) _tile_zero(3);
    for (int64_t i = 0; i < size; i += INT8_INPUTS) {
        _tile_loadd(4, operands.x + i, size);
        _tile_loadd(6, operands.first + i * OUTPUTS, LINE);
        _tile_dpbusd(0, 4, 6);
        _tile_loadd(7, operands.second + i * OUTPUTS, LINE);
        _tile_dpbusd(1, 4, 7);
        if (ROW_TILES == 2) {
            _tile_loadd(5, operands.x + ROWS * size + i, size);
            _tile_dpbusd(2, 5, 6);
            _tile_dpbusd(3, 5, 7);
        }
        for (int64_t line = 0; line < operands.lines; ++line, operands.next += LINE) {
            _mm_prefetch(operands.next, _MM_HINT_T0);
        }
    }
    _tile_stored(0, sums, STRIDE);
    _tile_stored(1, sums + OUTPUTS, STRIDE);
    if (ROW_TILES == 2) _tile_stored(2, sums + ROWS * INT8_PANELS * OUTPUTS, STRIDE);
    if (ROW_TILES == 2) _tile_stored(3, sums + (ROWS * INT8_PANELS + 1) * OUTPUTS, STRIDE);
    memory_barrier();
}

}  // namespace amx
}  // namespace SPEC_DEC_ISA
}  // namespace spec_dec
