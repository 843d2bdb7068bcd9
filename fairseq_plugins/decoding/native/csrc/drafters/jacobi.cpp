// Jacobi decoding: drafts the verifier's predictions of the previous iteration (Santilli et al. 2023, Algorithms 1 to
// 3).

#include <algorithm>
#include <cmath>

#include "drafters.h"

namespace spec_dec {
namespace {

// Initial survival for the policy of all tokens of a draft: the counts of their positions soon replace it.
constexpr float PROBABILITY = 0.5f;

class JacobiDrafter final : public Drafter {
public:
    JacobiDrafter(int64_t block, double window_ratio, int64_t length, int64_t initial)
        : fixed_block(block), window_ratio(window_ratio), greedy_from(length), initial(initial) {}

    int64_t max_width(const Batch& batch) const override { return block_of(batch, batch.sources.longest) - 1; }
    bool reads_all_predictions() const override { return true; }

    void begin_batch(const Batch& batch) override {
        stride = block_of(batch, batch.sources.longest);
        blocks.assign(batch.sentences(), stride);
        tails.assign(batch.sentences() * stride, -1);
    }

    void begin(const Batch& batch, const std::vector<int64_t>& sentences) override {
        for (const int64_t b : sentences) {
            if (batch.is_open) blocks[b] = block_of(batch, batch.sources.length(b));
            std::fill_n(tails.begin() + b * stride, stride, -1);
        }
    }

    void draft(Work& work) override {
        const Batch& batch = work.batch;
        for (size_t index = 0; index < work.active.size(); ++index) {
            const int64_t b = work.active[index], length = batch.lengths[b], block = blocks[b];
            // The verifier predicts one position more than is drafted, so the last position of a block needs no draft.
            int64_t count = block - 1 - length % block;
            if (greedy_from >= 0) count = std::min(count, greedy_from - 1 - length);
            for (int64_t t = 0; t < count && work.drafts.can_add(index); ++t) {
                const int64_t predicted = tails[b * stride + t];
                const int64_t token = predicted >= 0 ? predicted : initial_token(batch, b, length + t);
                if (!work.drafts.add(index, token, t == 0 ? PROBABILITY : 1)) break;
            }
        }
    }

    void observe(const Work& work) override {
        for (size_t index = 0; index < work.active.size(); ++index) {
            const int64_t b = work.active[index], drafted = work.drafts.count(index), block = blocks[b];
            if (!work.batch.is_drafted[b]) continue;
            const int64_t* predicted = work.predicted.data() + work.first_row[index];
            // The predictions after the emitted tokens are the next draft.
            for (int64_t t = 0; t < block; ++t) {
                const int64_t column = work.emitted[index] + t;
                tails[b * stride + t] = column <= drafted ? predicted[column] : -1;
            }
        }
    }

private:
    // The length of an output is unknown; `window_ratio` times the longest source of the batch bounds it. Positions
    // after the longest output allowed need no memory.
    int64_t block_of(const Batch& batch, int64_t source) const {
        const int64_t block =
            fixed_block > 0 ? fixed_block : static_cast<int64_t>(std::ceil(window_ratio * source)) + 1;
        return std::min(block, batch.columns);
    }

    int64_t initial_token(const Batch& batch, int64_t sentence, int64_t position) const {
        if (initial >= 0) return initial;
        const int64_t length = batch.sources.length(sentence);
        return position < length ? batch.sources.sentence(sentence)[position] : batch.limits.pad;
    }

    const int64_t fixed_block;
    const double window_ratio;
    const int64_t greedy_from, initial;
    int64_t stride = 1;           // the largest block
    std::vector<int64_t> blocks;  // [B]
    std::vector<int64_t> tails;   // [B][stride], the next draft; -1 where nothing was predicted
};

}  // namespace

SharedDrafter make_jacobi_drafter(int64_t block, double window_ratio, int64_t length, int64_t initial) {
    return std::make_shared<JacobiDrafter>(block, window_ratio, length, initial);
}

}  // namespace spec_dec
