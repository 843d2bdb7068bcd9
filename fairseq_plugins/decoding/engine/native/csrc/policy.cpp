#include "policy.h"

#include <cmath>

namespace spec_dec {
namespace {

// Share of the time that may go into drafts that do not pay, to keep survival up to date.
constexpr double EXPLORATION = 0.005;
// Drafts and sentences that are remembered: counts fade once they stand for more.
constexpr double HORIZON = 500;
// Drafts after which plans are made anew, as a share of the known ones: planning takes some microseconds.
constexpr double REPLAN = 0.02;
// Evidence, in tokens, for the drafter's own probability of a bin, and for a bin at one position.
constexpr double PRIOR_TOKENS = 8;
// Evidence, in drafts, for tokens that are all likely.
constexpr double PRIOR_DRAFTS = 0.1;
// Time of drafting beyond the profiled costs, as a share: bookkeeping, and errors of the estimates.
constexpr double OVERHEAD = 0.02;
// Rounds of Dinkelbach's method (1967), which converges faster than linearly.
constexpr int ROUNDS = 3;

// Seconds of a call: linear between the measured sizes and beyond them.
double cost(const CostTable& table, double size) {
    if (table.size() < 2) return 0;
    auto after = table.upper_bound(size);
    if (after == table.begin()) ++after;
    if (after == table.end()) --after;
    const auto [smaller, least] = *std::prev(after);
    const double slope = (after->second - least) / (after->first - smaller);
    return std::max(least + (size - smaller) * slope, 1e-9);
}

}  // namespace

Policy::Policy(int64_t width, bool always_drafts)
    : width(width), always_drafts(always_drafts), known(width), survival(width * BINS) {
    update_survival();
}

void Policy::update_survival() {
    for (int bin = 0; bin < BINS; ++bin) {
        double tried = PRIOR_TOKENS, right = PRIOR_TOKENS * (bin + 0.5) / BINS;
        for (int64_t i = bin; i < width * BINS; i += BINS) {
            tried += known.tried[i];
            right += known.right[i];
        }
        for (int64_t i = bin; i < width * BINS; i += BINS) {
            survival[i] = (known.right[i] + PRIOR_TOKENS * right / tried) / (known.tried[i] + PRIOR_TOKENS);
        }
    }
    unplanned = 0;
    plans.clear();
}

Plan Policy::plan(int64_t sentences) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto [place, is_new] = plans.try_emplace(sentences);
    if (is_new) place->second = best_plan(sentences);
    return place->second;
}

Plan Policy::best_plan(double sentences) const {
    if (always_drafts) return {width, HUGE_VAL, 0, nullptr};
    const double step = cost(costs.step, sentences), greedy_rate = sentences / step;
    std::vector<double> rows(width);  // seconds of the row of each position
    for (int64_t t = 0; t < width; ++t) {
        rows[t] = (cost(costs.verify, sentences * (t + 2)) - cost(costs.verify, sentences * (t + 1))) / sentences;
    }
    Plan best{0, 0, greedy_rate, nullptr};
    double rate = greedy_rate;
    for (int round = 0; round < ROUNDS; ++round) {
        auto worth = std::make_shared<std::vector<uint8_t>>(width * BINS);
        double tokens = 1, seconds = step;
        for (int64_t t = 0; t < width; ++t) {
            for (int bin = 0; bin < BINS; ++bin) {
                const int64_t i = t * BINS + bin;
                if (survival[i] < rate * rows[t]) continue;
                (*worth)[i] = 1;
                // A position that was never drafted looks good, until little evidence says otherwise.
                const double likely = bin == BINS - 1 ? PRIOR_DRAFTS : 0;
                const double reach = (known.seen[i] + likely) / (known.drafts[t] + PRIOR_DRAFTS);
                seconds += sentences * reach * rows[t];
                tokens += reach * survival[i];
            }
            const double drafting = cost(costs.draft, sentences * (t + 1)) + OVERHEAD * step;
            const double found = sentences * tokens / (drafting + seconds);
            if (found > best.rate) best = {t + 1, found, greedy_rate, worth};
        }
        rate = std::max(best.rate, greedy_rate);
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
    unplanned += more.drafts[0];
    if (unplanned >= REPLAN * known.drafts[0]) update_survival();
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
