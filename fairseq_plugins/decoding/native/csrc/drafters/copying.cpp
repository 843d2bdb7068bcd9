// Drafts by copying a text after a match, by the same rules as drafters/copying.py.

#include <cmath>
#include <cstdlib>
#include <utility>

#include "drafters.h"

namespace spec_dec {
namespace {

// As in drafters/copying.py: for NEAREST, a matching token outweighs a shift by MATCH_WEIGHT positions.
constexpr int64_t NEAREST_MAX_MATCH = 4, MATCH_WEIGHT = 8;
// Initial survival of a draft's first token for the policy: by the length of the match, and at the start of the output.
constexpr float PROBABILITY[NEAREST_MAX_MATCH + 1] = {0.3f, 0.55f, 0.75f, 0.85f, 0.95f}, PROBABILITY_AT_START = 0.65f;

}  // namespace

int64_t CopyDrafter::max_width(const Batch& batch) const {
    int64_t longest = batch.is_open ? batch.limits.max_len : 1;
    if (copies_sources(batch)) longest = std::max(longest, batch.sources.longest);
    if (!batch.is_open) {
        for (const auto& drafts : batch.drafts) {
            for (const auto& draft : drafts) longest = std::max<int64_t>(longest, draft.size());
        }
    }
    return std::min(width, longest);
}

// While costs are measured, no drafts are given, and the sources are copied.
bool CopyDrafter::copies_sources(const Batch& batch) const { return lookup != Lookup::NEAREST || batch.drafts.empty(); }

bool CopyDrafter::can_draft(const Batch& batch, int64_t sentence) const {
    return copies_sources(batch) || !batch.drafts[sentence].empty();
}

void CopyDrafter::begin_batch(const Batch& batch) { texts.assign(batch.sentences(), {}); }

void CopyDrafter::begin(const Batch& batch, const std::vector<int64_t>& sentences) {
    for (const int64_t b : sentences) {
        texts[b].clear();
        if (copies_sources(batch)) {
            texts[b].push_back({batch.sources.sentence(b), batch.sources.length(b)});
        } else {
            for (const auto& draft : batch.drafts[b]) {
                texts[b].push_back({draft.data(), static_cast<int64_t>(draft.size())});
            }
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
    return count < max_match && count == end && count == length ? count + 1 : count;
}

CopyDrafter::Match CopyDrafter::find(std::vector<Text>& texts, const int64_t* output, int64_t length) const {
    const bool is_nearest = lookup == Lookup::NEAREST;
    Match best;
    int64_t best_score = is_nearest ? -1 : 0, second = 0;
    for (Text& text : texts) {
        int64_t best_of_text = -1, shift = text.shift;
        for (int64_t end = 0; end <= text.length - is_nearest; ++end) {
            const int64_t count = common_suffix(text, end, output, length);
            const int64_t score = is_nearest ? MATCH_WEIGHT * count - std::abs(end - length - text.shift) : count;
            if (score > best_score) {
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
    }
    return lookup == Lookup::UNIQUE && best_score == second ? Match() : best;
}

}  // namespace spec_dec
