#include <limits>

#include "gemm.h"

namespace spec_dec {
namespace SPEC_DEC_ISA {
namespace {

constexpr float MASKED = -std::numeric_limits<float>::infinity();

// Replaces the scores of one row by their softmax over the slots 0 .. last; later slots get 0. The memory is padded to
// whole vectors.
void softmax(float* scores, int64_t slots, int64_t last) {
    const int64_t count = last + 1, filled = (count + LANES - 1) / LANES * LANES;
    for (int64_t i = count; i < filled; ++i) scores[i] = MASKED;
    Vector max = load(scores), sums = {};
    for (int64_t i = LANES; i < filled; i += LANES) max = vector_max(max, load(scores + i));
    const Vector row_max = splat(reduce_max(max));
    for (int64_t i = 0; i < filled; i += LANES) {
        const Vector weights = vector_exp(load(scores + i) - row_max);
        store(scores + i, weights);
        sums += weights;
    }
    const Vector inverse = splat(1 / reduce_sum(sums));
    for (int64_t i = 0; i < filled; i += LANES) store(scores + i, load(scores + i) * inverse);
    for (int64_t i = count; i < slots; ++i) scores[i] = 0;
}

// out[ROWS][width] += weights[ROWS][slots] * values[slots][width], from column `begin` on; is_first: `out` is not read.
// Columns are taken in blocks of PANELS panels, the remainder in smaller blocks.
template <int ROWS, int PANELS>
void weighted_sum(const float* weights, int64_t row_stride, int64_t slots, const float* values, int64_t stride,
                  int begin, int width, float* out, int64_t out_stride, bool is_first) {
    for (; begin + PANELS * PANEL <= width; begin += PANELS * PANEL) {
        const auto prefetch_next_columns = [&](int64_t slot) {
            for (int panel = PANELS; panel < 2 * PANELS; ++panel) {
                __builtin_prefetch(values + begin + slot * stride + panel * PANEL);
            }
        };
        multiply_panels<ROWS, PANELS>(
            weights, row_stride, 1, slots, values + begin, PANEL, stride, prefetch_next_columns,
            [&](int row, int v) { return is_first ? Vector{} : load(out + row * out_stride + begin + v * LANES); },
            [&](int row, int v, Vector sums) { store(out + row * out_stride + begin + v * LANES, sums); });
    }
    if constexpr (PANELS > 1) {
        weighted_sum<ROWS, PANELS / 2>(weights, row_stride, slots, values, stride, begin, width, out, out_stride,
                                       is_first);
    } else {
        for (; begin < width; begin += LANES) {
            const int columns = std::min(LANES, width - begin);
            for (int row = 0; row < ROWS; ++row) {
                float* to = out + row * out_stride + begin;
                Vector sum = is_first ? Vector{} : load_partial(to, columns);
                for (int64_t i = 0; i < slots; ++i) {
                    sum = fma(splat(weights[row * row_stride + i]), load_partial(values + i * stride + begin, columns),
                              sum);
                }
                std::memcpy(to, &sum, columns * sizeof(float));
            }
        }
    }
}

// Scores of ROWS queries for the slots `slot` .. `slots`, in blocks of OUTPUTS, the remainder in smaller blocks.
template <int ROWS, int OUTPUTS>
void score_slots(const float* query, int64_t query_stride, const float* keys, int64_t stride, int width, int64_t slot,
                 int64_t slots, float scale, float* scores, int64_t row_stride) {
    float result[ROWS][LANES];
    while (slot + OUTPUTS <= slots) {
        multiply_rows<ROWS, OUTPUTS, false>(query, query_stride, keys + slot * stride, stride, width, result);
        for (int row = 0; row < ROWS; ++row) {
            for (int i = 0; i < OUTPUTS; ++i) scores[row * row_stride + slot + i] = scale * result[row][i];
        }
        slot += OUTPUTS;
        // The last block overlaps the one before it, which computes some scores twice but needs no smaller block.
        if (slot < slots && slots < slot + OUTPUTS) slot = slots - OUTPUTS;
    }
    if constexpr (OUTPUTS > 1) {
        if (slot < slots) {
            score_slots<ROWS, OUTPUTS / 2>(query, query_stride, keys, stride, width, slot, slots, scale, scores,
                                           row_stride);
        }
    }
}

template <int ROWS>
__attribute__((noinline)) void attend_rows(const float* query, int64_t query_stride, const float* key_values,
                                           int64_t stride, const int64_t* last, int heads, int width, float* scores,
                                           float* out) {
    constexpr int OUTPUTS = ROWS == 1 ? std::min(8, LANES) : OUTPUTS_OF<ROWS>;
    // Wider blocks are as fast on x86-64, though not all of their sums fit in registers.
#ifdef __aarch64__
    constexpr int PANELS = PANELS_OF<ROWS>;
#else
    constexpr int PANELS = 4;
#endif
    const int64_t total = static_cast<int64_t>(heads) * width;
    const float scale = 1 / std::sqrt(static_cast<float>(width));
    int64_t slots = 0;
    for (int row = 0; row < ROWS; ++row) slots = std::max(slots, last[row] + 1);
    const int64_t row_stride = padded_slots(slots);
    // Of a few slots all heads are read before the next slots, as they lie in memory, which helps the processor to
    // prefetch.
    constexpr int64_t SLOT_BLOCK = 16;
    for (int64_t slot = 0; slot < slots; slot += SLOT_BLOCK) {
        const int64_t end = std::min(slot + SLOT_BLOCK, slots);
        for (int head = 0; head < heads; ++head) {
            for (int64_t i = end; i < std::min(end + SLOT_BLOCK, slots); ++i) {
                for (int c = 0; c < width; c += PANEL) __builtin_prefetch(key_values + i * stride + head * width + c);
            }
            score_slots<ROWS, OUTPUTS>(query + head * width, query_stride, key_values + head * width, stride, width,
                                       slot, end, scale, scores + head * ROWS * row_stride, row_stride);
        }
    }
    for (int head = 0; head < heads; ++head) {
        for (int row = 0; row < ROWS; ++row) softmax(scores + (head * ROWS + row) * row_stride, slots, last[row]);
    }
    for (int64_t slot = 0; slot < slots; slot += SLOT_BLOCK) {
        const int64_t count = std::min(SLOT_BLOCK, slots - slot);
        for (int head = 0; head < heads; ++head) {
            weighted_sum<ROWS, PANELS>(scores + head * ROWS * row_stride + slot, row_stride, count,
                                       key_values + total + head * width + slot * stride, stride, 0, width,
                                       out + head * width, total, slot == 0);
        }
    }
}

}  // namespace

void attend(int64_t rows, const float* query, int64_t query_stride, const float* key_values, int64_t slot_stride,
            const int64_t* last, int heads, int width, float* scratch, float* out) {
    with_count<ROW_BLOCK>(rows, [&](auto count) {
        attend_rows<count>(query, query_stride, key_values, slot_stride, last, heads, width, scratch, out);
    });
}

}  // namespace SPEC_DEC_ISA
}  // namespace spec_dec
