// What is accepted besides the verifier's best token.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace spec_dec {

// Whether a drafted token is accepted that is not the verifier's best.
struct Acceptance {
    // log_probs: [vocabulary], -inf for what fairseq's options forbid, which is never accepted.
    // offset: of the token in its draft. drafted, best: differ.
    std::function<bool(const float* log_probs, int64_t vocabulary, int64_t offset, int64_t drafted, int64_t best)>
        accepts;
};

// Tokens among the best `beta` that lag the best by at most `tau` (GAD eq. 8-9).
Acceptance accept_top_beta(int64_t beta, float tau);

// Numbers at most `epsilon` away from the best (Stern et al. 2018, section 5.2); `values` [vocabulary] has NaN for
// symbols that are no numbers.
Acceptance accept_within_distance(float epsilon, std::vector<float> values);

// The first `block` - 1 tokens in any case, others as `rule` says (Stern et al. 2018, section 5.3).
Acceptance accept_at_least(int64_t block, std::optional<Acceptance> rule);

}  // namespace spec_dec
