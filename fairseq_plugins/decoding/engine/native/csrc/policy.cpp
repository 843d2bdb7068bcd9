#include "policy.h"

#include <algorithm>
#include <cmath>

namespace spec_dec {
namespace {

// Share of the time that may be spent on drafts that do not pay, to see whether they begin to.
constexpr double EXPLORATION = 0.005;
// What earlier drafts count for after each new one, and earlier sentences for their lengths.
constexpr double MEMORY = 0.995;
// Evidence, in tokens, for what a drafter says of its own tokens.
constexpr double PRIOR_TOKENS = 8;

}  // namespace

void CostTable::add(double rows, double seconds) {
    auto place = std::lower_bound(points.begin(), points.end(), std::make_pair(rows, 0.0));
    // More rows never take less time: what is measured otherwise is noise.
    if (place != points.begin()) seconds = std::max(seconds, std::prev(place)->second);
    if (place == points.end() || place->first != rows) place = points.insert(place, {rows, seconds});
    place->second = std::min(place->second, seconds);
    for (auto later = std::next(place); later != points.end(); ++later)
        later->second = std::max(later->second, seconds);
}

double CostTable::slope(double rows) const {
    if (points.empty()) return 0;
    if (points.size() == 1) return points[0].second / points[0].first;
    auto after = std::upper_bound(points.begin(), points.end(), std::make_pair(rows, HUGE_VAL));
    if (after == points.begin()) ++after;
    if (after == points.end()) --after;
    const auto before = std::prev(after);
    return (after->second - before->second) / (after->first - before->first);
}

double CostTable::seconds(double rows) const {
    if (points.empty()) return 0;
    auto after = std::upper_bound(points.begin(), points.end(), std::make_pair(rows, HUGE_VAL));
    const auto before = after == points.begin() ? after : std::prev(after);
    return std::max(before->second + (rows - before->first) * slope(rows), 1e-9);
}

Policy::Policy(int64_t width) : width(width) { known.clear(width); }

std::vector<std::pair<double, double>> Policy::positions() const {
    std::vector<std::pair<double, double>> result;
    double survives = 1, is_worthy = 1, ratio = 1;
    for (int64_t t = 0; t < width; ++t) {
        // One draft more than were seen, as likely to go on as it was before.
        const double next = (known.survival[t] + survives * ratio) / (known.drafts[t] + 1);
        is_worthy = (known.worthy[t] + is_worthy * ratio) / (known.drafts[t] + 1);
        ratio = survives > 0 ? std::min(next / survives, 1.0) : 0;
        survives = next;
        result.emplace_back(survives, std::max(is_worthy, survives));
    }
    return result;
}

Plan Policy::plan(double sentences) const {
    std::lock_guard<std::mutex> lock(mutex);
    Plan best{1, 0, 0, false};
    double tokens = 1, rows = 1, rows_of_best = 1;
    int64_t t = 0;
    for (const auto& [survives, is_worthy] : positions()) {
        tokens += survives;
        rows += is_worthy;
        const double seconds = costs.draft.seconds(sentences * ++t) + costs.verify.seconds(sentences * rows);
        if (sentences * tokens <= best.rate * seconds) continue;
        best.rate = sentences * tokens / seconds;
        best.width = t;
        rows_of_best = rows;
    }
    // A row is worth its time where its token is more likely than what that time brings elsewhere (Dinkelbach 1967).
    best.threshold = costs.verify.slope(sentences * rows_of_best) * best.rate;
    best.pays = best.rate * costs.step.seconds(sentences) > sentences;
    return best;
}

bool Policy::drafts(double sentences, double source) {
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

std::vector<float> Policy::right_rate() const {
    std::lock_guard<std::mutex> lock(mutex);
    std::vector<float> rates;
    for (int bin = 0; bin < BINS; ++bin) {
        rates.push_back((PRIOR_TOKENS * (bin + 0.5) / BINS + known.right[bin]) / (PRIOR_TOKENS + known.tried[bin]));
    }
    return rates;
}

void Policy::learn(const Counts& counts) {
    std::lock_guard<std::mutex> lock(mutex);
    if (counts.drafts.empty()) return;
    const double kept = std::pow(MEMORY, counts.drafts[0]);
    const auto add = [&](std::vector<double>& sums, const std::vector<double>& more) {
        for (size_t i = 0; i < std::min(sums.size(), more.size()); ++i) sums[i] = kept * sums[i] + more[i];
    };
    add(known.tried, counts.tried);
    add(known.right, counts.right);
    add(known.drafts, counts.drafts);
    add(known.worthy, counts.worthy);
    add(known.survival, counts.survival);
}

void Policy::learn_length(double source, double output) {
    std::lock_guard<std::mutex> lock(mutex);
    output_per_source = MEMORY * output_per_source + (1 - MEMORY) * output / source;
}

}  // namespace spec_dec
