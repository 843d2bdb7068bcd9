#include "acceptance.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace spec_dec {

Acceptance accept_top_beta(int64_t beta, float tau) {
    return {[=](const float* log_probs, int64_t vocabulary, int64_t, int64_t drafted, int64_t best) {
        if (log_probs[best] - log_probs[drafted] > tau) return false;
        const auto is_better = [&](float score) { return score > log_probs[drafted]; };
        return std::count_if(log_probs, log_probs + vocabulary, is_better) < beta;
    }};
}

Acceptance accept_within_distance(float epsilon, std::vector<float> values) {
    return {[epsilon, values = std::move(values)](const float*, int64_t, int64_t, int64_t drafted, int64_t best) {
                const auto size = static_cast<int64_t>(values.size());
                // Comparisons with NaN are false.
                return drafted < size && best < size && std::fabs(values[drafted] - values[best]) <= epsilon;
            },
            false};
}

Acceptance accept_at_least(int64_t block, std::optional<Acceptance> rule) {
    const bool reads_log_probs = rule && rule->reads_log_probs;
    return {[block, rule = std::move(rule)](const float* log_probs, int64_t vocabulary, int64_t offset, int64_t drafted,
                                            int64_t best) {
                return offset < block - 1 || (rule && rule->accepts(log_probs, vocabulary, offset, drafted, best));
            },
            reads_log_probs};
}

}  // namespace spec_dec
