// Whether to draft, how many tokens, and which of them to verify: what promises most tokens a second. For n sentences
// that share a call and a draft width, the rate is
//
//     n (1 + sum of reach * survival) / (draft(n * width) + step(n) + sum of reach * n * row)    against    n / step(n)
//
// The sums run over the verified tokens: the share of drafts that reach one, how likely it survives, and what the row
// at its position costs. A token is verified where its survival is worth its row at this rate. Costs are profiled on
// the real weights (greedy_search.cpp). Survival comes with the drafter and is recalibrated by what is verified. The
// same costs and counts give the same decisions.

#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace spec_dec {

using CostTable = std::map<double, double>;  // seconds of calls by their size; at least two

struct Costs {
    CostTable step;      // an iteration without drafts, by sentences
    CostTable draft;     // drafting, and what the drafter learns, by drafted tokens with those not worth a row
    CostTable verify;    // verification and acceptance, by rows
    double prepare = 0;  // the drafter's work at the start of a sentence, for each source token
};

constexpr int BINS = 20;  // of the probability that a token and all before it are right, as the drafter gives it

// The bin of a probability; NaN is in the first.
inline int bin_of(float probability) {
    return probability > 0 ? std::min(static_cast<int>(std::min(probability, 1.0f) * BINS), BINS - 1) : 0;
}

// What became of drafts of up to `width` tokens.
struct SurvivalCounts {
    explicit SurvivalCounts(int64_t width)
        : drafts(width), seen(width * BINS), tried(width * BINS), right(width * BINS) {}

    // Index of a token; those after the last position count as the last one.
    size_t at(int64_t position, int bin) const { return std::min<int64_t>(position, drafts.size() - 1) * BINS + bin; }

    std::vector<double> drafts;              // [width], drafts that might have a token there
    std::vector<double> seen, tried, right;  // [width][BINS], tokens that were made, verified, accepted
};

struct Plan {
    int64_t width = 0;                 // longest draft, in tokens
    double rate = 0, greedy_rate = 0;  // tokens a second of all sentences of a call, with and without drafts
    std::shared_ptr<const std::vector<uint8_t>> worth;  // [width][BINS], tokens that are verified; null for all

    bool pays() const { return rate > greedy_rate; }
};

class Policy {
public:
    // width: longest draft, in tokens. always_drafts: draft and verify every token, to count how many survive.
    explicit Policy(int64_t width, bool always_drafts = false);

    // The best way to draft for this many sentences that share a call.
    Plan plan(int64_t sentences);

    // Whether to draft for a sentence of `source` tokens in a call of `sentences`: where that pays, and now and then
    // where it does not.
    bool drafts(int64_t sentences, int64_t source);

    // Adds the outcome of drafts; older counts fade.
    void learn(const SurvivalCounts& more);
    // Adds the lengths of a finished sentence.
    void learn_length(double source, double output);

    SurvivalCounts counts() const;

    Costs costs;  // set before the first plan
    const int64_t width;
    const bool always_drafts;

private:
    Plan best_plan(double sentences) const;
    void update_survival();

    SurvivalCounts known;
    std::vector<float> survival;    // [width][BINS]
    std::map<int64_t, Plan> plans;  // by sentences, until more is known
    double unplanned = 0;           // drafts since the last plans
    double output_per_source = 1, credit = 0;
    mutable std::mutex mutex;
};

}  // namespace spec_dec
