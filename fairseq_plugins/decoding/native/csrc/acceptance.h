// Rules that accept drafted tokens besides the verifier's best token.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace spec_dec {

struct Acceptance {
    // Returns whether `drafted`, which is not the verifier's `best` token, is accepted.
    //
    // log_probs: [vocabulary], -inf for tokens that fairseq's options forbid; these are never accepted.
    // offset: position of the token in its draft.
    std::function<bool(const float* log_probs, int64_t vocabulary, int64_t offset, int64_t drafted, int64_t best)>
        accepts;
    bool reads_log_probs = true;  // otherwise only whether they are -inf
};

// Accepts a token among the best `beta` whose log-probability is at most `tau` below the best (GAD eq. 8-9).
Acceptance accept_top_beta(int64_t beta, float tau);

// Accepts a number at most `epsilon` away from the best one (Stern et al. 2018, section 5.2). values: [vocabulary], NaN
// for symbols that are no numbers.
Acceptance accept_within_distance(float epsilon, std::vector<float> values);

// Accepts the first `block` - 1 tokens of a draft always, and others by `rule` (Stern et al. 2018, section 5.3).
Acceptance accept_at_least(int64_t block, std::optional<Acceptance> rule);

}  // namespace spec_dec
