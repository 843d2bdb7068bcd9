// The interface of drafters, and the state of a batch that they see.
//
// A new drafter is one file (docs/adding-a-method.md). It can be compiled against this header alone.

#pragma once

#include <cstdint>
#include <vector>

#include "decoder.h"
#include "limits.h"
#include "policy.h"

namespace spec_dec {

// The sentences of a batch and their outputs.
struct Batch {
    Sources sources;
    Limits limits;
    int64_t first_token = 0;
    std::vector<std::vector<std::vector<int64_t>>> drafts;  // [B][drafts][tokens], given by the user; empty for none
    bool is_open = false;             // whether sentences join and leave while it is decoded (continuous_batch.h)
    int64_t columns = 0;              // of `tokens` and `log_probs`
    std::vector<int64_t> tokens;      // [B][columns], the first token, then the output
    std::vector<float> log_probs;     // [B][columns]
    std::vector<int64_t> lengths;     // [B], of the outputs
    std::vector<uint8_t> finished;    // [B]
    std::vector<uint8_t> is_drafted;  // [B], whether the sentence has drafts
    std::vector<double> lost;         // [B], seconds that the sentence has lost without drafts
    std::vector<std::vector<int32_t>> emitted;  // [B][iterations], numbers of emitted tokens
    std::vector<int64_t> drafted, accepted;     // [B], numbers of tokens in the last iteration

    int64_t sentences() const { return sources.sentences(); }

    // Returns the output of a sentence; output[-1] is the first token.
    const int64_t* output(int64_t sentence) const { return tokens.data() + sentence * columns + 1; }
    int64_t last_token(int64_t sentence) const { return output(sentence)[lengths[sentence] - 1]; }

    // Returns how many tokens may still be emitted.
    int64_t remaining(int64_t sentence) const {
        return std::max<int64_t>(limits.of(sentence).max_len - lengths[sentence], 0);
    }

    // Whether the next iteration is the first one after a prefix, which emits nothing else.
    bool begins_with_prefix(int64_t sentence) const {
        return lengths[sentence] == 0 && !limits.of(sentence).prefix.empty();
    }

    // Begins empty outputs for the sources.
    void begin() {
        const int64_t count = sentences();
        columns = limits.max_len + 2;
        tokens.assign(count * columns, limits.pad);
        log_probs.assign(count * columns, 0);
        for (auto* numbers : {&lengths, &drafted, &accepted}) numbers->assign(count, 0);
        for (auto* flags : {&finished, &is_drafted}) flags->assign(count, 0);
        lost.assign(count, 0);
        emitted.assign(count, {});
        for (int64_t b = 0; b < count; ++b) tokens[b * columns] = first_token;
    }

    // Begins an empty output in place of an earlier one.
    void restart(int64_t sentence) {
        lengths[sentence] = drafted[sentence] = accepted[sentence] = 0;
        finished[sentence] = is_drafted[sentence] = 0;
        lost[sentence] = 0;
        emitted[sentence].clear();
    }
};

// The drafts of some sentences, to which tokens are added one by one.
//
// A policy prunes a draft before the first token that is not worth its row. EOS also ends a draft. It needs no row,
// because no token follows it.
class Drafts {
public:
    // Begins empty drafts, the i-th of at most min(width, new_max_counts[i]) tokens. eos: the token that ends a draft;
    // -1 for none.
    void begin(int64_t new_width, std::vector<int64_t> new_max_counts, int64_t new_eos) {
        width = new_width;
        eos = new_eos;
        max_counts = std::move(new_max_counts);
        const size_t size = max_counts.size();
        for (int64_t& max_count : max_counts) max_count = std::min(max_count, width);
        counts.assign(size, 0);
        max_counts_before_pruning.assign(size, 0);
        tokens.resize(size * width);
        bins.resize(size * width);
        survival.assign(size, 1);
    }

    // Whether another token may be added to a draft.
    bool can_add(size_t index) const { return counts[index] < max_counts[index]; }

    // Adds a token, unless the policy prunes the draft there. Returns whether another one may follow.
    //
    // probability: the drafter's, of the token given the tokens before it.
    bool add(size_t index, int64_t token, float probability = 1) {
        const int64_t position = counts[index], place = index * width + position;
        survival[index] *= probability;
        const int bin = bin_of(survival[index]);
        if (survival_counts && token != eos) {
            const size_t entry = survival_counts->at(position, bin);
            survival_counts->drafted[entry] += 1;
            if (verified && !(*verified)[entry]) {
                const int64_t max_count = position == 0 ? max_counts[index] : 0;
                end(index);
                max_counts_before_pruning[index] = max_count;
                return false;
            }
        }
        tokens[place] = token;
        bins[place] = static_cast<uint8_t>(bin);
        ++counts[index];
        if (token == eos) end(index);
        return can_add(index);
    }

    // Ends the draft of a sentence.
    void end(size_t index) {
        max_counts[index] = counts[index];
        max_counts_before_pruning[index] = 0;
    }

    // Ends all drafts that have tokens. Reopens empty ones for up to `most` tokens, even if their first token was
    // pruned.
    void reopen_empty(int64_t most) {
        for (size_t index = 0; index < max_counts.size(); ++index) {
            const int64_t reopened = std::min(std::max(max_counts[index], max_counts_before_pruning[index]), most);
            max_counts[index] = counts[index] > 0 ? counts[index] : reopened;
            if (counts[index] == 0) survival[index] = 1;
        }
    }

    // Fills all drafts to the full width with a token, to measure costs.
    void fill(int64_t token) {
        for (size_t index = 0; index < max_counts.size(); ++index) {
            for (max_counts[index] = width; can_add(index);) add(index, token);
        }
    }

    int64_t count(size_t index) const { return counts[index]; }
    // Returns the number of tokens that need a row.
    int64_t rows(size_t index) const {
        return counts[index] - (counts[index] > 0 && token(index, counts[index] - 1) == eos);
    }
    int64_t token(size_t index, int64_t position) const { return tokens[index * width + position]; }
    int bin(size_t index, int64_t position) const { return bins[index * width + position]; }
    int64_t longest() const { return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end()); }
    int64_t max_count(size_t index) const { return max_counts[index]; }

    // Set by a policy (policy.h): counts of drafted tokens, and which tokens are verified; null for all.
    SurvivalCounts* survival_counts = nullptr;
    const std::vector<uint8_t>* verified = nullptr;

    // Whether `add` reads probabilities; otherwise drafters need not compute them.
    bool needs_probabilities() const { return survival_counts != nullptr; }

private:
    int64_t width = 0, eos = -1;
    std::vector<int64_t> counts, max_counts, max_counts_before_pruning, tokens;
    std::vector<uint8_t> bins;
    std::vector<float> survival;
};

// The state of an iteration: the active sentences, their drafts and the verifier's results. Vectors are indexed as
// `active`, unless they say otherwise.
struct Work {
    explicit Work(Batch& batch) : batch(batch) {}

    Batch& batch;
    std::vector<int64_t> active;  // numbers of the sentences in the batch
    Drafts drafts;
    Rows rows;                       // verified rows: the last token of each sentence, then its draft
    std::vector<int64_t> first_row;  // first of a sentence's rows
    std::vector<int64_t> emitted;    // number of emitted tokens
    std::vector<int64_t> accepted;   // number of drafted tokens among these
    std::vector<int64_t> predicted;  // [rows], the best token after each row, if the drafter reads all predictions
};

// A drafted token, and its probability given the tokens before it.
struct DraftToken {
    int64_t token;
    float probability;  // 1 if nothing reads it
};

// Chooses a token of a draft by a drafter's scores[size]. With sampling, the scores get the verifier's noise.
//
// ids: [size], the tokens that are scored. position: of the token in the output.
DraftToken choose_draft(const float* scores, const std::vector<int64_t>& ids, const Limits& limits, int64_t sentence,
                        int64_t position, bool needs_probability);

class Drafter {
public:
    virtual ~Drafter() = default;

    // Returns the maximum length of a draft of this batch. Called after `begin_batch`.
    virtual int64_t max_width(const Batch& batch) const = 0;

    // Begins a batch. If it is open, its sentences come later: a drafter reads them in `begin`.
    virtual void begin_batch(const Batch& batch) = 0;

    // Whether it can draft for a sentence at all.
    virtual bool can_draft(const Batch&, int64_t) const { return true; }

    // Begins sentences. Outputs that are not empty are observed next, if it reads layers. Threads call this, `draft`
    // and `observe` concurrently, each for its own sentences.
    virtual void begin(const Batch&, const std::vector<int64_t>&) {}

    // Adds tokens to the drafts of active sentences with `batch.is_drafted`.
    virtual void draft(Work& work) = 0;

    // Returns the drafter whose drafts are what costs time.
    virtual Drafter& costly() { return *this; }

    // Reads the result of an iteration. `batch.lengths` does not count its tokens yet.
    virtual void observe(const Work&) {}

    // Returns the layers of the verifier whose states it reads from work.rows.states; 0 is the embedding.
    virtual std::vector<int> layers_read() const { return {}; }

    // Whether it reads work.predicted: predictions after all rows, even after rejected tokens.
    virtual bool reads_all_predictions() const { return false; }
};

}  // namespace spec_dec
