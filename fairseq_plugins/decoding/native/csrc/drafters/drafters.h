// All drafters. Each has its own file.

#pragma once

#include <memory>
#include <vector>

#include "../drafter.h"
#include "../path.h"

namespace spec_dec {

using SharedDrafter = std::shared_ptr<Drafter>;

// Mask embedding of a trained drafter: a vector, plus a soft copy of the source if `copy_attention` is given.
struct MaskWeights {
    std::vector<float> vector;    // [D]
    SharedLinear copy_attention;  // positional embeddings to queries; null without soft copy
    Table positions;              // [P][D], positional embeddings of target and source
};

// Makes a drafter that reads the verifier's states (--drafter-context features). layers: of the verifier, whose states
// are read, 0 for the embedding. reader: the concatenated states to the context of each layer, and to an input.
// projections: context of each layer to keys and values; empty if fused into `reader`.
SharedDrafter make_feature_drafter(std::shared_ptr<const Transformer> model, Path path, MaskWeights mask,
                                   std::vector<int> layers, SharedLinear reader, std::vector<SharedLinear> projections,
                                   int64_t width);

// Makes a drafter that reads tokens (--drafter-context tokens): GAD section 3.1. encoder: null if the verifier's is
// shared.
SharedDrafter make_token_drafter(std::shared_ptr<const Transformer> model, std::shared_ptr<const Transformer> encoder,
                                 Path path, MaskWeights mask, bool caches_prefix, int64_t width);

// Where to copy from, after a suffix of the output is matched in a text.
// UNIQUE: the source; only a match that occurs once counts (Aggressive Decoding, Algorithm 1).
// NEAREST: given drafts; long matches near the expected position score best.
enum class Lookup { UNIQUE, NEAREST };

// Drafts by copying a text from the position that matches the end of the output.
class CopyDrafter final : public Drafter {
public:
    // max_match: maximum length of a match, in tokens. width: maximum length of a draft.
    CopyDrafter(Lookup lookup, int64_t max_match, int64_t width) : lookup(lookup), max_match(max_match), width(width) {}

    int64_t max_width(const Batch& batch) const override;
    bool can_draft(const Batch& batch, int64_t sentence) const override;
    void begin_batch(const Batch& batch) override;
    void begin(const Batch& batch, const std::vector<int64_t>& sentences) override;
    void draft(Work& work) override;

private:
    struct Text {
        const int64_t* tokens = nullptr;
        int64_t length = 0;
        int64_t shift = 0;  // position of the last match in the text minus that in the output
    };
    struct Match {
        Text text;
        int64_t end = 0, length = 0;  // end of the match in the text; number of matching tokens
    };

    int64_t common_suffix(const Text& text, int64_t end, const int64_t* output, int64_t length) const;
    Match find(std::vector<Text>& texts, const int64_t* output, int64_t length) const;

    const Lookup lookup;
    const int64_t max_match, width;
    bool copies_sources(const Batch& batch) const;

    std::vector<std::vector<Text>> texts;  // [B], texts to copy from
};

// Makes a drafter by fixed-point iteration (Santilli et al. 2023, Algorithms 1 to 3). block: positions solved in
// parallel; 0 for `window_ratio` times the longest source. length: of an output from which decoding is greedy; negative
// for never. initial: token that begins each position; negative for the source token there.
SharedDrafter make_jacobi_drafter(int64_t block, double window_ratio, int64_t length, int64_t initial);

// Makes a drafter of heads on the verifier's states (Stern et al. 2018). expand: the shared hidden layer of the heads.
// shrink: the output layers of the heads 2, 3, ..., one after the other. projection: to the vocabulary.
SharedDrafter make_heads_drafter(SharedLinear expand, SharedLinear shrink, SharedLinear projection);

// Makes a drafter that uses `second` for sentences for which `first` drafts nothing.
SharedDrafter make_fallback_drafter(SharedDrafter first, SharedDrafter second);

}  // namespace spec_dec
