#include "limits.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <stdexcept>

#include "kernels.h"

namespace spec_dec {

namespace {

constexpr float FORBIDDEN = -std::numeric_limits<float>::infinity();

// Sets the scores of the tokens `begin` .. `end` that are among these to -inf.
void forbid(float* scores, int64_t begin, int64_t end, const std::vector<int64_t>& tokens) {
    for (auto token = std::lower_bound(tokens.begin(), tokens.end(), begin); token != tokens.end() && *token < end;
         ++token) {
        scores[*token - begin] = FORBIDDEN;
    }
}

// Whether --sampling-topk or --sampling-topp keep a token. As in fairseq, the second one makes the first one void.
bool is_kept(const float* scores, float shift, int64_t token, int64_t size, const SentenceLimits& limits) {
    const float score = scores[token];
    if (limits.topp > 0) {
        thread_local std::vector<float> better;
        better.clear();
        std::copy_if(scores, scores + size, std::back_inserter(better), [&](float other) { return other > score; });
        return !(kernels().sum_exp(better.data(), better.size(), shift) >= limits.topp);
    }
    if (limits.topk <= 0) return true;
    return std::count_if(scores, scores + size, [&](float other) { return other > score; }) < limits.topk;
}

// Applies temperature and limits to logits. Returns what, subtracted from them, gives log-probabilities.
float limit_scores(float* scores, const Limits& limits, int64_t sentence, int64_t position) {
    apply_temperature(scores, limits.vocabulary, limits.of(sentence));
    const float shift = log_sum_exp(scores, limits.vocabulary);
    constrain(scores, 0, limits.vocabulary, limits, sentence, position);
    return shift;
}

}  // namespace

void refuse_nan(float score) {
    if (!std::isnan(score)) return;
    throw std::runtime_error("the model's scores are not numbers (NaN): its weights or activations overflow");
}

void apply_temperature(float* scores, int64_t count, const SentenceLimits& limits) {
    if (limits.temperature == 1) return;
    for (int64_t i = 0; i < count; ++i) scores[i] /= limits.temperature;
}

void constrain(float* scores, int64_t begin, int64_t end, const Limits& limits, int64_t sentence, int64_t position) {
    const auto at = [&](int64_t token) { return begin <= token && token < end ? scores + token - begin : nullptr; };
    if (float* unk = at(limits.unk)) *unk -= limits.of(sentence).unk_penalty;
    const int64_t only = limits.only(sentence, position);
    if (only >= 0) {
        float* kept = at(only);
        const float score = kept ? *kept : FORBIDDEN;
        std::fill(scores, scores + (end - begin), FORBIDDEN);
        if (kept) *kept = score;
        return;
    }
    if (float* pad = at(limits.pad)) *pad = FORBIDDEN;
    float* eos = at(limits.eos);
    if (eos && limits.is_too_early(sentence, position)) *eos = FORBIDDEN;
    forbid(scores, begin, end, limits.of(sentence).suppressed);
    if (position == limits.beginning(sentence)) forbid(scores, begin, end, limits.of(sentence).begin_suppressed);
}

int64_t choose_token(float* scores, float shift, const Limits& limits, int64_t sentence, int64_t position) {
    const SentenceLimits& own = limits.of(sentence);
    const int64_t size = limits.vocabulary, best = kernels().argmax(scores, size);
    if (own.noise_key.empty()) return best;
    const NoiseKey key(own.noise_key.data(), position);
    for (;;) {
        const int64_t token = kernels().noisy_argmax(scores, size, best, key);
        if (is_kept(scores, shift, token, size, own)) return token;
        // Tokens that are no better are not kept, either.
        const float rejected = scores[token];
        for (int64_t i = 0; i < size; ++i) {
            scores[i] = scores[i] <= rejected ? FORBIDDEN : scores[i];
        }
    }
}

BestToken best_token(float* scores, const Limits& limits, int64_t sentence, int64_t position) {
    const float shift = limit_scores(scores, limits, sentence, position);
    const int64_t only = limits.only(sentence, position);
    const int64_t best = only >= 0 ? only : choose_token(scores, shift, limits, sentence, position);
    return {best, shift};
}

void to_log_probs(float* scores, const Limits& limits, int64_t sentence, int64_t position) {
    const float shift = limit_scores(scores, limits, sentence, position);
    for (int64_t i = 0; i < limits.vocabulary; ++i) scores[i] -= shift;
}

}  // namespace spec_dec
