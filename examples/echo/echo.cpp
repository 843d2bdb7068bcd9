#include <nanobind/nanobind.h>

#include "csrc/drafter.h"

using namespace spec_dec;

class EchoDrafter final : public Drafter {
public:
    explicit EchoDrafter(int64_t width) : width(width) {}

    int64_t max_width(const Batch&) const override { return width; }
    void begin_batch(const Batch&) override {}

    void draft(Work& work) override {
        for (size_t index = 0; index < work.active.size(); ++index) {
            const int64_t sentence = work.active[index], length = work.batch.lengths[sentence];
            const int64_t* output = work.batch.output(sentence);
            int64_t next = length - 1;
            while (next > 0 && output[next - 1] != output[length - 1]) --next;
            if (next <= 0) continue;
            while (next < length && work.drafts.can_add(index) && work.drafts.add(index, output[next])) ++next;
        }
    }

private:
    const int64_t width;
};

NB_MODULE(_echo, m) {
    nanobind::module_::import_("fairseq_plugins.decoding.native._kernels");
    nanobind::class_<EchoDrafter, Drafter>(m, "EchoDrafter").def(nanobind::init<int64_t>());
}
