// Which tokens fairseq's options allow at a position of the output, and the best of them.

#pragma once

#include <cstdint>

namespace spec_dec {

struct Limits {
    int64_t vocabulary = 0, pad = 0, unk = 0, eos = 0;
    int64_t min_len = 1, max_len = 0;  // no EOS before position min_len, only EOS from max_len on
    float unk_penalty = 0;
    float temperature = 1;
    const int64_t* prefix = nullptr;  // [sentences][prefix_width], --prefix-size; `pad` leaves a position free
    int64_t prefix_width = 0;

    // Returns the token that the prefix forces at a position; -1 if none.
    int64_t forced(int64_t sentence, int64_t position) const {
        if (position >= prefix_width || position >= max_len) return -1;
        const int64_t token = prefix[sentence * prefix_width + position];
        return token == pad ? -1 : token;
    }

    // Whether EOS is forbidden at a position. Inside a prefix fairseq ignores the minimum length.
    bool is_too_early(int64_t position) const {
        return position < min_len && position >= (prefix_width < max_len ? prefix_width : max_len);
    }

    // Returns the only allowed token: a forced one, or EOS at the maximum length; -1 if several are allowed.
    int64_t only(int64_t sentence, int64_t position) const {
        const int64_t given = forced(sentence, position);
        return given >= 0 || position < max_len ? given : eos;
    }
};

struct BestToken {
    int64_t token;
    float log_prob;  // NaN if a score is
};

// Throws std::runtime_error if a score is NaN, with the message of fairseq_plugins/errors.py.
void refuse_nan(float score);

// Divides scores by the temperature.
void apply_temperature(float* scores, int64_t count, const Limits& limits);

// Applies the unk penalty to the scores of the tokens `begin` .. `end`, and sets forbidden ones to -inf.
void constrain(float* scores, int64_t begin, int64_t end, const Limits& limits, int64_t sentence, int64_t position);

// Returns the best allowed token. scores: [vocabulary], logits; overwritten.
BestToken best_token(float* scores, const Limits& limits, int64_t sentence, int64_t position);

// Replaces logits by the log-probabilities that fairseq's search sees at a position: -inf for forbidden tokens.
void to_log_probs(float* scores, const Limits& limits, int64_t sentence, int64_t position);

}  // namespace spec_dec
