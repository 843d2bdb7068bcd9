// The verifier's best tokens: the projection of its states to the vocabulary, and the choice among the scores.
//
// The best token of a row needs few scores. A copy of the weights in int8 approximates all of them, with a bound of the
// errors; only those of tokens that may be the best are computed from the weights themselves. So the token is the same,
// and a step reads a quarter of the projection. A log-probability needs all scores. If it is wanted and the sentences
// are few, it follows later, for several tokens at once, which read the weights once.

#pragma once

#include <vector>

#include "drafter.h"

namespace spec_dec {

// Head 1 of blockwise decoding: two layers between the verifier's states and its projection; null for none.
struct OutputHead {
    SharedLinear expand, shrink;
};

class Predictor {
public:
    Predictor(const Transformer& model, const OutputHead& head, Batch& batch)
        : model(model), head(head), batch(batch) {}

    // Projects states[rows][D] of a sentence each, which stay valid until the next call. The other functions return
    // the results of a row. needs_log_probs: whether its scores are to be log-probabilities.
    void project(const float* states, const std::vector<int64_t>& sentences, bool needs_log_probs);

    // Returns the best token.
    int64_t best(int64_t row, int64_t position);

    // Returns the scores [vocabulary] after `best`: -inf for forbidden tokens. Others are to be read only if they are
    // log-probabilities, as `project` was asked.
    const float* scores_of(int64_t row) const { return scores.data() + row * model.projection->outputs; }

    // Returns the log-probability of a token after `best`; 0 if `score_emitted` is to compute it, or if it is not
    // wanted. Throws std::runtime_error if it is NaN.
    float log_prob(int64_t row, int64_t position, int64_t token);

    // Writes the log-probabilities that were left to be computed to the batch.
    void score_emitted();

    // Number of these. With more than SCORED_AT_ONCE the time of each falls no further.
    int64_t unscored() const { return static_cast<int64_t>(emitted.size()); }
    static constexpr int64_t SCORED_AT_ONCE = 24;

    // Leaves those of a sentence out, whose place another one may take.
    void forget(int64_t sentence);

private:
    struct Emitted {
        int64_t sentence, position, token;
    };

    const float* through_head(const float* from, int64_t rows);
    bool may_screen() const;
    int64_t best_screened(float* own, const float* x, float bound, int64_t sentence, int64_t position) const;

    const Transformer& model;
    const OutputHead& head;
    Batch& batch;
    std::vector<int64_t> sentences;
    std::vector<float> shifts;      // subtracted from scores they give log-probabilities
    const float* states = nullptr;  // [rows][D], as they are projected
    bool is_screened = false, has_log_probs = false;
    Floats scores, head_states;
    std::vector<Emitted> emitted;
    std::vector<float> emitted_states;  // [emitted][D]
};

}  // namespace spec_dec
