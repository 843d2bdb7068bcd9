// Greedy decoding of the sentences of a batch until they end, with or without drafts: every iteration drafts, verifies,
// accepts, and notes what it emitted. Part of kernels.cpp, whose layers it runs.
//
// The sentences are independent of each other. So each thread decodes its own ones, one that has none left takes some
// over, and a sentence that has ended costs no row. Rows are packed: every sentence has as many as it has tokens to verify.

#pragma once

#include <chrono>
#include <memory>
#include <new>
#include <numeric>

#include "handover.h"

extern "C" {

// A decoder with its cache, and the projection of its last states.
struct Stack {
    const Layer* layers;
    int32_t count, dim;
    const Ends* ends;
    const Memory* own;
    const Memory* cross;
    const Linear* projection;
};

constexpr int BINS = 10;

// Which drafted tokens are worth a row of the verification: see ../../drafters/policy.py.
struct Adaptive {
    float threshold;                        // those at least as likely to survive as this
    float right_rate[BINS];                 // how often a token is right that the drafter gives such a probability
    double tried[BINS], right[BINS];        // counted here
    double draft_sums[5], verify_sums[5];   // of calls: their number, rows, rows^2, seconds, rows * seconds
    double drafts;                          // so many
    double *survival, *worthy;              // [width of a draft], of tokens worth a row: their probabilities, and how many
};

// A drafter that reads the verifier's states: see ../../drafters/features.py.
struct Drafter {
    Stack stack;
    const Path* path;
    Input fed;                  // what masks are fed
    const Linear* reader;       // the verifier's states become what every layer makes keys and values of, and after these
                                // what is added to an input
    const Linear* projections;  // [layers], what makes the keys and values; null where the reader makes them itself
    const int32_t* layers_read;
    int32_t layers_read_count, width;  // tokens of a draft
    float* newest;              // [B][D], what is added to the next input
    const int64_t* told;        // [B][told_width], what is drafted in the place of what the drafter says; else null
    int64_t told_width;
    float told_log_prob;        // of each of these
};

// A drafter that copies the source: see ../../methods/iad.py.
struct Copier {
    const int64_t* text;  // [B][width]: what the beginning of the output equals, the source, and below 0 what nothing equals
    int64_t width, beginning, max_match;
};

// A drafter that guesses what the verifier said of the same positions an iteration ago: see ../../methods/jacobi.py.
struct Guesser {
    int64_t block;         // positions that are solved together
    int64_t length;        // tokens up to which that is done, below 0 for no end
    const int64_t* first;  // [B][first_width], the first guess of every position, the last one for later ones
    int64_t first_width;
    int64_t* tail;         // [B][block], better guesses of the next positions, below 0 where there is none
};

// Heads on the verifier's states, see ../../methods/blockwise.py: the first one verifies, the others draft.
struct Heads {
    Linear expand;       // D to what all heads read
    Linear first;        // that to what the first head adds to a state; its weight null where it is the state itself
    Linear others;       // the same of the other heads, of which there are outputs / D
    int64_t* proposals;  // [B][heads - 1], the next draft
    int64_t* proposed;   // [B], how many of them are meant
};

// Which drafted tokens stand beside the best one: see `TopBeta` in ../../search/rules.py.
struct Relaxed {
    int64_t beta;
    float tau;
};

struct Decoding {
    Stack verifier;
    Limits limits;
    const Drafter* drafter;  // one of these four, or none of them
    const Copier* copier;
    const Guesser* guesser;
    const Heads* heads;
    Adaptive* adaptive;      // null where all drafted tokens are verified
    const Relaxed* relaxed;  // null where only the best token stands
    int64_t batch, columns;  // sentences, and columns of tokens
    int64_t* tokens;         // [B][columns], the token that an output begins with and the output
    float* log_probs;        // [B][columns]
    int64_t* lengths;        // [B] of the outputs
    uint8_t* finished;       // [B]
    int64_t budget;          // iterations at most
    int32_t* emitted;        // [budget][B]
    int64_t enough;          // return when so many sentences have ended
    int64_t least_together, rows_together;  // sentences that are decoded together: so many, or more if they have so few rows
};

}  // extern "C"

namespace {

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void count_call(double* sums, double rows, double seconds) {
    const double values[5] = {1, rows, rows * rows, seconds, rows * seconds};
    for (int i = 0; i < 5; ++i) sums[i] += values[i];
}

void add_counts(const Adaptive& from, int64_t width, Adaptive& to) {
    for (int i = 0; i < BINS; ++i) {
        to.tried[i] += from.tried[i];
        to.right[i] += from.right[i];
    }
    for (int i = 0; i < 5; ++i) {
        to.draft_sums[i] += from.draft_sums[i];
        to.verify_sums[i] += from.verify_sums[i];
    }
    to.drafts += from.drafts;
    for (int64_t t = 0; t < width; ++t) {
        to.survival[t] += from.survival[t];
        to.worthy[t] += from.worthy[t];
    }
}

// Rows that are projected to the vocabulary at a time: of what stands after a rejected token none has to be. Of less rows
// than this a product is slower by the row.
int64_t projected_together(const Linear& projection) {
    constexpr int64_t ROWS_OF_TILES = 32;
    return projection.form == HALVES_IN_TILES ? ROWS_OF_TILES : MAX_ROWS;
}

// Numbers of which new ones are not set to zero first: all are written before they are read.
template <typename Number>
struct Unset : std::allocator<Number> {
    template <typename Other>
    struct rebind {
        using other = Unset<Other>;
    };

    void construct(Number* place) { ::new (static_cast<void*>(place)) Number; }
    void construct(Number* place, Number value) { *place = value; }
};
using Floats = std::vector<float, Unset<float>>;

// The rows of a step, one after the other.
struct Step {
    std::vector<int64_t> tokens;
    Rows where;
    Floats x, states;

    Step() : where(Layout{}) {}

    void clear() {
        tokens.clear();
        for (auto* values : {&where.sentence, &where.position, &where.slot, &where.last_visible}) values->clear();
    }

    void add(int64_t sentence, int64_t position, int64_t token) {
        tokens.push_back(token);
        where.sentence.push_back(sentence);
        for (auto* values : {&where.position, &where.slot, &where.last_visible}) values->push_back(position);
    }

    int64_t size() const { return tokens.size(); }

    // Embed the rows and run them through the layers; returns whether all rows are known.
    bool run(const Stack& stack, Input input, bool keep_states) {
        const int64_t rows = size();
        x.resize(rows * stack.dim);
        if (keep_states) states.resize((stack.count + 1) * rows * stack.dim);
        if (!where.fit(*stack.own, stack.cross)) return false;
        input.tokens = tokens.data();
        const Layout packed{rows, 0, nullptr, nullptr, nullptr, nullptr, nullptr};
        if (!embed_rows(*stack.ends, input, packed, where, 0, rows, x.data(), stack.dim)) return false;
        run_rows(stack.layers, stack.count, x.data(), stack.dim, where, 0, rows, *stack.own, stack.cross,
                 keep_states ? states.data() : nullptr);
        const Norm& norm = stack.ends->final_norm;
        if (norm.weight) normalize(norm, x.data(), rows, stack.dim, x.data());
        return true;
    }
};

// How many tokens a draft may have.
int64_t width_of_drafts(const Decoding& all) {
    if (all.drafter) return all.drafter->width;
    if (all.copier) return all.copier->width;
    if (all.guesser) return all.guesser->block - 1;
    return all.heads ? all.heads->others.outputs / all.verifier.dim : 0;
}

// What one thread does for some sentences.
class Part {
public:
    Part(const Decoding& decoding, Adaptive* adaptive) : all(decoding), drafter(decoding.drafter), adaptive(adaptive) {}

    // Those that have not ended.
    std::vector<int64_t> active;

    // One iteration of the sentences that have not ended; false where there is none, or no room for one.
    bool iterate(int32_t* emitted, std::atomic<int64_t>& ended) {
        if (active.empty() || !has_room()) return false;
        drafted_width = 0;
        if (drafter && !draft()) return fail();
        if (all.copier) copy();
        if (all.guesser) guess();
        if (all.heads) propose();
        if (!verify()) return fail();
        accept(emitted);
        if (drafter) observe();
        if (all.guesser) remember();
        if (all.heads) ask_heads();
        for (size_t index = 0; index < active.size(); ++index) all.lengths[active[index]] += gained[index];
        const auto is_over = [&](int64_t b) { return all.finished[b] != 0; };
        const auto rest = std::remove_if(active.begin(), active.end(), is_over);
        ended += active.end() - rest;
        active.erase(rest, active.end());
        return true;
    }

    bool failed = false;

private:
    const Decoding& all;
    const Drafter* drafter;
    Adaptive* adaptive;
    std::vector<int64_t> before, chosen, drafted, counts, begins, gained, predicted;
    std::vector<size_t> going;
    Floats survival, log_probs, features, read, projected, scores, predicted_log_probs;
    Step drafting, verifying;
    int64_t drafted_width = 0;
    double began = 0;

    bool fail() {
        failed = true;
        return false;
    }

    int64_t wanted_width() const { return width_of_drafts(all); }

    // Whether the caches, and the table of what masks are fed, are long enough for all that an iteration can write.
    bool has_room() const {
        int64_t longest = 0;
        for (const int64_t b : active) longest = std::max(longest, all.lengths[b]);
        const int64_t slots = longest + wanted_width() + 1;
        if (slots > all.verifier.own->used) return false;
        if (!drafter) return true;
        return slots <= drafter->stack.own->used && (!drafter->fed.position || slots <= drafter->fed.fed_positions);
    }

    // How many tokens may stand before the limit of a sentence.
    int64_t left(int64_t b) const { return std::max<int64_t>(all.limits.max_len - all.lengths[b], 0); }

    bool draft() {
        const double start = seconds_now();
        int64_t width = 0;
        for (const int64_t b : active) width = std::max(width, std::min<int64_t>(drafter->width, left(b)));
        if (width == 0) return true;
        const int64_t count = active.size();
        drafting.clear();
        before.clear();
        for (const int64_t b : active) {
            before.push_back(all.tokens[b * all.columns + all.lengths[b]]);
            for (int64_t t = 0; t < width; ++t) {
                drafting.add(b, all.lengths[b] + t, t == 0 ? before.back() : drafter->stack.ends->mask_id);
            }
        }
        Input input = drafter->fed;
        input.added = drafter->newest;
        input.added_width = 1;
        if (!drafting.run(drafter->stack, input, false)) return false;
        const Linear& projection = *drafter->stack.projection;
        scores.resize(count * width * projection.outputs);
        linear(projection, drafting.x.data(), count * width, scores.data());
        chosen.resize(count * width);
        log_probs.resize(count * width);
        drafted_width = width;
        drafted.clear();
        for (const int64_t b : active) drafted.push_back(std::min(width, left(b)));
        survival.assign(count, 1.0f);
        const auto goes_on = [&](int64_t position) { return !adaptive || drafter->told || some_survive(position); };
        if (!follow(*drafter->path, scores.data(), drafting.x.data(), count, width, before.data(), chosen.data(),
                    adaptive ? log_probs.data() : nullptr, goes_on)) {
            return false;
        }
        if (drafter->told) replay();
        if (adaptive) count_call(adaptive->draft_sums, count * width, seconds_now() - start);
        return true;
    }

    // Ends the drafts whose token at this position is worth no row, and counts the others; returns whether there is any.
    bool some_survive(int64_t position) {
        bool any = false;
        for (size_t index = 0; index < active.size(); ++index) {
            if (drafted[index] <= position) continue;
            survival[index] *= adaptive->right_rate[bin_of(log_probs[index * drafted_width + position])];
            if (survival[index] < adaptive->threshold) {
                drafted[index] = position;
                continue;
            }
            adaptive->survival[position] += survival[index];
            adaptive->worthy[position] += 1;
            any = true;
        }
        return any;
    }

    // Drafts what is told of these positions, for benchmarks of models whose drafts would be of no use.
    void replay() {
        for (size_t index = 0; index < active.size(); ++index) {
            const int64_t b = active[index];
            for (int64_t t = 0; t < drafted_width; ++t) {
                const int64_t position = std::min(all.lengths[b] + t, drafter->told_width - 1);
                chosen[index * drafted_width + t] = drafter->told[b * drafter->told_width + position];
            }
        }
        std::fill(log_probs.begin(), log_probs.end(), drafter->told_log_prob);
        for (int64_t t = 0; adaptive && t < drafted_width && some_survive(t);) ++t;
    }

    // What follows the one position of the source that the longest suffix of the output matches, if it is one.
    void copy() {
        drafted_width = all.copier->width;
        drafted.assign(active.size(), 0);
        chosen.resize(active.size() * drafted_width);
        for (size_t index = 0; index < active.size(); ++index) {
            const int64_t b = active[index];
            const int64_t* text = all.copier->text + b * all.copier->width;
            int64_t longest = 0, second = 0, found = 0;
            for (int64_t end = 0; end < all.copier->width; ++end) {
                const int64_t length = common_suffix(text, end, all.tokens + b * all.columns, all.lengths[b]);
                if (length > longest) {
                    second = longest;
                    longest = length;
                    found = end;
                } else {
                    second = std::max(second, length);
                }
            }
            if (longest == second) continue;
            for (int64_t from = found + 1; from < all.copier->width && text[from] >= 0; ++from) {
                chosen[index * drafted_width + drafted[index]++] = text[from];
            }
        }
    }

    // How many tokens that end at this position of a text equal the last tokens of an output.
    int64_t common_suffix(const int64_t* text, int64_t end, const int64_t* output, int64_t length) const {
        int64_t count = 0;
        for (; count < all.copier->max_match && count <= end && count <= length; ++count) {
            const int64_t token = length == count ? all.copier->beginning : output[length - count];
            if (text[end - count] < 0 || text[end - count] != token) break;
        }
        return count;
    }

    // What the verifier last said of the positions up to the end of the block, and else the first guess. It predicts one
    // position more than it is given guesses for.
    void guess() {
        const Guesser& guesser = *all.guesser;
        drafted_width = guesser.block - 1;
        drafted.clear();
        chosen.resize(active.size() * drafted_width);
        for (size_t index = 0; index < active.size(); ++index) {
            const int64_t b = active[index], length = all.lengths[b];
            int64_t count = guesser.block - 1 - length % guesser.block;
            if (guesser.length >= 0) count = std::max<int64_t>(std::min(count, guesser.length - 1 - length), 0);
            for (int64_t t = 0; t < count; ++t) {
                const int64_t better = guesser.tail[b * guesser.block + t];
                const int64_t* first = guesser.first + b * guesser.first_width;
                chosen[index * drafted_width + t] = better >= 0 ? better : first[std::min(length + t, guesser.first_width - 1)];
            }
            drafted.push_back(count);
        }
    }

    // What was predicted after the emitted tokens becomes the next guess.
    void remember() {
        const int64_t block = all.guesser->block;
        for (size_t index = 0; index < active.size(); ++index) {
            for (int64_t t = 0; t < block; ++t) {
                const bool is_known = gained[index] + t <= counts[index];
                const size_t row = begins[index] + gained[index] + t;
                all.guesser->tail[active[index] * block + t] = is_known ? predicted[row] : -1;
            }
        }
    }

    // What the heads said after the last iteration.
    void propose() {
        drafted_width = wanted_width();
        drafted.clear();
        chosen.clear();
        for (const int64_t b : active) {
            const int64_t* from = all.heads->proposals + b * drafted_width;
            chosen.insert(chosen.end(), from, from + drafted_width);
            drafted.push_back(all.heads->proposed[b]);
        }
    }

    // The other heads say what comes next, from the states that the last tokens were chosen from.
    void ask_heads() {
        const Heads& heads = *all.heads;
        const int64_t dim = all.verifier.dim, count = active.size(), width = wanted_width();
        const int64_t vocabulary = all.verifier.projection->outputs;
        features.clear();
        for (size_t index = 0; index < active.size(); ++index) {
            const float* from = verifying.x.data() + (begins[index] + gained[index] - 1) * dim;
            features.insert(features.end(), from, from + dim);
        }
        read.resize(count * heads.expand.outputs);
        linear(heads.expand, features.data(), count, read.data(), RELU);
        projected.resize(count * width * dim);
        for (int64_t row = 0; row < count * width; ++row) {
            std::copy_n(features.data() + row / width * dim, dim, projected.data() + row * dim);
        }
        linear(heads.others, read.data(), count, projected.data(), NONE, true);
        const int64_t together = projected_together(*all.verifier.projection);
        scores.resize(together * vocabulary);
        in_parts(count * width, together, [&](int64_t first, int64_t some) {
            linear(*all.verifier.projection, projected.data() + first * dim, some, scores.data());
            for (int64_t row = first; row < first + some; ++row) {
                heads.proposals[active[row / width] * width + row % width] =
                    first_best(scores.data() + (row - first) * vocabulary, vocabulary);
            }
        });
        for (const int64_t b : active) heads.proposed[b] = width;
    }

    static int bin_of(float log_prob) {
        return std::min(std::max(static_cast<int>(std::exp(log_prob) * BINS), 0), BINS - 1);
    }

    bool verify() {
        began = seconds_now();
        verifying.clear();
        counts.clear();
        begins.clear();
        for (size_t index = 0; index < active.size(); ++index) {
            const int64_t b = active[index], length = all.lengths[b];
            const int64_t meant = drafted_width ? std::min(drafted[index], left(b)) : 0;
            begins.push_back(verifying.size());
            counts.push_back(meant);
            verifying.add(b, length, all.tokens[b * all.columns + length]);
            for (int64_t t = 0; t < meant; ++t) {
                verifying.add(b, length + 1 + t, chosen[index * drafted_width + t]);
            }
        }
        return verifying.run(all.verifier, Input{}, drafter != nullptr);
    }

    void accept(int32_t* emitted) {
        gained.assign(active.size(), 0);
        if (all.guesser) {
            predict_all();
        } else {
            predict_accepted();
        }
        for (size_t index = 0; index < active.size(); ++index) {
            const int64_t b = active[index];
            emitted[b] = gained[index];
            if (adaptive && drafted_width > 0) calibrate(index, gained[index], all.tokens + b * all.columns + all.lengths[b] + 1);
        }
        if (adaptive) {
            count_call(adaptive->verify_sums, verifying.size(), seconds_now() - began);
        }
    }

    // Predict after some rows of every sentence at a time, as long as all of its draft stands, and choose.
    void predict_accepted() {
        going.resize(active.size());
        std::iota(going.begin(), going.end(), 0);
        const int64_t together = projected_together(*all.verifier.projection);
        while (!going.empty()) {
            const int64_t each = std::max<int64_t>(1, together / static_cast<int64_t>(going.size()));
            project(each);
            float* row = scores.data();
            std::vector<size_t> rest;
            for (const size_t index : going) {
                const int64_t rows = rows_ahead(index, each);
                if (choose(index, rows, row)) rest.push_back(index);
                row += rows * all.verifier.projection->outputs;
            }
            going.swap(rest);
        }
    }

    // Predict after every row, also where what was drafted does not stand, and choose.
    void predict_all() {
        const int64_t rows = verifying.size(), vocabulary = all.verifier.projection->outputs;
        predicted.resize(rows);
        predicted_log_probs.resize(rows);
        const int64_t together = projected_together(*all.verifier.projection);
        scores.resize(together * vocabulary);
        in_parts(rows, together, [&](int64_t first, int64_t count) {
            linear(*all.verifier.projection, verifying.x.data() + first * all.verifier.dim, count, scores.data());
            for (int64_t row = first; row < first + count; ++row) {
                best_token(scores.data() + (row - first) * vocabulary, all.limits, verifying.where.position[row],
                           &predicted[row], &predicted_log_probs[row]);
            }
        });
        for (size_t index = 0; index < active.size(); ++index) {
            for (bool stands = true; stands;) {
                const int64_t row = begins[index] + gained[index];
                stands = emit(index, predicted[row], predicted_log_probs[row]);
            }
        }
    }

    // Add a token to a sentence; returns whether it is the one that was drafted there, so that what follows counts.
    bool emit(size_t index, int64_t token, float log_prob) {
        const int64_t b = active[index], t = gained[index]++, place = b * all.columns + all.lengths[b] + t + 1;
        all.tokens[place] = token;
        all.log_probs[place] = log_prob;
        all.finished[b] = token == all.limits.eos;
        return !all.finished[b] && t < counts[index] && chosen[index * drafted_width + t] == token;
    }

    // How many rows of a sentence, after those that were chosen from, are projected next.
    int64_t rows_ahead(size_t index, int64_t each) const { return std::min(each, counts[index] + 1 - gained[index]); }

    // Score the tokens after the next rows of all sentences that go on.
    void project(int64_t each) {
        const int64_t dim = all.verifier.dim;
        projected.clear();
        for (const size_t index : going) {
            const float* from = verifying.x.data() + (begins[index] + gained[index]) * dim;
            projected.insert(projected.end(), from, from + rows_ahead(index, each) * dim);
        }
        const int64_t rows = projected.size() / dim;
        if (all.heads && all.heads->first.weight) {
            read.resize(rows * all.heads->expand.outputs);
            linear(all.heads->expand, projected.data(), rows, read.data(), RELU);
            linear(all.heads->first, read.data(), rows, projected.data(), NONE, true);
        }
        scores.resize(rows * all.verifier.projection->outputs);
        linear(*all.verifier.projection, projected.data(), rows, scores.data());
    }

    // Choose the tokens after these rows of a sentence, as far as what was drafted stands; returns whether all of it does.
    bool choose(size_t index, int64_t rows, float* row) {
        for (int64_t end = gained[index] + rows; gained[index] < end; row += all.verifier.projection->outputs) {
            const int64_t t = gained[index], position = all.lengths[active[index]] + t;
            int64_t token;
            float log_prob;
            best_token(row, all.limits, position, &token, &log_prob);
            if (all.relaxed && t < counts[index]) {
                const int64_t other = chosen[index * drafted_width + t];
                if (other != token && stands(row, position, other, &log_prob)) token = other;
            }
            if (!emit(index, token, log_prob)) return false;
        }
        return true;
    }

    // Whether a token stands that is not the best, whose log-probability is then replaced by its own. The scores are
    // log-probabilities afterwards.
    bool stands(float* row, int64_t position, int64_t token, float* log_prob) const {
        const Limits& limits = all.limits;
        if (position >= limits.max_len || token == limits.pad) return false;
        if (token == limits.eos && position < limits.min_len) return false;
        log_softmax(row, 1, limits.vocabulary);
        row[limits.pad] = NO_SCORE;
        row[limits.unk] -= limits.unk_penalty;
        if (position < limits.min_len) row[limits.eos] = NO_SCORE;
        if (*log_prob - row[token] > all.relaxed->tau) return false;
        int64_t better = 0;
        for (int64_t i = 0; i < limits.vocabulary; ++i) better += row[i] > row[token];
        if (better >= all.relaxed->beta) return false;
        *log_prob = row[token];
        return true;
    }

    // Counts what became of the verified tokens of a draft.
    void calibrate(size_t index, int64_t emitted, const int64_t* tokens) {
        for (int64_t t = 0; t < std::min(emitted, counts[index]); ++t) {
            const int bin = bin_of(log_probs[index * drafted_width + t]);
            adaptive->tried[bin] += 1;
            adaptive->right[bin] += chosen[index * drafted_width + t] == tokens[t];
        }
        adaptive->drafts += 1;
    }

    // The drafter reads the states that the emitted tokens were chosen from.
    void observe() {
        const double start = seconds_now();
        const int64_t dim = all.verifier.dim, width = drafter->layers_read_count * dim, rows = verifying.size();
        int64_t count = 0;
        features.resize(rows * width);
        const auto for_each_emitted = [&](const auto& run) {
            for (size_t index = 0; index < active.size(); ++index) {
                const int64_t b = active[index];
                for (int64_t t = 0; t < gained[index]; ++t) {
                    run(b, begins[index] + t, all.lengths[b] + t, t + 1 == gained[index]);
                }
            }
        };
        for_each_emitted([&](int64_t, int64_t row, int64_t, bool) {
            for (int n = 0; n < drafter->layers_read_count; ++n) {
                const float* from = verifying.states.data() + (drafter->layers_read[n] * rows + row) * dim;
                std::memcpy(features.data() + count * width + n * dim, from, dim * sizeof(float));
            }
            ++count;
        });
        const int64_t outputs = drafter->reader->outputs, own_dim = drafter->stack.dim;
        read.resize(count * outputs);
        linear(*drafter->reader, features.data(), count, read.data());
        const Memory& own = *drafter->stack.own;
        for (int n = 0; n < drafter->stack.count; ++n) {
            const float* from = drafter->projections ? project_context(n, count) : read.data() + n * 2 * own_dim;
            const int64_t stride = drafter->projections ? 2 * own_dim : outputs;
            for_each_emitted([&](int64_t b, int64_t, int64_t slot, bool) {
                float* to = own.key_value + n * own.layer + (b * own.capacity + slot) * 2 * own_dim;
                std::memcpy(to, from, 2 * own_dim * sizeof(float));
                from += stride;
            });
        }
        const float* added = read.data() + outputs - own_dim;
        for_each_emitted([&](int64_t b, int64_t, int64_t, bool is_last) {
            if (is_last) std::memcpy(drafter->newest + b * own_dim, added, own_dim * sizeof(float));
            added += outputs;
        });
        if (adaptive && drafted_width > 0) adaptive->draft_sums[3] += seconds_now() - start;
    }

    // Keys and values of a layer of the drafter [count][2][D], of what was read for it.
    const float* project_context(int n, int64_t count) {
        const int64_t dim = drafter->stack.dim, outputs = drafter->reader->outputs;
        projected.resize(count * dim);
        for (int64_t row = 0; row < count; ++row) {
            std::copy_n(read.data() + row * outputs + n * dim, dim, projected.data() + row * dim);
        }
        const Layer& layer = drafter->stack.layers[n];
        if (layer.normalize_before) normalize(layer.self_norm, projected.data(), count, dim, projected.data());
        scores.resize(count * 2 * dim);
        linear(drafter->projections[n], projected.data(), count, scores.data());
        return scores.data();
    }
};

}  // namespace

extern "C" {

// Decode until `enough` sentences have ended, `budget` iterations are over or there is no room for another one. Returns 0,
// or 1 where something points outside of what there is, or a token is none of the vocabulary.
int32_t decode(const Decoding* decoding) {
    const Decoding& all = *decoding;
    int64_t waiting = 0;
    // A token before the output, all that the limit allows, and EOS.
    if (all.columns < all.limits.max_len + 2) return 1;
    for (int64_t b = 0; b < all.batch; ++b) {
        if (all.lengths[b] < 0 || all.lengths[b] >= all.columns) return 1;
        waiting += !all.finished[b];
    }
    if (waiting == 0) return 0;
    const int64_t width = width_of_drafts(all);
    const int64_t most = std::max<int64_t>({1, all.least_together, all.rows_together / (1 + width)});
    const int64_t threads = threads::available();
    // Batches have the longest sentences first. Those that follow each other are decoded together, for they end together,
    // and every thread has its share of them.
    const int64_t lanes = std::min(threads, waiting), groups = (waiting + most * lanes - 1) / (most * lanes);
    const int64_t parts = groups * lanes, workers = std::min(threads, parts);
    std::vector<Adaptive> counters(all.adaptive ? workers : 0);
    std::vector<double> positions(counters.size() * 2 * width);
    for (size_t index = 0; index < counters.size(); ++index) {
        Adaptive& counter = counters[index];
        counter = Adaptive{};
        counter.threshold = all.adaptive->threshold;
        std::copy_n(all.adaptive->right_rate, BINS, counter.right_rate);
        counter.survival = positions.data() + index * 2 * width;
        counter.worthy = counter.survival + width;
    }
    std::atomic<int64_t> ended{0}, next{0};
    std::atomic<bool> failed{false};
    Handover handover;
    const auto work = [&](int64_t worker) {
        handover.begin();
        Part mine(all, counters.empty() ? nullptr : &counters[worker]);
        const auto go_on = [&](int64_t iteration) {
            while (iteration < all.budget && ended < all.enough) {
                if (!mine.iterate(all.emitted + iteration++ * all.batch, ended)) break;
                handover.offer(mine.active, iteration);
            }
            if (mine.failed) failed = true;
        };
        for (int64_t part; (part = next++) < parts;) {
            const int64_t group = part / lanes, last = (group + 1) * all.batch / groups;
            mine.active.clear();
            for (int64_t b = group * all.batch / groups + part % lanes; b < last; b += lanes) {
                if (!all.finished[b]) mine.active.push_back(b);
            }
            go_on(0);
        }
        for (int64_t iteration; handover.take(mine.active, iteration);) go_on(iteration);
    };
    workers > 1 ? threads::run(workers, work) : work(0);
    for (const Adaptive& counter : counters) add_counts(counter, width, *all.adaptive);
    return failed ? 1 : 0;
}

}  // extern "C"
