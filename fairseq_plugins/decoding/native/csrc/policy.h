// The policy chooses whether to draft, how many tokens, and which of them to verify, for the highest expected number of
// tokens per second. For a step of n sentences and a draft width this rate is
//
//     n (1 + sum of reach * survival) / (draft(n * width) + step(n) + sum of reach * n * row)    against    n / step(n)
//
// The sums run over verified tokens. reach: share of the drafts that have this token. survival: probability that it and
// all tokens before it are accepted. row: seconds of a row at its position. A token is verified if its survival is at
// least rate * row. Costs are measured on the real weights (costs.cpp), plus a small overhead for drafting
// (policy.cpp). Survival is initialised from the drafter's checkpoint and updated by the results of verification. Equal
// costs and counts give equal decisions.

#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace spec_dec {

using CostTable = std::map<double, double>;  // seconds of a call by its size; at least two entries

struct Costs {
    CostTable step;            // iteration without drafts, by number of sentences
    CostTable draft;           // drafting and observing, by number of drafted tokens, before pruning
    CostTable verify;          // verification and acceptance, by number of rows
    double prepare = 0;        // the drafter's start of a sentence, for each source token
    bool can_be_free = false;  // whether drafts that another drafter finds first have no cost
};

constexpr int BINS = 20;  // of survival, as the drafter's probabilities predict it

// Returns the bin of a probability; of NaN, the first.
inline int bin_of(float probability) {
    return probability > 0 ? std::min(static_cast<int>(std::min(probability, 1.0f) * BINS), BINS - 1) : 0;
}

// Counts of drafted tokens by their position in the draft and the bin of their predicted survival.
struct SurvivalCounts {
    explicit SurvivalCounts(int64_t width)
        : drafts(width), drafted(width * BINS), verified(width * BINS), accepted(width * BINS) {}

    // Returns the index of an entry. Positions past the last one count as the last one.
    size_t at(int64_t position, int bin) const { return std::min<int64_t>(position, drafts.size() - 1) * BINS + bin; }

    std::vector<double> drafts;                       // [width], drafts that were allowed a token at the position
    std::vector<double> drafted, verified, accepted;  // [width][BINS], tokens; pruned ones are drafted only
    double attempts = 0, free = 0;                    // drafts by two drafters, and those by the one without a cost
};

struct Plan {
    int64_t width = 0;                                     // maximum length of a draft
    double rate = 0, greedy_rate = 0;                      // tokens per second of a step, with and without drafts
    std::shared_ptr<const std::vector<uint8_t>> verified;  // [width][BINS], 1 for tokens to verify; null for all

    // Whether drafting is faster than greedy decoding.
    bool is_faster() const { return rate > greedy_rate; }
};

class Policy {
public:
    // width: maximum length of a draft. always_drafts: draft and verify in full, to count how many tokens survive.
    explicit Policy(int64_t width, bool always_drafts = false);

    // Returns the fastest plan for a step of this many sentences.
    Plan plan(int64_t sentences);

    // Whether to draft for a sentence of `source` tokens in steps of `sentences`. Sometimes true though greedy decoding
    // is faster, to keep the counts up to date.
    bool should_draft(int64_t sentences, int64_t source);

    // Returns the seconds of starting a drafter that reads this many source tokens and states of the verifier.
    double seconds_to_start(int64_t source, int64_t states) const;

    // Adds counts; older ones decay.
    void learn(const SurvivalCounts& more);

    // Whether plans rest on few counts, so that new ones should be added soon.
    bool is_new() const;

    // Adds the source and output lengths of a finished sentence.
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
    std::map<int64_t, Plan> plans;  // by number of sentences, until survival is updated
    double unplanned = 0;           // drafts since that
    double output_per_source = 1, credit = 0;
    int64_t trials = 0;  // sentences that have drafted before there were counts
    mutable std::mutex mutex;
};

}  // namespace spec_dec
