#include "limits.h"

#include <algorithm>
#include <limits>

#include "kernels.h"

namespace spec_dec {
namespace {

constexpr float FORBIDDEN = -std::numeric_limits<float>::infinity();

void apply_temperature(float* scores, const Limits& limits) {
    if (limits.temperature == 1) return;
    for (int64_t i = 0; i < limits.vocabulary; ++i) scores[i] /= limits.temperature;
}

}  // namespace

BestToken best_token(float* scores, const Limits& limits, int64_t sentence, int64_t position) {
    apply_temperature(scores, limits);
    const float shift = log_normalizer(scores, limits.vocabulary);
    const int64_t given = limits.forced(sentence, position);
    scores[limits.unk] -= limits.unk_penalty;
    if (given >= 0) return {given, scores[given] - shift};
    if (position >= limits.max_len) return {limits.eos, scores[limits.eos] - shift};
    scores[limits.pad] = FORBIDDEN;
    if (limits.is_too_early(position)) scores[limits.eos] = FORBIDDEN;
    const int64_t best = kernels().first_best(scores, limits.vocabulary);
    return {best, scores[best] - shift};
}

void to_log_probs(float* scores, const Limits& limits, int64_t sentence, int64_t position) {
    apply_temperature(scores, limits);
    const float shift = log_normalizer(scores, limits.vocabulary);
    scores[limits.unk] -= limits.unk_penalty;
    for (int64_t i = 0; i < limits.vocabulary; ++i) scores[i] -= shift;
    const int64_t given = limits.forced(sentence, position);
    const int64_t only = given >= 0 ? given : position >= limits.max_len ? limits.eos : -1;
    if (only >= 0) {
        const float kept = scores[only];
        std::fill_n(scores, limits.vocabulary, FORBIDDEN);
        scores[only] = kept;
        return;
    }
    scores[limits.pad] = FORBIDDEN;
    if (limits.is_too_early(position)) scores[limits.eos] = FORBIDDEN;
}

}  // namespace spec_dec
