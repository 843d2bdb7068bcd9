#include "policy.h"

namespace spec_dec {
namespace {

// Share of the time that may be spent on drafts that do not pay, to see whether they begin to.
constexpr double EXPLORATION = 0.005;
// What earlier drafts count for after each new one, and earlier sentences for their lengths.
constexpr double MEMORY = 0.995;
// Evidence, in tokens, for what the drafter says of a bin, and for what all positions of a bin say of one of them.
constexpr double PRIOR_TOKENS = 8;
// Rounds of Dinkelbach's method (1967), which converges faster than linearly.
constexpr int ROUNDS = 3;

}  // namespace

Policy::Policy(int64_t width, bool always_drafts) : width(width), always_drafts(always_drafts), known(width) {
    update_rates();
}

void Policy::update_rates() {
    SurvivalRates rates;
    double tried[BINS], right[BINS];
    for (int bin = 0; bin < BINS; ++bin) {
        tried[bin] = PRIOR_TOKENS;
        right[bin] = PRIOR_TOKENS * (bin + 0.5) / BINS;
        for (int64_t t = 0; t < width; ++t) {
            tried[bin] += known.tried[t * BINS + bin];
            right[bin] += known.right[t * BINS + bin];
        }
    }
    for (int64_t t = 0; t < width; ++t) {
        for (int bin = 0; bin < BINS; ++bin) {
            const size_t place = t * BINS + bin;
            const double usual = right[bin] / tried[bin];
            rates.rate.push_back((known.right[place] + PRIOR_TOKENS * usual) / (known.tried[place] + PRIOR_TOKENS));
            // One draft more than were made, all of whose tokens are likely: what is unknown is tried.
            rates.reach.push_back((known.seen[place] + (bin == BINS - 1)) / (known.drafts[t] + 1));
        }
    }
    current = std::make_shared<const SurvivalRates>(std::move(rates));
}

Plan Policy::plan(double sentences) const {
    if (always_drafts) return {width, 0, 0, true};
    const std::shared_ptr<const SurvivalRates> known_rates = rates();
    const double without = sentences / costs.step.seconds(sentences);
    Plan best;
    double rate = without, rows_of_best = 1, tokens_of_best = 1;
    for (int round = 0; round < ROUNDS; ++round) {
        // A row is worth its time where its token is likelier than what that time brings elsewhere.
        const double row = rate * costs.verify.slope(sentences * rows_of_best);
        const double token = rate * costs.accept.slope(sentences * tokens_of_best);
        const double threshold = row / std::max(1 - token, 0.1);
        Plan found{1, static_cast<float>(threshold), 0, false};
        double tokens = 1, rows = 1;
        for (int64_t t = 0; t < width; ++t) {
            for (int bin = 0; bin < BINS; ++bin) {
                const double reach = known_rates->reach[t * BINS + bin], survives = known_rates->rate[t * BINS + bin];
                if (survives < threshold) continue;
                rows += reach;
                tokens += reach * survives;
            }
            const double seconds = costs.draft.seconds(sentences * (t + 1)) + costs.verify.seconds(sentences * rows) +
                                   costs.accept.seconds(sentences * tokens);
            if (sentences * tokens <= found.rate * seconds) continue;
            found.rate = sentences * tokens / seconds;
            found.width = t + 1;
            rows_of_best = rows;
            tokens_of_best = tokens;
        }
        if (found.rate > best.rate) best = found;
        rate = std::max(found.rate, without);
    }
    best.pays = best.rate > without;
    return best;
}

bool Policy::drafts(double sentences, double source) {
    if (always_drafts) return true;
    const double rate = plan(sentences).rate;
    std::lock_guard<std::mutex> lock(mutex);
    // Of a sentence, which has its share of the call.
    const double output = source * output_per_source;
    const double without = output * costs.step.seconds(sentences) / sentences;
    const double with = output / rate + costs.prepare.seconds(source);
    if (with <= without) return true;
    // By itself among others, it loses what all of them would.
    const double loss = (with - without) * sentences;
    credit = std::min(credit + EXPLORATION * without, loss);
    if (credit < loss) return false;
    credit = 0;
    return true;
}

void Policy::learn(const SurvivalCounts& more) {
    if (more.width() == 0 || more.drafts[0] == 0) return;
    std::lock_guard<std::mutex> lock(mutex);
    const double kept = always_drafts ? 1 : std::pow(MEMORY, more.drafts[0]);
    const auto add = [&](std::vector<double>& sums, const std::vector<double>& values) {
        for (size_t i = 0; i < std::min(sums.size(), values.size()); ++i) sums[i] = kept * sums[i] + values[i];
    };
    add(known.drafts, more.drafts);
    add(known.seen, more.seen);
    add(known.tried, more.tried);
    add(known.right, more.right);
    update_rates();
}

void Policy::learn_length(double source, double output) {
    std::lock_guard<std::mutex> lock(mutex);
    output_per_source = MEMORY * output_per_source + (1 - MEMORY) * output / source;
}

std::shared_ptr<const SurvivalRates> Policy::rates() const {
    std::lock_guard<std::mutex> lock(mutex);
    return current;
}

SurvivalCounts Policy::counts() const {
    std::lock_guard<std::mutex> lock(mutex);
    return known;
}

}  // namespace spec_dec
