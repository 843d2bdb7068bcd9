// What is accepted beside the verifier's best token.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "limits.h"

namespace spec_dec {

// Decides whether a drafted token may stand that is not the verifier's best.
class Acceptance {
public:
    virtual ~Acceptance() = default;

    // log_probs: [vocabulary], -inf for what fairseq's options forbid, which never stands.
    // offset: of the token in its draft. drafted, best: differ.
    virtual bool accepts(const float* log_probs, int64_t vocabulary, int64_t offset, int64_t drafted,
                         int64_t best) const = 0;
};

// Tokens among the best `beta` that lag the best by at most `tau` (GAD eq. 8-9).
std::shared_ptr<Acceptance> accept_top_beta(int64_t beta, float tau);

// Numbers at most `epsilon` away from the best (Stern et al. 2018, section 5.2); `values` [vocabulary] has NaN for
// symbols that are no numbers.
std::shared_ptr<Acceptance> accept_within_distance(float epsilon, std::vector<float> values);

// The first `block` - 1 tokens in any case, others as `rule` says, which may be null (Stern et al. 2018, section 5.3).
std::shared_ptr<Acceptance> accept_at_least(int64_t block, std::shared_ptr<Acceptance> rule);

}  // namespace spec_dec
