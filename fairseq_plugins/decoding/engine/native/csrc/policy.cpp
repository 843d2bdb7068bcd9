#include "policy.h"

#include <cmath>

namespace spec_dec {
namespace {

// Share of the time that may go into drafts that do not pay, to keep survival up to date.
constexpr double EXPLORATION = 0.005;
// Drafts and sentences that are remembered: counts fade once they stand for more.
constexpr double HORIZON = 200;
// Evidence, in tokens, for the drafter's own probability of a bin, and for a bin at one position.
constexpr double PRIOR_TOKENS = 8;
// Rounds of Dinkelbach's method (1967), which converges faster than linearly.
constexpr int ROUNDS = 3;

// Seconds of a call, and of one more row: linear between the measured sizes and beyond them.
struct Cost {
    Cost(const CostTable& table, double size) {
        if (table.size() < 2) return;
        auto after = table.upper_bound(size);
        if (after == table.begin()) ++after;
        if (after == table.end()) --after;
        const auto [smaller, least] = *std::prev(after);
        slope = (after->second - least) / (after->first - smaller);
        seconds = std::max(least + (size - smaller) * slope, 1e-9);
    }

    double seconds = 0, slope = 0;
};

}  // namespace

Policy::Policy(int64_t width, bool always_drafts) : width(width), always_drafts(always_drafts), known(width) {
    update_survival();
}

void Policy::update_survival() {
    std::vector<float> found(width * BINS);
    for (int bin = 0; bin < BINS; ++bin) {
        double tried = PRIOR_TOKENS, right = PRIOR_TOKENS * (bin + 0.5) / BINS;
        for (int64_t i = bin; i < width * BINS; i += BINS) {
            tried += known.tried[i];
            right += known.right[i];
        }
        for (int64_t i = bin; i < width * BINS; i += BINS) {
            found[i] = (known.right[i] + PRIOR_TOKENS * right / tried) / (known.tried[i] + PRIOR_TOKENS);
        }
    }
    survival = std::make_shared<const std::vector<float>>(std::move(found));
    plans.clear();
}

Plan Policy::plan(int64_t sentences) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto [place, is_new] = plans.try_emplace(sentences);
    if (is_new) place->second = best_plan(sentences);
    return place->second;
}

Plan Policy::best_plan(double sentences) const {
    if (always_drafts) return {width, HUGE_VAL, 0, 0, nullptr};
    const double greedy_rate = sentences / Cost(costs.step, sentences).seconds;
    Plan best{0, 0, greedy_rate, 0, survival};
    double rate = greedy_rate, rows_of_best = 1;
    for (int round = 0; round < ROUNDS; ++round) {
        // A row pays where its token survives more often than its time is worth at the current rate.
        const double threshold = rate * Cost(costs.verify, sentences * rows_of_best).slope;
        Plan found{1, 0, greedy_rate, static_cast<float>(threshold), survival};
        double tokens = 1, rows = 1;
        for (int64_t t = 0; t < width; ++t) {
            for (int bin = 0; bin < BINS; ++bin) {
                const int64_t i = t * BINS + bin;
                if ((*survival)[i] < threshold) continue;
                // One further draft, all of whose tokens are likely: a position that was never drafted looks good.
                const double reach = (known.seen[i] + (bin == BINS - 1)) / (known.drafts[t] + 1);
                rows += reach;
                tokens += reach * (*survival)[i];
            }
            const double seconds =
                Cost(costs.draft, sentences * (t + 1)).seconds + Cost(costs.verify, sentences * rows).seconds;
            if (sentences * tokens <= found.rate * seconds) continue;
            found.rate = sentences * tokens / seconds;
            found.width = t + 1;
            rows_of_best = rows;
        }
        if (found.rate > best.rate) best = found;
        rate = std::max(found.rate, greedy_rate);
    }
    return best;
}

bool Policy::drafts(int64_t sentences, int64_t source) {
    const Plan best = plan(sentences);
    std::lock_guard<std::mutex> lock(mutex);
    const double output = source * output_per_source, greedy = output / best.greedy_rate;
    const double drafted = output / best.rate + source * costs.prepare;
    if (drafted <= greedy) return true;
    // A single drafted sentence slows down all sentences of its call.
    const double loss = (drafted - greedy) * sentences;
    credit = std::min(credit + EXPLORATION * greedy, loss);
    if (credit < loss) return false;
    credit = 0;
    return true;
}

void Policy::learn(const SurvivalCounts& more) {
    std::lock_guard<std::mutex> lock(mutex);
    for (int64_t t = 0; t < std::min<int64_t>(width, more.drafts.size()); ++t) {
        const double total = known.drafts[t] + more.drafts[t];
        // A position that is not drafted any more keeps what is known of it.
        const double kept = always_drafts ? 1 : std::min(1.0, HORIZON / std::max(total, 1.0));
        known.drafts[t] = kept * total;
        for (int64_t i = t * BINS; i < (t + 1) * BINS; ++i) {
            known.seen[i] = kept * (known.seen[i] + more.seen[i]);
            known.tried[i] = kept * (known.tried[i] + more.tried[i]);
            known.right[i] = kept * (known.right[i] + more.right[i]);
        }
    }
    update_survival();
}

void Policy::learn_length(double source, double output) {
    std::lock_guard<std::mutex> lock(mutex);
    output_per_source += (output / source - output_per_source) / HORIZON;
}

SurvivalCounts Policy::counts() const {
    std::lock_guard<std::mutex> lock(mutex);
    return known;
}

}  // namespace spec_dec
