// The drafters, each in a file of its own.

#pragma once

#include <memory>
#include <vector>

#include "../drafter.h"
#include "../path.h"

namespace spec_dec {

using SharedDrafter = std::shared_ptr<Drafter>;

// What a trained drafter feeds its masks: a vector, plus a soft copy of the source where `copy_attention` is given.
struct MaskFeed {
    std::vector<float> vector;    // [D]
    SharedLinear copy_attention;  // positions to queries; null for no copy
    Table positions;              // [P][D], of target and source
};

// Reads the verifier's states (--drafter-context features).
struct FeatureReading {
    std::vector<int> layers;                // of the verifier, 0 for the embedding
    SharedLinear reader;                    // their states to what every layer reads, then what is added to the input
    std::vector<SharedLinear> projections;  // keys and values of each layer; empty where the reader makes them
};
SharedDrafter make_feature_drafter(std::shared_ptr<const Transformer> model, Path path, MaskFeed feed,
                                   FeatureReading reading, int64_t width);

// Reads tokens (--drafter-context tokens): GAD section 3.1. `encoder` is null where the verifier's is shared.
SharedDrafter make_token_drafter(std::shared_ptr<const Transformer> model, std::shared_ptr<const Transformer> encoder,
                                 Path path, MaskFeed feed, bool caches_prefix, int64_t width);

// What is copied: the source after a suffix of the output that stands once in it (Aggressive Decoding, Algorithm 1);
// source and output so far after the most recent of the longest matches; or given drafts after the best match that is
// near.
enum class Lookup { UNIQUE, RECENT, NEAREST };

// Copies texts after the position that matches the output.
class CopyDrafter final : public Drafter {
public:
    // max_match: longer common suffixes count as this many tokens. width: the most tokens of a draft.
    CopyDrafter(Lookup lookup, int64_t max_match, int64_t width) : lookup(lookup), max_match(max_match), width(width) {}

    using Texts = std::vector<std::vector<int64_t>>;

    // Takes the drafts of every sentence of the next batch, for NEAREST.
    void take(std::vector<Texts> drafts);

    int64_t max_width(const Batch& batch) const override;
    bool can_draft(int64_t sentence) const override { return !texts[sentence].empty(); }
    // Throws std::invalid_argument for drafts that are not for this batch.
    void begin_batch(const Batch& batch) override;
    void draft(Work& work) override;

private:
    struct Text {
        const int64_t* tokens = nullptr;
        int64_t length = 0;
        int64_t shift = 0;  // how much further on the last match was in the text than in the output
        bool is_output = false;
    };
    struct Match {
        Text text;
        int64_t end = 0, length = 0;  // tokens of the text before its end, and those that match
    };

    int64_t common_suffix(const Text& text, int64_t end, const int64_t* output, int64_t length) const;
    Match find(std::vector<Text>& texts, const int64_t* output, int64_t length) const;

    const Lookup lookup;
    const int64_t max_match, width;
    std::vector<Texts> next, drafts;       // of the next batch and of this one
    std::vector<std::vector<Text>> texts;  // [B], to copy from
};

// Fixed-point iteration: Santilli et al. 2023, Algorithms 1 to 3.
struct JacobiOptions {
    int64_t block = 0;  // positions solved together; 0 for `window_ratio` lengths of the source
    double window_ratio = 1.5;
    int64_t length = -1;  // solve in parallel up to this many tokens; below 0 for no end
    int64_t initial = 0;  // first guess of every position; below 0 for the source token there
    int64_t pool = 0;     // tokens of a pool (the vocabulary), 0 for no pool
};
SharedDrafter make_jacobi_drafter(JacobiOptions options);

// Heads on the verifier's states (Stern et al. 2018): `expand` reads a state, `others` propose the next tokens.
SharedDrafter make_heads_drafter(SharedLinear expand, SharedLinear others, SharedLinear projection);

// Drafts with `first`, and with `second` for sentences where that has nothing.
SharedDrafter make_fallback_drafter(SharedDrafter first, SharedDrafter second);

// Runs a drafter and replaces its tokens, for benchmarks.
class ReplayedDrafter final : public Drafter {
public:
    // probability: that a token is right, for the policy.
    ReplayedDrafter(SharedDrafter inner, float probability) : inner(std::move(inner)), probability(probability) {}

    // tokens: [B][width], what the next batch drafts at every position of its outputs; profiled batches draft any.
    void replay(std::vector<int64_t> new_tokens, int64_t new_width) {
        tokens = std::move(new_tokens);
        width = new_width;
    }

    int64_t max_width(const Batch& batch) const override { return inner->max_width(batch); }
    std::vector<int> layers_read() const override { return inner->layers_read(); }
    bool reads_all_predictions() const override { return inner->reads_all_predictions(); }
    bool can_draft(int64_t sentence) const override { return inner->can_draft(sentence); }
    void begin_batch(const Batch& batch) override { inner->begin_batch(batch); }
    void begin(const Batch& batch, const std::vector<int64_t>& sentences) override { inner->begin(batch, sentences); }
    void observe(const Work& work) override { inner->observe(work); }
    void draft(Work& work) override;

private:
    const SharedDrafter inner;
    const float probability;
    std::vector<int64_t> tokens;
    int64_t width = 0;
};

}  // namespace spec_dec
