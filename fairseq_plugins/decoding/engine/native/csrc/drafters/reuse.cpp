// Copies drafts that users bring; the same rule as methods/reuse.py.

#include <cstdlib>
#include <stdexcept>

#include "drafters.h"

namespace spec_dec {
namespace {

// As in methods/reuse.py: a common suffix counts up to MAX_MATCH tokens, each of which outweighs a shift by WORTH.
constexpr int64_t MAX_MATCH = 4, WORTH = 8;
// For the policy, which learns how far such drafts survive: by the length of the match, and at the start.
constexpr float PROBABILITY[MAX_MATCH + 1] = {0.3f, 0.55f, 0.75f, 0.85f, 0.95f}, PROBABILITY_AT_START = 0.65f;

struct Match {
    int64_t end = 0, score = -1, length = 0;
};

int64_t common_suffix(const int64_t* text, int64_t end, const int64_t* output, int64_t length) {
    int64_t count = 0;
    for (const int64_t most = std::min({end, length, MAX_MATCH}); count < most; ++count) {
        if (text[end - 1 - count] != output[length - 1 - count]) break;
    }
    return count;
}

// The best place of an output in a draft, near the expected one; its score is below 0 where there is none.
Match find(const std::vector<int64_t>& text, int64_t expected, const int64_t* output, int64_t length) {
    Match best;
    for (int64_t end = 0; end < static_cast<int64_t>(text.size()); ++end) {
        const int64_t count = common_suffix(text.data(), end, output, length);
        const int64_t score = WORTH * count - std::abs(end - expected);
        if (score > best.score) best = {end, score, count};
    }
    return best;
}

}  // namespace

void ReuseDrafter::take(std::vector<Texts> drafts) {
    texts = std::move(drafts);
    has_drafts = true;
}

int64_t ReuseDrafter::max_width(const Batch&) const {
    if (!has_drafts) return width;
    size_t longest = 0;
    for (const Texts& of_sentence : texts) {
        for (const auto& text : of_sentence) longest = std::max(longest, text.size());
    }
    return std::min(width, static_cast<int64_t>(longest));
}

void ReuseDrafter::begin_batch(const Batch& batch) {
    if (!has_drafts) return;
    if (static_cast<int64_t>(texts.size()) != batch.sentences()) {
        throw std::invalid_argument("drafts of another number of sentences");
    }
    places.assign(texts.size(), {});
    for (size_t b = 0; b < texts.size(); ++b) {
        places[b].ends.assign(texts[b].size(), 0);
        for (const auto& text : texts[b]) {
            for (const int64_t token : text) {
                if (token < 0 || token >= batch.limits.vocabulary) {
                    throw std::invalid_argument("a token of a draft is outside of the vocabulary");
                }
            }
        }
    }
}

void ReuseDrafter::draft(Work& work) {
    const Batch& batch = work.batch;
    Drafts& drafts = work.drafts;
    for (size_t index = 0; index < work.active.size(); ++index) {
        const int64_t b = work.active[index], length = batch.lengths[b];
        if (!batch.is_drafted[b]) continue;
        if (!has_drafts) {
            while (drafts.goes_on(index) && drafts.add(index, batch.limits.pad)) continue;
            continue;
        }
        Place& place = places[b];
        const std::vector<int64_t>* text = nullptr;
        Match best;
        for (size_t i = 0; i < texts[b].size(); ++i) {
            const int64_t expected = place.ends[i] + length - place.length;
            const Match match = find(texts[b][i], expected, batch.output(b), length);
            place.ends[i] = match.score >= 0 ? match.end : expected;
            if (match.score <= best.score) continue;
            best = match;
            text = &texts[b][i];
        }
        place.length = length;
        if (!text) continue;
        float probability = length == 0 ? PROBABILITY_AT_START : PROBABILITY[best.length];
        for (size_t from = best.end; from < text->size() && drafts.goes_on(index); ++from) {
            if (!drafts.add(index, (*text)[from], probability)) break;
            probability = 1;
        }
    }
}

}  // namespace spec_dec
