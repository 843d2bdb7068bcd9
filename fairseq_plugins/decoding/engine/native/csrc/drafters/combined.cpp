// Drafters made of other drafters.

#include "drafters.h"

namespace spec_dec {
namespace {

class FallbackDrafter final : public Drafter {
public:
    FallbackDrafter(SharedDrafter first, SharedDrafter second) : first(std::move(first)), second(std::move(second)) {}

    int64_t max_width(const Batch& batch) const override {
        return std::max(first->max_width(batch), second->max_width(batch));
    }
    std::vector<int> layers_read() const override { return second->layers_read(); }

    void begin_batch(const Batch& batch) override {
        first->begin_batch(batch);
        second->begin_batch(batch);
    }
    void begin(const Batch& batch, const std::vector<int64_t>& sentences) override {
        first->begin(batch, sentences);
        second->begin(batch, sentences);
    }
    void draft(Work& work) override {
        first->draft(work);
        const int64_t width = second->max_width(work.batch);
        work.drafts.limit_empty(width);
        second->draft(work);
    }
    void observe(const Work& work) override {
        first->observe(work);
        second->observe(work);
    }

private:
    const SharedDrafter first, second;
};

class ReplayedDrafter final : public Drafter {
public:
    ReplayedDrafter(SharedDrafter inner, std::vector<int64_t> tokens, int64_t width, float probability)
        : inner(std::move(inner)), tokens(std::move(tokens)), width(width), probability(probability) {}

    int64_t max_width(const Batch& batch) const override { return inner->max_width(batch); }
    std::vector<int> layers_read() const override { return inner->layers_read(); }
    void begin_batch(const Batch& batch) override { inner->begin_batch(batch); }
    void begin(const Batch& batch, const std::vector<int64_t>& sentences) override { inner->begin(batch, sentences); }
    void observe(const Work& work) override { inner->observe(work); }

    void draft(Work& work) override {
        Drafts replayed = work.drafts;
        // The inner drafter drafts all that it may.
        work.drafts.threshold = 0;
        work.drafts.expected_survival = nullptr;
        inner->draft(work);
        std::swap(work.drafts, replayed);
        for (size_t index = 0; index < work.active.size(); ++index) {
            const int64_t b = work.active[index], length = work.batch.lengths[b];
            for (int64_t t = 0; work.batch.is_drafted[b] && work.drafts.goes_on(index); ++t) {
                if (!work.drafts.add(index, tokens[b * width + std::min(length + t, width - 1)], probability)) break;
            }
        }
    }

private:
    const SharedDrafter inner;
    const std::vector<int64_t> tokens;  // [B][width]
    const int64_t width;
    const float probability;
};

}  // namespace

SharedDrafter make_fallback_drafter(SharedDrafter first, SharedDrafter second) {
    return std::make_shared<FallbackDrafter>(std::move(first), std::move(second));
}

SharedDrafter make_replayed_drafter(SharedDrafter inner, std::vector<int64_t> tokens, int64_t width,
                                    float probability) {
    return std::make_shared<ReplayedDrafter>(std::move(inner), std::move(tokens), width, probability);
}

}  // namespace spec_dec
