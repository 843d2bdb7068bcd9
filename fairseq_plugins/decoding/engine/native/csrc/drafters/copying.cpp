// Drafts by copying a text after a match, by the same rules as drafters/copying.py.

#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "drafters.h"

namespace spec_dec {
namespace {

// As in drafters/copying.py: for NEAREST, a matching token outweighs a shift by MATCH_WEIGHT positions.
constexpr int64_t NEAREST_MAX_MATCH = 4, MATCH_WEIGHT = 8;
// Initial survival of a draft's first token for the policy: by the length of the match, and at the start of the output.
constexpr float PROBABILITY[NEAREST_MAX_MATCH + 1] = {0.3f, 0.55f, 0.75f, 0.85f, 0.95f}, PROBABILITY_AT_START = 0.65f;

}  // namespace

void CopyDrafter::set_drafts(std::vector<Texts> drafts) { next = std::move(drafts); }

int64_t CopyDrafter::max_width(const Batch& batch) const {
    int64_t longest = lookup == Lookup::RECENT ? batch.limits.max_len : 1;
    for (const auto& sentence_texts : texts) {
        for (const Text& text : sentence_texts) longest = std::max(longest, text.length);
    }
    return std::min(width, longest);
}

void CopyDrafter::begin_batch(const Batch& batch) {
    texts.assign(batch.sentences(), {});
    // While costs are measured, no drafts are given, and the sources are copied.
    if (lookup != Lookup::NEAREST || next.empty()) {
        for (int64_t b = 0; b < batch.sentences(); ++b) {
            texts[b] = {{batch.sources.tokens.data() + batch.sources.begins[b], batch.sources.length(b)}};
        }
        return;
    }
    drafts = std::exchange(next, {});
    if (drafts.size() != texts.size()) {
        throw std::invalid_argument("the number of drafts differs from that of the sentences");
    }
    for (size_t b = 0; b < drafts.size(); ++b) {
        for (const auto& draft : drafts[b]) {
            for (const int64_t token : draft) {
                if (token < 0 || token >= batch.limits.vocabulary) {
                    throw std::invalid_argument("a token of a draft is outside of the vocabulary");
                }
            }
            texts[b].push_back({draft.data(), static_cast<int64_t>(draft.size())});
        }
    }
}

void CopyDrafter::draft(Work& work) {
    const Batch& batch = work.batch;
    for (size_t index = 0; index < work.active.size(); ++index) {
        const int64_t b = work.active[index], length = batch.lengths[b];
        if (!batch.is_drafted[b]) continue;
        const Match match = find(texts[b], batch.output(b), length);
        float probability = length == 0 ? PROBABILITY_AT_START : PROBABILITY[std::min(match.length, NEAREST_MAX_MATCH)];
        for (int64_t at = match.end; at < match.text.length && work.drafts.can_add(index); ++at) {
            if (!work.drafts.add(index, match.text.tokens[at], probability)) break;
            probability = 1;
        }
    }
}

// Returns the number of tokens before `end` that equal the last tokens of the output. The beginnings of text and output
// count as one more equal token, so that an empty output matches the beginning of a text.
int64_t CopyDrafter::common_suffix(const Text& text, int64_t end, const int64_t* output, int64_t length) const {
    int64_t count = 0;
    for (; count < max_match && count < end && count < length; ++count) {
        if (text.tokens[end - 1 - count] != output[length - 1 - count]) return count;
    }
    return count < max_match && count == end && count == length && !text.is_output ? count + 1 : count;
}

CopyDrafter::Match CopyDrafter::find(std::vector<Text>& texts, const int64_t* output, int64_t length) const {
    const bool is_nearest = lookup == Lookup::NEAREST, is_recent = lookup == Lookup::RECENT;
    Match best;
    int64_t best_score = is_nearest ? -1 : 0, second = 0;
    const auto search = [&](Text& text) {
        int64_t best_of_text = -1, shift = text.shift;
        for (int64_t end = text.is_output; end <= text.length - is_nearest; ++end) {
            const int64_t count = common_suffix(text, end, output, length);
            const int64_t score = is_nearest ? MATCH_WEIGHT * count - std::abs(end - length - text.shift) : count;
            if (score > best_score || (is_recent && count > 0 && score == best_score)) {
                second = best_score;
                best_score = score;
                best = {text, end, count};
            } else {
                second = std::max(second, score);
            }
            if (score > best_of_text) {
                best_of_text = score;
                shift = end - length;
            }
        }
        text.shift = shift;
    };
    for (Text& text : texts) search(text);
    if (is_recent) {
        // The output without its last token, which would match itself.
        Text output_text{output, std::max<int64_t>(length - 1, 0), 0, true};
        search(output_text);
    }
    return lookup == Lookup::UNIQUE && best_score == second ? Match() : best;
}

}  // namespace spec_dec
