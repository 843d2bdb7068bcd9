#include "acceptance.h"

#include <cmath>

namespace spec_dec {
namespace {

class TopBeta final : public Acceptance {
public:
    TopBeta(int64_t beta, float tau) : beta(beta), tau(tau) {}

    bool accepts(const float* log_probs, int64_t vocabulary, int64_t, int64_t drafted, int64_t best) const override {
        if (log_probs[best] - log_probs[drafted] > tau) return false;
        int64_t better = 0;
        for (int64_t i = 0; i < vocabulary; ++i) better += log_probs[i] > log_probs[drafted];
        return better < beta;
    }

private:
    const int64_t beta;
    const float tau;
};

class WithinDistance final : public Acceptance {
public:
    WithinDistance(float epsilon, std::vector<float> values) : epsilon(epsilon), values(std::move(values)) {}

    bool accepts(const float*, int64_t, int64_t, int64_t drafted, int64_t best) const override {
        const auto size = static_cast<int64_t>(values.size());
        // Comparisons with NaN are false.
        return drafted < size && best < size && std::fabs(values[drafted] - values[best]) <= epsilon;
    }

private:
    const float epsilon;
    const std::vector<float> values;
};

class AtLeast final : public Acceptance {
public:
    AtLeast(int64_t block, std::shared_ptr<Acceptance> rule) : block(block), rule(std::move(rule)) {}

    bool accepts(const float* log_probs, int64_t vocabulary, int64_t offset, int64_t drafted,
                 int64_t best) const override {
        return offset < block - 1 || (rule && rule->accepts(log_probs, vocabulary, offset, drafted, best));
    }

private:
    const int64_t block;
    const std::shared_ptr<Acceptance> rule;
};

}  // namespace

std::shared_ptr<Acceptance> accept_top_beta(int64_t beta, float tau) { return std::make_shared<TopBeta>(beta, tau); }

std::shared_ptr<Acceptance> accept_within_distance(float epsilon, std::vector<float> values) {
    return std::make_shared<WithinDistance>(epsilon, std::move(values));
}

std::shared_ptr<Acceptance> accept_at_least(int64_t block, std::shared_ptr<Acceptance> rule) {
    return std::make_shared<AtLeast>(block, std::move(rule));
}

}  // namespace spec_dec
