#include "predictor.h"

#include <algorithm>
#include <cmath>

#include "kernels.h"

namespace spec_dec {

constexpr int64_t FORGOTTEN = -1;  // in place of a sentence

void Predictor::project(const float* from, const std::vector<int64_t>& of_rows, bool needs_log_probs) {
    const auto rows = static_cast<int64_t>(of_rows.size());
    sentences = of_rows;
    shifts.assign(rows, 0);
    states = through_head(from, rows);
    has_log_probs = needs_log_probs;
    is_screened = may_screen();
    const Linear& layer = is_screened ? *model.screen : *model.projection;
    layer.run(states, rows, at_least(scores, rows * layer.outputs));
}

const float* Predictor::through_head(const float* from, int64_t rows) {
    if (!head.expand) return from;
    const int64_t dim = model.width;
    float* wide = at_least(head_states, rows * (head.expand->outputs + dim));
    float* projected = wide + rows * head.expand->outputs;
    head.expand->run(from, rows, wide, Activation::RELU);
    std::copy_n(from, rows * dim, projected);
    head.shrink->run(wide, rows, projected, Activation::NONE, true);
    return projected;
}

bool Predictor::may_screen() const {
    // Log-probabilities that follow later take longer than the screen saves if the sentences are many, or if the cache
    // holds the projection.
    constexpr int64_t MOST_SENTENCES = 8;
    if (!model.screen || has_log_probs) return false;
    int64_t scored = 0;
    for (size_t row = 0; row < sentences.size(); ++row) {
        const SentenceLimits& own = batch.limits.of(sentences[row]);
        if (!own.noise_key.empty() || own.temperature != 1) return false;
        scored += own.needs_log_probs && (row == 0 || sentences[row] != sentences[row - 1]);
    }
    return scored <= (model.scores_later ? MOST_SENTENCES : 0);
}

int64_t Predictor::best(int64_t row, int64_t position) {
    float* own = scores.data() + row * model.projection->outputs;
    const int64_t sentence = sentences[row];
    if (is_screened) {
        const float* x = states + row * model.width;
        const float bound = model.screen->error_bound(x);
        if (std::isfinite(bound)) return best_screened(own, x, bound, sentence, position);
        model.projection->run(x, 1, own);
    }
    if (!has_log_probs) {
        const BestToken best = best_token(own, batch.limits, sentence, position);
        shifts[row] = best.shift;
        return best.token;
    }
    to_log_probs(own, batch.limits, sentence, position);
    const int64_t only = batch.limits.only(sentence, position);
    // It may have the score -inf, which argmax would not find.
    return only >= 0 ? only : kernels().argmax(own, batch.limits.vocabulary);
}

// A score is at most the bound away from its approximation, so it is not the best one if it is more than twice the
// bound below the best approximation. The others are computed, in whole panels.
int64_t Predictor::best_screened(float* own, const float* x, float bound, int64_t sentence, int64_t position) const {
    const int64_t vocabulary = batch.limits.vocabulary, only = batch.limits.only(sentence, position);
    constrain(own, 0, vocabulary, batch.limits, sentence, position);
    if (only >= 0) return only;
    const float threshold = kernels().max(own, vocabulary) - 2 * bound;
    for (int64_t next = 0; (next = kernels().first_above(own, next, vocabulary, threshold)) < vocabulary;) {
        const int64_t begin = next - next % Linear::PANEL;
        next = std::min(begin + Linear::PANEL, vocabulary);
        model.projection->run_outputs(x, 1, static_cast<int>(begin), static_cast<int>(next), {own + begin, vocabulary});
        constrain(own + begin, begin, next, batch.limits, sentence, position);
    }
    return kernels().argmax(own, vocabulary);
}

float Predictor::log_prob(int64_t row, int64_t position, int64_t token) {
    if (!is_screened) {
        const float result = scores_of(row)[token] - shifts[row];
        refuse_nan(result);
        return result;
    }
    refuse_nan(shifts[row]);
    if (batch.limits.of(sentences[row]).needs_log_probs) {
        const float* x = states + row * model.width;
        emitted_states.insert(emitted_states.end(), x, x + model.width);
        emitted.push_back({sentences[row], position, token});
    }
    return 0;
}

void Predictor::forget(int64_t sentence) {
    for (Emitted& one : emitted) {
        if (one.sentence == sentence) one.sentence = FORGOTTEN;
    }
}

void Predictor::score_emitted() {
    const int64_t vocabulary = batch.limits.vocabulary;
    for_each_block(unscored(), SCORED_AT_ONCE, [&](int64_t first, int64_t count) {
        float* own = at_least(scores, count * vocabulary);
        model.projection->run(emitted_states.data() + first * model.width, count, own);
        for (int64_t i = first; i < first + count; ++i, own += vocabulary) {
            const Emitted& one = emitted[i];
            if (one.sentence == FORGOTTEN) continue;
            const float shift = log_sum_exp(own, vocabulary);
            constrain(own + one.token, one.token, one.token + 1, batch.limits, one.sentence, one.position);
            const float result = own[one.token] - shift;
            refuse_nan(result);
            batch.log_probs[one.sentence * batch.columns + one.position + 1] = result;
        }
    });
    emitted.clear();
    emitted_states.clear();
}

}  // namespace spec_dec
