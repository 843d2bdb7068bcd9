// The interface that every drafter implements, and what it sees of a batch.
//
// A new drafter is one file (docs/adding-a-method.md). This header needs nothing of the library but other headers.

#pragma once

#include <cstdint>
#include <vector>

#include "decoder.h"
#include "limits.h"
#include "policy.h"

namespace spec_dec {

// The sentences of a batch and what is decoded of them.
struct Batch {
    Sources sources;
    Limits limits;
    int64_t first_token = 0;
    int64_t columns = 0;                        // of tokens and log-probabilities
    std::vector<int64_t> tokens;                // [B][columns], the first token and the output
    std::vector<float> log_probs;               // [B][columns]
    std::vector<int64_t> lengths;               // [B], output tokens
    std::vector<uint8_t> finished;              // [B]
    std::vector<uint8_t> is_drafted;            // [B], whether a drafter takes part
    std::vector<std::vector<int32_t>> emitted;  // [B], tokens of each iteration
    std::vector<int64_t> drafted, accepted;     // [B], tokens of the last iteration

    int64_t sentences() const { return sources.sentences(); }

    // The output of a sentence; the first token stands before it.
    const int64_t* output(int64_t sentence) const { return tokens.data() + sentence * columns + 1; }
    int64_t last_token(int64_t sentence) const { return output(sentence)[lengths[sentence] - 1]; }

    // Output tokens before the limit is reached.
    int64_t left(int64_t sentence) const { return std::max<int64_t>(limits.max_len - lengths[sentence], 0); }

    // Begins the outputs of sources that have been read.
    void begin() {
        const int64_t count = sentences();
        columns = limits.max_len + 2;
        tokens.assign(count * columns, limits.pad);
        log_probs.assign(count * columns, 0);
        lengths.assign(count, 0);
        finished.assign(count, 0);
        is_drafted.assign(count, 0);
        emitted.assign(count, {});
        drafted.assign(count, 0);
        accepted.assign(count, 0);
        for (int64_t b = 0; b < count; ++b) tokens[b * columns] = first_token;
    }
};

// The drafts of some sentences, filled in token by token.
//
// Where a policy decides, a draft ends before the first token that is not worth its row. EOS ends a draft, too, and
// needs no row: no token follows it.
class Drafts {
public:
    // Begins drafts of at most most[i] tokens, none of them longer than `width`. eos: the token that ends a draft, -1
    // for none.
    void begin(int64_t new_width, std::vector<int64_t> most, int64_t new_eos) {
        width = new_width;
        eos = new_eos;
        room = std::move(most);
        const size_t size = room.size();
        for (int64_t& tokens_left : room) tokens_left = std::min(tokens_left, width);
        counts.assign(size, 0);
        refused.assign(size, 0);
        tokens.resize(size * width);
        bins.resize(size * width);
        survival.assign(size, 1);
    }

    // Whether the draft of a sentence may have a further token.
    bool goes_on(size_t index) const { return counts[index] < room[index]; }

    // Adds a token that is right with this probability, says the drafter, given those before it. Returns whether the
    // draft goes on: not after a token that was not worth its row, which is left out.
    bool add(size_t index, int64_t token, float probability = 1) {
        const int64_t position = counts[index], place = index * width + position;
        survival[index] *= probability;
        const int bin = bin_of(survival[index]);
        if (seen && token != eos) {
            const size_t of_token = seen->at(position, bin);
            seen->seen[of_token] += 1;
            if (worth && !(*worth)[of_token]) {
                const int64_t left = position == 0 ? room[index] : 0;
                end(index);
                refused[index] = left;
                return false;
            }
        }
        tokens[place] = token;
        bins[place] = static_cast<uint8_t>(bin);
        ++counts[index];
        if (token == eos) end(index);
        return goes_on(index);
    }

    // Ends the draft of a sentence.
    void end(size_t index) {
        room[index] = counts[index];
        refused[index] = 0;
    }

    // Ends all drafts that have tokens; others may have up to this many, also those whose first token was not worth it.
    void limit_empty(int64_t most) {
        for (size_t index = 0; index < room.size(); ++index) {
            room[index] = counts[index] > 0 ? counts[index] : std::min(std::max(room[index], refused[index]), most);
            if (counts[index] == 0) survival[index] = 1;
        }
    }

    // Fills all drafts up to their width with a token, for profiles.
    void fill(int64_t token) {
        for (size_t index = 0; index < room.size(); ++index) {
            for (room[index] = width; goes_on(index);) add(index, token);
        }
    }

    int64_t count(size_t index) const { return counts[index]; }
    // Tokens that need a row.
    int64_t rows(size_t index) const {
        return counts[index] - (counts[index] > 0 && token(index, counts[index] - 1) == eos);
    }
    int64_t token(size_t index, int64_t position) const { return tokens[index * width + position]; }
    int bin(size_t index, int64_t position) const { return bins[index * width + position]; }
    int64_t longest() const { return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end()); }
    int64_t room_of(size_t index) const { return room[index]; }

    // Set where a policy decides (policy.h): counts what is made, and ends drafts that are not worth their rows.
    SurvivalCounts* seen = nullptr;
    const std::vector<uint8_t>* worth = nullptr;

    // Whether the probabilities of tokens are read.
    bool wants_probabilities() const { return seen != nullptr; }

private:
    int64_t width = 0, eos = -1;
    std::vector<int64_t> room, refused, counts, tokens;
    std::vector<uint8_t> bins;
    std::vector<float> survival;
};

// What a worker decodes: sentences, their drafts, and what the verifier returned.
struct Work {
    explicit Work(Batch& batch) : batch(batch) {}

    Batch& batch;
    std::vector<int64_t> active;  // numbers of the sentences; what follows is by index in this
    Drafts drafts;
    Rows rows;                       // of the verification: of each sentence its last token and its draft
    std::vector<int64_t> first_row;  // of each sentence
    std::vector<int64_t> gained;     // tokens that the iteration emits of each
    std::vector<int64_t> accepted;   // drafted tokens among them
    std::vector<int64_t> predicted;  // the best token after every row, for drafters that read all predictions
};

class Drafter {
public:
    virtual ~Drafter() = default;

    // The most tokens that a draft of this batch may have; called after `begin_batch`.
    virtual int64_t max_width(const Batch& batch) const = 0;

    // Begins a batch, whose sources have been read.
    virtual void begin_batch(const Batch& batch) = 0;

    // Whether it has anything to draft from for a sentence of the batch.
    virtual bool can_draft(int64_t) const { return true; }

    // Begins sentences, whose outputs are empty. Several threads may call this, `draft` and `observe` at a time, each
    // for sentences of its own.
    virtual void begin(const Batch&, const std::vector<int64_t>&) {}

    // Drafts for the sentences of `work` that are drafted.
    virtual void draft(Work& work) = 0;

    // Learns what the iteration emits, before `batch.lengths` has it.
    virtual void observe(const Work&) {}

    // The decoder layers whose states are kept in work.rows.states, 0 for the embedding.
    virtual std::vector<int> layers_read() const { return {}; }

    // Whether predictions after rejected tokens are wanted as well, in work.predicted.
    virtual bool reads_all_predictions() const { return false; }
};

}  // namespace spec_dec
