#include "policy.h"

namespace spec_dec {
namespace {

// Share of the time that may go into drafts that do not pay, to keep the survival rates up to date.
constexpr double EXPLORATION = 0.005;
// Drafts and sentences that are remembered: counts fade once they stand for more.
constexpr double HORIZON = 200;
// Evidence, in tokens, for the drafter's own probability of a bin, and for a bin at one position.
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
            const double of_bin = right[bin] / tried[bin];
            rates.rate.push_back((known.right[place] + PRIOR_TOKENS * of_bin) / (known.tried[place] + PRIOR_TOKENS));
            // One further draft, all of whose tokens are likely: a position that was never drafted looks good.
            rates.reach.push_back((known.seen[place] + (bin == BINS - 1)) / (known.drafts[t] + 1));
        }
    }
    current = std::make_shared<const SurvivalRates>(std::move(rates));
}

Plan Policy::plan(double sentences) const {
    if (always_drafts) return {width, 0, 0, true};
    const std::shared_ptr<const SurvivalRates> rates = this->rates();
    const double greedy_rate = sentences / costs.step.seconds(sentences);
    Plan best;
    double rate = greedy_rate, rows_of_best = 1;
    for (int round = 0; round < ROUNDS; ++round) {
        // A row pays where its token survives more often than its time is worth at the current rate.
        const double threshold = rate * costs.verify.slope(sentences * rows_of_best);
        Plan found{1, static_cast<float>(threshold), 0, false};
        double tokens = 1, rows = 1;
        for (int64_t t = 0; t < width; ++t) {
            for (int bin = 0; bin < BINS; ++bin) {
                const double reach = rates->reach[t * BINS + bin], survives = rates->rate[t * BINS + bin];
                if (survives < threshold) continue;
                rows += reach;
                tokens += reach * survives;
            }
            const double seconds = costs.draft.seconds(sentences * (t + 1)) + costs.verify.seconds(sentences * rows);
            if (sentences * tokens <= found.rate * seconds) continue;
            found.rate = sentences * tokens / seconds;
            found.width = t + 1;
            rows_of_best = rows;
        }
        if (found.rate > best.rate) best = found;
        rate = std::max(found.rate, greedy_rate);
    }
    best.pays = best.rate > greedy_rate;
    return best;
}

bool Policy::drafts(double sentences, double source) {
    if (always_drafts) return true;
    const double rate = plan(sentences).rate;
    std::lock_guard<std::mutex> lock(mutex);
    const double output = source * output_per_source;
    const double greedy = output * costs.step.seconds(sentences) / sentences;
    const double drafted = output / rate + costs.prepare.seconds(source);
    if (drafted <= greedy) return true;
    // A single drafted sentence slows down all sentences of its call.
    const double loss = (drafted - greedy) * sentences;
    credit = std::min(credit + EXPLORATION * greedy, loss);
    if (credit < loss) return false;
    credit = 0;
    return true;
}

void Policy::learn(const SurvivalCounts& more) {
    if (more.width() == 0 || more.drafts[0] == 0) return;
    std::lock_guard<std::mutex> lock(mutex);
    for (int64_t t = 0; t < std::min(width, more.width()); ++t) {
        const double total = known.drafts[t] + more.drafts[t];
        // A position that is not drafted any more keeps what is known of it.
        const double kept = always_drafts ? 1 : std::min(1.0, HORIZON / std::max(total, 1.0));
        known.drafts[t] = kept * total;
        for (int64_t place = t * BINS; place < (t + 1) * BINS; ++place) {
            known.seen[place] = kept * (known.seen[place] + more.seen[place]);
            known.tried[place] = kept * (known.tried[place] + more.tried[place]);
            known.right[place] = kept * (known.right[place] + more.right[place]);
        }
    }
    update_rates();
}

void Policy::learn_length(double source, double output) {
    std::lock_guard<std::mutex> lock(mutex);
    output_per_source += (output / source - output_per_source) / HORIZON;
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
