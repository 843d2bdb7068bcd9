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

// out[ROWS][width] += weights[ROWS][count] * the values of `count` slots, which are `offset` from the slots, from
// column `begin` on; is_first: `out` is not read. Columns are taken in blocks of PANELS panels, the remainder in
// smaller blocks.
template <int ROWS, int PANELS>
void weighted_sum(const float* weights, int64_t row_stride, int64_t count, const float* const* slots, int64_t offset,
                  int begin, int width, float* out, int64_t out_stride, bool is_first) {
    for (; begin + PANELS * PANEL <= width; begin += PANELS * PANEL) {
        const auto values_of = [&](int64_t slot) { return slots[slot] + offset + begin; };
        const auto prefetch_next_columns = [&](int64_t slot) {
            for (int panel = PANELS; panel < 2 * PANELS; ++panel) __builtin_prefetch(values_of(slot) + panel * PANEL);
        };
        multiply_panels<ROWS, PANELS>(
            weights, row_stride, 1, count, values_of, PANEL, prefetch_next_columns,
            [&](int row, int v) { return is_first ? Vector{} : load(out + row * out_stride + begin + v * LANES); },
            [&](int row, int v, Vector sums) { store(out + row * out_stride + begin + v * LANES, sums); });
    }
    if constexpr (PANELS > 1) {
        weighted_sum<ROWS, PANELS / 2>(weights, row_stride, count, slots, offset, begin, width, out, out_stride,
                                       is_first);
    } else {
        for (; begin < width; begin += LANES) {
            const int columns = std::min(LANES, width - begin);
            for (int row = 0; row < ROWS; ++row) {
                float* to = out + row * out_stride + begin;
                Vector sum = is_first ? Vector{} : load_partial(to, columns);
                for (int64_t slot = 0; slot < count; ++slot) {
                    const Vector values = load_partial(slots[slot] + offset + begin, columns);
                    sum = fma(splat(weights[row * row_stride + slot]), values, sum);
                }
                std::memcpy(to, &sum, columns * sizeof(float));
            }
        }
    }
}

// Scores of ROWS queries for the slots `slot` .. `end`, whose keys are `offset` from the slots, in blocks of OUTPUTS,
// the remainder in smaller blocks.
template <int ROWS, int OUTPUTS>
void score_slots(const float* query, int64_t query_stride, const float* const* slots, int64_t offset, int width,
                 int64_t slot, int64_t end, float scale, float* scores, int64_t row_stride) {
    float result[ROWS][LANES];
    while (slot + OUTPUTS <= end) {
        const auto keys_of = [&](int output) { return slots[slot + output] + offset; };
        multiply_rows<ROWS, OUTPUTS>(query, query_stride, keys_of, width, [](int, int) {}, result);
        for (int row = 0; row < ROWS; ++row) {
            for (int i = 0; i < OUTPUTS; ++i) scores[row * row_stride + slot + i] = scale * result[row][i];
        }
        slot += OUTPUTS;
        // The last block overlaps the one before it, which computes some scores twice but needs no smaller block.
        if (slot < end && end < slot + OUTPUTS) slot = end - OUTPUTS;
    }
    if constexpr (OUTPUTS > 1) {
        if (slot < end) {
            score_slots<ROWS, OUTPUTS / 2>(query, query_stride, slots, offset, width, slot, end, scale, scores,
                                           row_stride);
        }
    }
}

template <int ROWS>
__attribute__((noinline)) void attend_rows(const float* query, int64_t query_stride, const float* const* slots,
                                           const int64_t* last, int heads, int width, float* scores, float* out) {
    constexpr int OUTPUTS = ROWS == 1 ? std::min(8, LANES) : OUTPUTS_OF<ROWS>;
    // Wider blocks are as fast on x86-64, though not all of their sums fit in registers.
#ifdef __aarch64__
    constexpr int PANELS = PANELS_OF<ROWS>;
#else
    constexpr int PANELS = 4;
#endif
    const int64_t total = static_cast<int64_t>(heads) * width;
    const float scale = 1 / std::sqrt(static_cast<float>(width));
    int64_t count = 0;
    for (int row = 0; row < ROWS; ++row) count = std::max(count, last[row] + 1);
    const int64_t row_stride = padded_slots(count);
    const auto scores_of = [&](int head) { return scores + head * ROWS * row_stride; };
    // Of a few slots all heads are read before the next slots, as they lie in memory, which helps the processor to
    // prefetch.
    constexpr int64_t SLOT_BLOCK = 16;
    for (int64_t slot = 0; slot < count; slot += SLOT_BLOCK) {
        const int64_t end = std::min(slot + SLOT_BLOCK, count), next_end = std::min(end + SLOT_BLOCK, count);
        for (int head = 0; head < heads; ++head) {
            for (int64_t next = end; next < next_end; ++next) {
                for (int c = 0; c < width; c += PANEL) __builtin_prefetch(slots[next] + head * width + c);
            }
            score_slots<ROWS, OUTPUTS>(query + head * width, query_stride, slots, head * width, width, slot, end, scale,
                                       scores_of(head), row_stride);
        }
    }
    for (int head = 0; head < heads; ++head) {
        for (int row = 0; row < ROWS; ++row) softmax(scores_of(head) + row * row_stride, count, last[row]);
    }
    for (int64_t slot = 0; slot < count; slot += SLOT_BLOCK) {
        for (int head = 0; head < heads; ++head) {
            weighted_sum<ROWS, PANELS>(scores_of(head) + slot, row_stride, std::min(SLOT_BLOCK, count - slot),
                                       slots + slot, total + head * width, 0, width, out + head * width, total,
                                       slot == 0);
        }
    }
}

}  // namespace

void attend(int64_t rows, const float* query, int64_t query_stride, const float* const* slots, const int64_t* last,
            int heads, int width, float* scratch, float* out) {
    with_count<ROW_BLOCK>(
        rows, [&](auto count) { attend_rows<count>(query, query_stride, slots, last, heads, width, scratch, out); });
}

}  // namespace SPEC_DEC_ISA
}  // namespace spec_dec
