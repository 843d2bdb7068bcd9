// The trained drafter of GAD and SpecDec (section 3.1): masks after the accepted tokens, filled in one pass.
//
// With prefix-causal attention the drafter caches accepted tokens, and a draft runs only the new ones. With full
// attention each draft runs the whole prefix again.

#include "drafters.h"
#include "trained.h"

namespace spec_dec {
namespace {

class TokenDrafter final : public TrainedDrafter {
public:
    TokenDrafter(std::shared_ptr<const Transformer> model, std::shared_ptr<const Transformer> encoder, Path path,
                 MaskWeights mask, bool caches_prefix, int64_t width)
        : TrainedDrafter(std::move(model), std::move(path), std::move(mask), width),
          encoder(std::move(encoder)),
          caches_prefix(caches_prefix) {}

    void begin_batch(const Batch& batch) override {
        path.check_drafter(*model, batch.limits.vocabulary);
        if (encoder) {
            own_sources.begins = batch.sources.begins;
            own_sources.lengths = batch.sources.lengths;
            own_sources.longest = batch.sources.longest;
            own_sources.tokens = batch.sources.tokens;
            own_sources.begin_encoding(*encoder);
        }
        begin_sources(batch, encoder ? own_sources : batch.sources);
        cached.assign(batch.sentences(), 0);
    }

    void begin(const Batch& batch, const std::vector<int64_t>& sentences) override {
        for (const int64_t b : sentences) cached[b] = 0;
        masks.begin(sentences);
        if (encoder) {
            for (const int64_t b : sentences) {
                if (!batch.is_open) break;
                encoder->check_tokens(batch.sources.sentence(b), batch.sources.length(b));
                own_sources.set(b, batch.sources.sentence(b), batch.sources.length(b));
            }
            own_sources.encode(*encoder, sentences);
        }
        decoder.read_sources(sentences);
    }

protected:
    void add_rows(const Batch& batch, int64_t sentence, int64_t longest, Rows& rows) override {
        const int64_t length = batch.lengths[sentence], last = length + longest;
        // Another sentence may have more tokens left: what a sentence sees does not depend on it.
        const int64_t end = std::min(last, batch.limits.of(sentence).max_len);
        for (int64_t position = cached[sentence]; position <= length; ++position) {
            const int64_t token = batch.tokens[sentence * batch.columns + position];
            rows.add(sentence, position, token, caches_prefix ? position : end);
        }
        for (int64_t position = length + 1; position <= last; ++position) rows.add(sentence, position, MASK, end);
        if (caches_prefix) cached[sentence] = length + 1;
    }

private:
    const std::shared_ptr<const Transformer> encoder;  // null if the verifier's is shared
    Sources own_sources;
    const bool caches_prefix;
    std::vector<int64_t> cached;  // [B], valid slots of the drafter's KV cache
};

}  // namespace

SharedDrafter make_token_drafter(std::shared_ptr<const Transformer> model, std::shared_ptr<const Transformer> encoder,
                                 Path path, MaskWeights mask, bool caches_prefix, int64_t width) {
    return std::make_shared<TokenDrafter>(std::move(model), std::move(encoder), std::move(path), std::move(mask),
                                          caches_prefix, width);
}

}  // namespace spec_dec
