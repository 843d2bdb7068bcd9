// Heads on the verifier predict the next tokens from the states of its last verification (Stern et al. 2018, section
// 4).

#include <numeric>
#include <utility>

#include "drafters.h"

namespace spec_dec {
namespace {

class HeadsDrafter final : public Drafter {
public:
    HeadsDrafter(SharedLinear expand, SharedLinear shrink, SharedLinear projection)
        : expand(std::move(expand)),
          shrink(std::move(shrink)),
          projection(std::move(projection)),
          heads(this->shrink->outputs / this->projection->inputs) {
        const int dim = this->projection->inputs;
        require(this->expand->inputs == dim && this->shrink->inputs == this->expand->outputs &&
                    this->shrink->outputs == heads * dim,
                "the heads do not fit the verifier");
        ids.resize(this->projection->outputs);
        std::iota(ids.begin(), ids.end(), 0);
    }

    int64_t max_width(const Batch&) const override { return heads; }

    void begin_batch(const Batch& batch) override {
        proposals.assign(batch.sentences() * heads, {});
        has_proposals.assign(batch.sentences(), 0);
    }

    void begin(const Batch&, const std::vector<int64_t>& sentences) override {
        for (const int64_t b : sentences) has_proposals[b] = 0;
    }

    void draft(Work& work) override {
        for (size_t index = 0; index < work.active.size(); ++index) {
            const int64_t b = work.active[index];
            for (int64_t t = 0; has_proposals[b] && t < heads && work.drafts.can_add(index); ++t) {
                const auto [token, probability] = proposals[b * heads + t];
                if (!work.drafts.add(index, token, probability)) break;
            }
        }
    }

    void observe(const Work& work) override {
        thread_local Floats states_memory, wide_memory, projected_memory, scores_memory;
        std::vector<size_t> drafted;
        for (size_t index = 0; index < work.active.size(); ++index) {
            if (work.batch.is_drafted[work.active[index]]) drafted.push_back(index);
        }
        const int64_t dim = projection->inputs, count = drafted.size(), rows = count * heads;
        const int64_t vocabulary = projection->outputs;
        // The states from which the last emitted tokens were predicted.
        float* states = at_least(states_memory, count * dim);
        for (int64_t n = 0; n < count; ++n) {
            const int64_t row = work.first_row[drafted[n]] + work.emitted[drafted[n]] - 1;
            std::copy_n(work.rows.x.data() + row * dim, dim, states + n * dim);
        }
        float* wide = at_least(wide_memory, count * expand->outputs);
        expand->run(states, count, wide, Activation::RELU);
        float* projected = at_least(projected_memory, rows * dim);
        for (int64_t row = 0; row < rows; ++row) std::copy_n(states + row / heads * dim, dim, projected + row * dim);
        shrink->run(wide, count, projected, Activation::NONE, true);
        const int64_t max_rows = projection->efficient_rows;
        float* scores = at_least(scores_memory, max_rows * vocabulary);
        for_each_block(rows, max_rows, [&](int64_t first, int64_t block) {
            projection->run(projected + first * dim, block, scores);
            for (int64_t row = first; row < first + block; ++row) {
                const size_t index = drafted[row / heads];
                const int64_t b = work.active[index];
                const int64_t position = work.batch.lengths[b] + work.emitted[index] + row % heads;
                proposals[b * heads + row % heads] =
                    choose_draft(scores + (row - first) * vocabulary, ids, work.batch.limits, b, position, true);
            }
        });
        for (const size_t index : drafted) has_proposals[work.active[index]] = 1;
    }

private:
    const SharedLinear expand, shrink, projection;
    const int64_t heads;
    std::vector<int64_t> ids;           // [vocabulary], all tokens
    std::vector<DraftToken> proposals;  // [B][heads]
    std::vector<uint8_t> has_proposals;
};

}  // namespace

SharedDrafter make_heads_drafter(SharedLinear expand, SharedLinear shrink, SharedLinear projection) {
    return std::make_shared<HeadsDrafter>(std::move(expand), std::move(shrink), std::move(projection));
}

}  // namespace spec_dec
