// Whether to draft, how much, and what of a draft to verify: whatever promises most tokens a second.
//
// Costs are profiled on the real weights. How likely a drafted token survives comes with the drafter, and is counted on
// while it drafts. With the same costs and counts the decisions are the same.

#pragma once

#include <memory>
#include <mutex>

#include "cost_table.h"
#include "survival.h"

namespace spec_dec {

struct Costs {
    CostTable step;     // an iteration without drafts, by sentences
    CostTable draft;    // by tokens of all drafts, those that are not worth their row among them
    CostTable verify;   // by rows: of each sentence its last token and its draft
    CostTable accept;   // with what the drafter learns of it, by accepted tokens
    CostTable prepare;  // what a drafter does once for a sentence, by tokens of its source
};

struct Plan {
    int64_t width = 0;    // tokens of the best drafts
    float threshold = 0;  // the least survival rate that is worth a row
    double rate = 0;      // tokens a second of all sentences of the call, with these drafts
    bool pays = false;    // whether that is more than without drafts
};

class Policy {
public:
    // width: most tokens of a draft. always_drafts: draft and verify all of them, to count what becomes of them.
    explicit Policy(int64_t width, bool always_drafts = false);

    // The best way to draft for this many sentences that share a call.
    Plan plan(double sentences) const;

    // Whether to draft for the next sentence of a call: because that pays, or now and then to see whether it does.
    //
    // sentences: that share the call; source: tokens of its source.
    bool drafts(double sentences, double source);

    // Adds what became of drafts; what was counted before fades.
    void learn(const SurvivalCounts& more);
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
