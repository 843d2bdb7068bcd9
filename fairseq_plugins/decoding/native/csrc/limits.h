// Which tokens fairseq's options allow at a position of the output, and the best of them.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace spec_dec {

// Limits of one sentence.
struct SentenceLimits {
    int64_t min_len = 1, max_len = 0;  // no EOS before position min_len, only EOS from max_len on
    float unk_penalty = 0, temperature = 1;
    int64_t beam = 1;             // hypotheses that a beam search keeps
    std::vector<int64_t> prefix;  // --prefix-size; `pad` leaves a position free
    // Sampling draws tokens with this noise: sentence, sample and seed (noise.h). Empty for the best tokens.
    std::vector<int64_t> noise_key;
    int64_t topk = 0;  // --sampling-topk, 0 for none
    float topp = 0;    // --sampling-topp, 0 for none
    // Tokens that are never chosen, in ascending order, and those that do not begin an output; a prefix has them.
    std::vector<int64_t> suppressed, begin_suppressed;
    bool needs_log_probs = true;  // of the chosen tokens
};

struct Limits {
    int64_t vocabulary = 0, pad = 0, unk = 0, eos = 0;
    int64_t max_len = 0;                       // the largest of any sentence
    std::vector<SentenceLimits> of_sentences;  // [B]

    const SentenceLimits& of(int64_t sentence) const { return of_sentences[sentence]; }

    // Returns the token that the prefix forces at a position; -1 if none.
    int64_t forced(int64_t sentence, int64_t position) const {
        const SentenceLimits& own = of(sentence);
        if (position >= static_cast<int64_t>(own.prefix.size()) || position >= own.max_len) return -1;
        const int64_t token = own.prefix[position];
        return token == pad ? -1 : token;
    }

    // Returns the first position after the prefix.
    int64_t beginning(int64_t sentence) const {
        const SentenceLimits& own = of(sentence);
        return std::min<int64_t>(own.prefix.size(), own.max_len);
    }

    // Whether EOS is forbidden at a position. Inside a prefix fairseq ignores the minimum length.
    bool is_too_early(int64_t sentence, int64_t position) const {
        return position < of(sentence).min_len && position >= beginning(sentence);
    }

    // Returns the only allowed token: a forced one, or EOS at the maximum length; -1 if several are allowed.
    int64_t only(int64_t sentence, int64_t position) const {
        const int64_t given = forced(sentence, position);
        return given >= 0 || position < of(sentence).max_len ? given : eos;
    }
};

struct BestToken {
    int64_t token;
    float shift;  // subtracted from the scores it gives log-probabilities; NaN if a score is
};

// Throws std::runtime_error if a score is NaN, with the message of fairseq_plugins/errors.py.
void refuse_nan(float score);

// Divides scores by a sentence's temperature.
void apply_temperature(float* scores, int64_t count, const SentenceLimits& limits);

// Applies the unk penalty to the scores of the tokens `begin` .. `end`, and sets forbidden ones to -inf.
void constrain(float* scores, int64_t begin, int64_t end, const Limits& limits, int64_t sentence, int64_t position);

// Returns the best allowed token. scores: [vocabulary], logits; overwritten.
BestToken best_token(float* scores, const Limits& limits, int64_t sentence, int64_t position);

// Returns the best token, or the token that is drawn for sampling. scores: [vocabulary], logits or log-probabilities,
// -inf for forbidden tokens; overwritten. shift: subtracted from the scores it gives log-probabilities.
int64_t choose_token(float* scores, float shift, const Limits& limits, int64_t sentence, int64_t position);

// Replaces logits by the log-probabilities that fairseq's search sees at a position: -inf for forbidden tokens.
void to_log_probs(float* scores, const Limits& limits, int64_t sentence, int64_t position);

}  // namespace spec_dec
