#include "policy.h"

#include <cmath>

namespace spec_dec {
namespace {

// Share of the time that may be spent on drafting where greedy decoding is faster, to keep survival up to date.
constexpr double EXPLORATION = 0.005;
// Number of drafts and sentences after which counts decay.
constexpr double HORIZON = 500;
// Share of new drafts after which plans are recomputed, which takes some microseconds.
constexpr double REPLAN = 0.02;
// Weight, in tokens, of a bin's probability as prior of the bin, and of the bin as prior of its entry at a position.
constexpr double PRIOR_TOKENS = 8;
// Weight, in drafts, of the prior that all drafted tokens are in the most likely bin.
constexpr double PRIOR_DRAFTS = 0.1;
// Cost of drafting beyond the measured one, as a share of a step: bookkeeping and errors of the estimates.
constexpr double OVERHEAD = 0.02;
// Number of drafts below which a policy is new, and of sentences that may draft before there are any counts: the prior
// may be wrong.
constexpr double NEW = 32;
constexpr int64_t TRIALS = 2;
// Rounds of Dinkelbach's method (1967), which converges superlinearly.
constexpr int ROUNDS = 3;

// Returns the seconds of a call, interpolated and extrapolated linearly from the measured sizes.
double cost(const CostTable& table, double size) {
    if (table.size() < 2) return 0;
    auto after = table.upper_bound(size);
    if (after == table.begin()) ++after;
    if (after == table.end()) --after;
    const auto [smaller, seconds] = *std::prev(after);
    const double slope = (after->second - seconds) / (after->first - smaller);
    return std::max(seconds + (size - smaller) * slope, 1e-9);
}

}  // namespace

Policy::Policy(int64_t width, bool always_drafts)
    : width(width), always_drafts(always_drafts), known(width), survival(width * BINS) {
    update_survival();
}

void Policy::update_survival() {
    for (int bin = 0; bin < BINS; ++bin) {
        double verified = PRIOR_TOKENS, accepted = PRIOR_TOKENS * (bin + 0.5) / BINS;
        for (int64_t i = bin; i < width * BINS; i += BINS) {
            verified += known.verified[i];
            accepted += known.accepted[i];
        }
        for (int64_t i = bin; i < width * BINS; i += BINS) {
            survival[i] = (known.accepted[i] + PRIOR_TOKENS * accepted / verified) / (known.verified[i] + PRIOR_TOKENS);
        }
    }
    unplanned = 0;
    plans.clear();
}

Plan Policy::plan(int64_t sentences) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto [entry, is_new] = plans.try_emplace(sentences);
    if (is_new) entry->second = best_plan(sentences);
    return entry->second;
}

Plan Policy::best_plan(double sentences) const {
    if (always_drafts) return {width, HUGE_VAL, 0, nullptr};
    const double step = cost(costs.step, sentences), greedy_rate = sentences / step;
    std::vector<double> row_seconds(width);  // of a row at each position
    for (int64_t t = 0; t < width; ++t) {
        row_seconds[t] =
            (cost(costs.verify, sentences * (t + 2)) - cost(costs.verify, sentences * (t + 1))) / sentences;
    }
    // Optimistic, so that drafts are tried.
    const double free = costs.can_be_free ? (known.free + PRIOR_DRAFTS) / (known.attempts + PRIOR_DRAFTS) : 0;
    Plan best{0, 0, greedy_rate, nullptr};
    double rate = greedy_rate;
    for (int round = 0; round < ROUNDS; ++round) {
        auto verified = std::make_shared<std::vector<uint8_t>>(width * BINS);
        double tokens = 1, seconds = step, surviving = 1;
        for (int64_t t = 0; t < width; ++t) {
            // The prior is optimistic, so that unknown positions are tried. But no more tokens survive at a position
            // than at the one before.
            const double drafts = known.drafts[t] + PRIOR_DRAFTS, prior = std::min(PRIOR_DRAFTS / drafts, surviving);
            surviving = 0;
            for (int bin = 0; bin < BINS; ++bin) {
                const int64_t i = t * BINS + bin;
                const double reach = known.drafted[i] / drafts + (bin == BINS - 1 ? prior : 0);
                surviving += reach * survival[i];
                if (survival[i] < rate * row_seconds[t]) continue;
                (*verified)[i] = 1;
                seconds += sentences * reach * row_seconds[t];
                tokens += reach * survival[i];
            }
            const double drafting = (1 - free) * cost(costs.draft, sentences * (t + 1)) + OVERHEAD * step;
            const double rate_of_width = sentences * tokens / (drafting + seconds);
            if (rate_of_width > best.rate) best = {t + 1, rate_of_width, greedy_rate, verified};
        }
        rate = std::max(best.rate, greedy_rate);
    }
    return best;
}

bool Policy::should_draft(int64_t sentences, int64_t source) {
    const Plan best = plan(sentences);
    std::lock_guard<std::mutex> lock(mutex);
    const double output = source * output_per_source, greedy = output / best.greedy_rate;
    const double drafted = output / best.rate + source * costs.prepare;
    if (drafted <= greedy) return always_drafts || known.drafts[0] > 0 || ++trials <= TRIALS;
    // Drafting for one sentence slows down all sentences of its steps.
    const double loss = (drafted - greedy) * sentences;
    credit = std::min(credit + EXPLORATION * greedy, loss);
    if (credit < loss) return false;
    credit = 0;
    return true;
}

double Policy::seconds_to_start(int64_t source, int64_t states) const {
    return source * costs.prepare + (states > 0 ? cost(costs.verify, states) : 0);
}

void Policy::learn(const SurvivalCounts& more) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto kept_of = [&](double total) { return always_drafts ? 1 : HORIZON / std::max(HORIZON, total); };
    const double kept_attempts = kept_of(known.attempts + more.attempts);
    known.attempts = kept_attempts * (known.attempts + more.attempts);
    known.free = kept_attempts * (known.free + more.free);
    for (int64_t t = 0; t < std::min<int64_t>(width, more.drafts.size()); ++t) {
        const double total = known.drafts[t] + more.drafts[t];
        // Positions that are no longer drafted keep their counts.
        const double kept = kept_of(total);
        known.drafts[t] = kept * total;
        for (int64_t i = t * BINS; i < (t + 1) * BINS; ++i) {
            known.drafted[i] = kept * (known.drafted[i] + more.drafted[i]);
            known.verified[i] = kept * (known.verified[i] + more.verified[i]);
            known.accepted[i] = kept * (known.accepted[i] + more.accepted[i]);
        }
    }
    unplanned += more.drafts[0];
    if (unplanned >= REPLAN * known.drafts[0]) update_survival();
}

bool Policy::is_new() const {
    std::lock_guard<std::mutex> lock(mutex);
    return known.drafts[0] < NEW;
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
