// Whether to draft, how much, and what of a draft to verify: whatever promises most tokens a second.
//
// Costs are profiled on the real weights. How likely drafted tokens survive is what the drafter says, recalibrated by
// what was accepted. With the same costs and counts the decisions are the same.

#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "drafter.h"

namespace spec_dec {

// Seconds of a call by its rows: (rows, seconds), linear between and after them.
class CostTable {
public:
    void add(double rows, double seconds);
    double seconds(double rows) const;
    // Seconds of a further row.
    double slope(double rows) const;
    bool covers(double rows) const { return !points.empty() && points.back().first >= rows; }
    const std::vector<std::pair<double, double>>& measured() const { return points; }

private:
    std::vector<std::pair<double, double>> points;  // by rows
};

struct Costs {
    CostTable step;     // without drafts, by sentences
    CostTable verify;   // with drafts: verification and what the drafter learns of it, by rows
    CostTable draft;    // by sentences times width
    CostTable prepare;  // what a drafter does once for a sentence, by tokens of its source
};

// What became of drafts.
struct Counts {
    std::vector<double> tried = std::vector<double>(BINS), right = std::vector<double>(BINS);  // verified tokens by bin
    // [width]: drafts that might reach a position; of these, tokens that were worth a row, and their survival in sum.
    std::vector<double> drafts, worthy, survival;

    void clear(int64_t width) {
        for (auto* values : {&tried, &right}) values->assign(BINS, 0);
        for (auto* values : {&drafts, &worthy, &survival}) values->assign(width, 0);
    }
};

struct Plan {
    int64_t width;     // tokens of the best drafts
    double threshold;  // the least survival probability that is worth a row
    double rate;       // tokens a second of all sentences of the call, with these drafts
    bool pays;         // whether that is more than without drafts
};

class Policy {
public:
    // width: most tokens of a draft.
    explicit Policy(int64_t width);

    // The best way to draft for this many sentences that share a call.
    Plan plan(double sentences) const;

    // Whether to draft for the next sentence of a call: because that pays, or now and then to see whether it does.
    //
    // sentences: that share the call; source: tokens of its source.
    bool drafts(double sentences, double source);

    // How often a token of each bin is right, [BINS].
    std::vector<float> right_rate() const;

    // Counts what became of drafts, and how long an output was.
    void learn(const Counts& counts);
    void learn_length(double source, double output);

    Costs costs;
    const int64_t width;

private:
    // Of each position of a draft: how likely its token is worth a row and survives, and how likely it is worth a row.
    std::vector<std::pair<double, double>> positions() const;

    Counts known;
    double output_per_source = 1, credit = 0;
    mutable std::mutex mutex;
};

}  // namespace spec_dec
