// The choice of a draft's token by its scores.

#include <algorithm>
#include <cmath>
#include <limits>

#include "../drafter.h"
#include "../kernels.h"

namespace spec_dec {

DraftToken choose_draft(const float* scores, const std::vector<int64_t>& ids, const Limits& limits, int64_t sentence,
                        int64_t position, bool needs_probability) {
    const int64_t size = ids.size();
    const SentenceLimits& own = limits.of(sentence);
    if (own.noise_key.empty()) {
        const int64_t best = kernels().argmax(scores, size);
        return {ids[best], needs_probability ? 1 / kernels().sum_exp(scores, size, scores[best]) : 1};
    }
    // The noise needs the scores in the places of their tokens.
    thread_local Floats memory;
    float* all = at_least(memory, limits.vocabulary);
    std::fill_n(all, limits.vocabulary, -std::numeric_limits<float>::infinity());
    for (int64_t i = 0; i < size; ++i) all[ids[i]] = scores[i] / own.temperature;
    const bool needs_shift = needs_probability || own.topp > 0;
    const float shift = needs_shift ? log_sum_exp(all, limits.vocabulary) : 0;
    const int64_t token = choose_token(all, shift, limits, sentence, position);
    return {token, needs_probability ? std::exp(all[token] - shift) : 1};
}

}  // namespace spec_dec
