// Drafts with another drafter where the first drafts nothing.

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
    bool can_draft(const Batch& batch, int64_t sentence) const override {
        return first->can_draft(batch, sentence) || second->can_draft(batch, sentence);
    }

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
        if (SurvivalCounts* counts = work.drafts.survival_counts) {
            for (size_t index = 0; index < work.active.size(); ++index) {
                if (!work.batch.is_drafted[work.active[index]]) continue;
                counts->attempts += 1;
                counts->free += work.drafts.count(index) > 0;
            }
        }
        const int64_t width = second->max_width(work.batch);
        work.drafts.reopen_empty(width);
        second->draft(work);
    }
    Drafter& costly() override { return second->costly(); }
    void observe(const Work& work) override {
        first->observe(work);
        second->observe(work);
    }

private:
    const SharedDrafter first, second;
};

}  // namespace

SharedDrafter make_fallback_drafter(SharedDrafter first, SharedDrafter second) {
    return std::make_shared<FallbackDrafter>(std::move(first), std::move(second));
}

}  // namespace spec_dec
