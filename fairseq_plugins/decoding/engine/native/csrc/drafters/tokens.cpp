// The trained drafter of GAD and SpecDec (section 3.1): masks after the accepted tokens, filled in one pass.
//
// With prefix-causal attention accepted tokens stay in the drafter's cache, and a draft runs only the new ones; with
// full attention the whole prefix runs again.

#include "drafters.h"
#include "mask_feed.h"

namespace spec_dec {
namespace {

class TokenDrafter final : public Drafter {
public:
    TokenDrafter(std::shared_ptr<const Transformer> model, std::shared_ptr<const Transformer> encoder, Path path,
                 MaskFeed feed, bool caches_prefix, int64_t width)
        : model(model),
          encoder(std::move(encoder)),
          decoder(model),
          path(std::move(path)),
          masks(std::move(feed)),
          caches_prefix(caches_prefix),
          width(width) {}

    int64_t max_width(const Batch&) const override { return width; }

    void begin_batch(const Batch& batch) override {
        path.check_drafter(*model, batch.limits.vocabulary);
        if (encoder) {
            own_sources.begins = batch.sources.begins;
            own_sources.tokens = batch.sources.tokens;
            own_sources.begin_encoding(*encoder);
        }
        const int64_t capacity = batch.columns + width + 1;
        decoder.begin(sources(batch), capacity);
        masks.begin_batch(sources(batch), capacity);
        cached.assign(batch.sentences(), 0);
    }

    void begin(const Batch&, const std::vector<int64_t>& sentences) override {
        if (encoder) {
            by_neighbours(sentences, [&](int64_t first, int64_t last) { own_sources.encode(*encoder, first, last); });
        }
        decoder.read_sources(sentences);
    }

    void draft(Work& work) override {
        thread_local Rows rows;
        thread_local Floats hidden_memory, scores_memory;
        const Batch& batch = work.batch;
        std::vector<size_t> which;
        std::vector<int64_t> last;
        int64_t longest = 0;
        for (size_t index = 0; index < work.active.size(); ++index) {
            if (!batch.is_drafted[work.active[index]] || !work.drafts.goes_on(index)) continue;
            which.push_back(index);
            last.push_back(batch.last_token(work.active[index]));
            longest = std::max(longest, work.drafts.room_of(index));
        }
        if (which.empty()) return;
        rows.clear();
        std::vector<int64_t> first_mask;
        for (const size_t index : which) {
            const int64_t b = work.active[index], length = batch.lengths[b], end = length + longest;
            for (int64_t position = cached[b]; position <= length; ++position) {
                const int64_t token = batch.tokens[b * batch.columns + position];
                rows.add(b, position, token, caches_prefix ? position : end);
            }
            first_mask.push_back(rows.size());
            for (int64_t position = length + 1; position <= end; ++position) rows.add(b, position, MASK, end);
            if (caches_prefix) cached[b] = length + 1;
        }
        const int64_t dim = model->width;
        const auto input = [&](int64_t row, float* x) {
            if (rows.tokens[row] == MASK) {
                std::copy_n(masks.at(rows.sentence[row], rows.position[row]), dim, x);
            } else {
                model->embed(rows.tokens[row], x);
            }
        };
        decoder.run(rows, input, {});
        const int64_t count = which.size() * longest;
        float* hidden = at_least(hidden_memory, count * dim);
        for (size_t n = 0; n < which.size(); ++n) {
            std::copy_n(rows.x.data() + first_mask[n] * dim, longest * dim, hidden + n * longest * dim);
        }
        float* scores = at_least(scores_memory, count * model->projection->outputs);
        model->projection->run(hidden, count, scores);
        path.choose(scores, hidden, longest, which, last, work.drafts);
    }

private:
    static constexpr int64_t MASK = -1;

    const Sources& sources(const Batch& batch) const { return encoder ? own_sources : batch.sources; }

    const std::shared_ptr<const Transformer> model, encoder;
    Sources own_sources;
    Decoder decoder;
    const Path path;
    MaskInputs masks;
    const bool caches_prefix;
    const int64_t width;
    std::vector<int64_t> cached;  // [B], valid slots of the cache
};

}  // namespace

SharedDrafter make_token_drafter(std::shared_ptr<const Transformer> model, std::shared_ptr<const Transformer> encoder,
                                 Path path, MaskFeed feed, bool caches_prefix, int64_t width) {
    return std::make_shared<TokenDrafter>(std::move(model), std::move(encoder), std::move(path), std::move(feed),
                                          caches_prefix, width);
}

}  // namespace spec_dec
