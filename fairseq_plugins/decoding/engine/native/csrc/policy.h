// Whether to draft, how much, and which drafted tokens to verify: the choice that promises most tokens a second.
//
// Costs are profiled on the real weights when a generator is built. Survival rates come with the drafter and are
// recalibrated by the drafts that are verified. The same costs and counts give the same decisions.

#pragma once

#include <memory>
#include <mutex>

#include "cost_table.h"
#include "survival.h"

namespace spec_dec {

struct Costs {
    CostTable step;     // an iteration without drafts, by sentences
    CostTable draft;    // by drafted tokens of all sentences, those that are not worth a row included
    CostTable verify;   // with acceptance and what the drafter learns, by rows: last tokens and drafted ones
    CostTable prepare;  // the drafter's work at the start of a sentence, by source tokens
};

struct Plan {
    int64_t width = 0;    // longest draft, in tokens
    float threshold = 0;  // least survival rate that is worth a row
    double rate = 0;      // tokens a second of all sentences of the call
    bool pays = false;    // whether this beats decoding without drafts
};

class Policy {
public:
    // width: longest draft, in tokens. always_drafts: draft and verify every token, to count how many survive.
    explicit Policy(int64_t width, bool always_drafts = false);

    // The best way to draft for this many sentences that share a call.
    Plan plan(double sentences) const;

    // Whether to draft for the next sentence of a call: where that pays, and now and then where it does not.
    //
    // sentences: sentences that share the call; source: source tokens of this one.
    bool drafts(double sentences, double source);

    // Adds the outcome of drafts; older counts fade.
    void learn(const SurvivalCounts& more);
    // Adds the lengths of a finished sentence.
    void learn_length(double source, double output);

    std::shared_ptr<const SurvivalRates> rates() const;
    SurvivalCounts counts() const;

    Costs costs;
    const int64_t width;
    const bool always_drafts;

private:
    void update_rates();

    SurvivalCounts known;
    std::shared_ptr<const SurvivalRates> current;
    double output_per_source = 1, credit = 0;
    mutable std::mutex mutex;
};

}  // namespace spec_dec
