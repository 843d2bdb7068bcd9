// What fairseq's options allow at a position of the output, and the best token within that.

#pragma once

#include <cstdint>

namespace spec_dec {

struct Limits {
    int64_t vocabulary = 0, pad = 0, unk = 0, eos = 0;
    int64_t min_len = 1, max_len = 0;  // no EOS before position min_len, only EOS from max_len on
    float unk_penalty = 0;
    float temperature = 1;
    const int64_t* prefix = nullptr;  // [sentences][prefix_width] of --prefix-size, `pad` where nothing is given
    int64_t prefix_width = 0;

    // The token that a prefix forces at a position, -1 for none.
    int64_t forced(int64_t sentence, int64_t position) const {
        if (position >= prefix_width || position >= max_len) return -1;
        const int64_t token = prefix[sentence * prefix_width + position];
        return token == pad ? -1 : token;
    }

    // Whether an output may not end at a position; inside a prefix fairseq does not apply the minimum length.
    bool is_too_early(int64_t position) const {
        return position < min_len && position >= (prefix_width < max_len ? prefix_width : max_len);
    }

    // The only token that is allowed at a position: a given one, or EOS at the limit; -1 where several are.
    int64_t only(int64_t sentence, int64_t position) const {
        const int64_t given = forced(sentence, position);
        return given >= 0 || position < max_len ? given : eos;
    }
};

struct BestToken {
    int64_t token;
    float log_prob;  // NaN where scores are
};

// Throws std::runtime_error where a score is NaN; fairseq_plugins/errors.py has the same words.
void refuse_nan(float score);

// Divides scores by the temperature.
void apply_temperature(float* scores, int64_t count, const Limits& limits);

// Applies the unk penalty to scores of the tokens `begin` .. `end`, and sets those that are not allowed to -inf.
void constrain(float* scores, int64_t begin, int64_t end, const Limits& limits, int64_t sentence, int64_t position);

// The best allowed token. scores: [vocabulary] before softmax, divided by the temperature here.
BestToken best_token(float* scores, const Limits& limits, int64_t sentence, int64_t position);

// Turns scores into the log-probabilities that fairseq's search sees at a position: -inf for what is not allowed.
void to_log_probs(float* scores, const Limits& limits, int64_t sentence, int64_t position);

}  // namespace spec_dec
