#include "worker.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "kernels.h"

namespace spec_dec {
namespace {

// Iterations after which a worker hands its counts over.
constexpr int64_t LEARN_AFTER = 8;

// Adds the time until its end to a part.
class Timer {
public:
    explicit Timer(double& seconds) : seconds(seconds), began(seconds_now()) {}
    ~Timer() { seconds += seconds_now() - began; }

private:
    double& seconds;
    const double began;
};

}  // namespace

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Worker::admit(const std::vector<int64_t>& sentences, int64_t share) {
    std::vector<int64_t> drafted;
    for (const int64_t b : sentences) {
        bool is_drafted = search.drafter && search.drafter->can_draft(b);
        if (profiled_width) {
            is_drafted = *profiled_width > 0;
        } else if (is_drafted && search.policy) {
            is_drafted = search.policy->drafts(share, batch.sources.length(b));
        }
        batch.is_drafted[b] = is_drafted;
        if (is_drafted) drafted.push_back(b);
    }
    {
        const Timer timer(seconds[ENCODE]);
        search.verifier.read_sources(sentences);
    }
    if (!drafted.empty()) {
        const Timer timer(seconds[PREPARE]);
        search.drafter->begin(batch, drafted);
    }
    work.active.insert(work.active.end(), sentences.begin(), sentences.end());
}

void Worker::iterate() {
    {
        const Timer timer(seconds[DRAFT]);
        draft();
    }
    {
        const Timer timer(seconds[VERIFY]);
        verify();
    }
    {
        const Timer timer(seconds[ACCEPT]);
        accept();
    }
    if (search.drafter) {
        const Timer timer(seconds[OBSERVE]);
        search.drafter->observe(work);
        if (search.policy) count_drafts();
    }
    for (size_t index = 0; index < work.active.size(); ++index) {
        const int64_t b = work.active[index];
        batch.lengths[b] += work.gained[index];
        batch.emitted[b].push_back(static_cast<int32_t>(work.gained[index]));
        batch.drafted[b] = work.drafts.count(index);
        batch.accepted[b] = work.accepted[index];
        if (batch.finished[b] && search.policy) search.policy->learn_length(batch.sources.length(b), batch.lengths[b]);
    }
    const auto has_ended = [&](int64_t b) { return batch.finished[b] != 0; };
    work.active.erase(std::remove_if(work.active.begin(), work.active.end(), has_ended), work.active.end());
    const bool hands_over = ++iterations % LEARN_AFTER == 0 || work.active.empty();
    if (!profiled_width && hands_over) learn();
}

void Worker::learn() {
    if (!search.policy || counts.drafts[0] == 0) return;
    search.policy->learn(counts);
    counts = SurvivalCounts(search.policy->width);
}

void Worker::draft() {
    const int64_t sentences = work.active.size();
    int64_t drafted = 0, width = search.drafter ? search.drafter->max_width(batch) : 0;
    for (const int64_t b : work.active) drafted += batch.is_drafted[b];
    Drafts& drafts = work.drafts;
    drafts.seen = nullptr;
    drafts.worth = nullptr;
    if (search.policy && drafted > 0) {
        plan = profiled_width ? Plan{*profiled_width, 1, 0, nullptr} : search.policy->plan(sentences);
        // A drafter that misses an iteration of a sentence cannot go on. One by itself is drafted to see how that goes.
        if (!plan.pays() && drafted == sentences && sentences > 1) {
            for (const int64_t b : work.active) batch.is_drafted[b] = 0;
            drafted = 0;
        }
        width = profiled_width ? plan.width : std::min(width, plan.width);
        drafts.seen = &counts;
        drafts.worth = plan.worth.get();
    }
    std::vector<int64_t> most;
    for (const int64_t b : work.active) most.push_back(batch.is_drafted[b] || batch.limits.prefix ? batch.left(b) : 0);
    // What Jacobi decoding predicts after a wrong EOS is its next guess.
    const bool ends_at_eos = !profiled_width && !(search.drafter && search.drafter->reads_all_predictions());
    drafts.begin(std::max(drafted > 0 ? width : 0, batch.limits.prefix_width), std::move(most),
                 ends_at_eos ? batch.limits.eos : -1);
    if (batch.limits.prefix) draft_prefix();
    drafts.limit_empty(width);
    if (drafted == 0) return;
    for (size_t index = 0; drafts.seen && index < work.active.size(); ++index) {
        if (!batch.is_drafted[work.active[index]]) continue;
        const int64_t room = std::min(drafts.room_of(index) - drafts.count(index), search.policy->width);
        for (int64_t t = 0; t < room; ++t) counts.drafts[t] += 1;
    }
    search.drafter->draft(work);
    if (profiled_width) drafts.fill(batch.limits.pad);
}

// Drafts the given prefixes (--prefix-size), also empty ones.
void Worker::draft_prefix() {
    for (size_t index = 0; index < work.active.size(); ++index) {
        const int64_t b = work.active[index];
        if (batch.lengths[b] > 0) continue;
        for (int64_t t = 0; work.drafts.goes_on(index) && batch.limits.forced(b, t) >= 0; ++t) {
            work.drafts.add(index, batch.limits.forced(b, t));
        }
        work.drafts.end(index);
    }
}

void Worker::verify() {
    Rows& rows = work.rows;
    rows.clear();
    work.first_row.clear();
    bool is_drafted = false;
    for (size_t index = 0; index < work.active.size(); ++index) {
        const int64_t b = work.active[index], length = batch.lengths[b];
        is_drafted |= batch.is_drafted[b] != 0;
        work.first_row.push_back(rows.size());
        rows.add(b, length, batch.last_token(b));
        for (int64_t t = 0; t < work.drafts.rows(index); ++t) rows.add(b, length + 1 + t, work.drafts.token(index, t));
    }
    search.verifier.run(rows, {}, is_drafted ? search.drafter->layers_read() : std::vector<int>{});
}

void Worker::accept() {
    work.gained.assign(work.active.size(), 0);
    work.accepted.assign(work.active.size(), 0);
    if (search.drafter && search.drafter->reads_all_predictions()) {
        predict_all();
    } else {
        predict_accepted();
    }
}

void Worker::project(const float* states, int64_t rows, float* to) {
    const SharedLinear& expand = search.head.expand;
    if (expand) {
        const int64_t dim = search.model->width;
        float* wide = at_least(head_states, rows * (expand->outputs + dim));
        float* changed = wide + rows * expand->outputs;
        expand->run(states, rows, wide, Activation::RELU);
        std::copy_n(states, rows * dim, changed);
        search.head.shrink->run(wide, rows, changed, Activation::NONE, true);
        states = changed;
    }
    search.model->projection->run(states, rows, to);
}

// Predicts the tokens after a few rows of every sentence at a time, until a drafted token is rejected.
void Worker::predict_accepted() {
    const int64_t dim = search.model->width, vocabulary = search.model->projection->outputs;
    const int64_t together = search.model->projection->efficient_rows();
    std::vector<size_t> going(work.active.size()), rest;
    std::iota(going.begin(), going.end(), 0);
    while (!going.empty()) {
        const int64_t each = std::max<int64_t>(1, together / static_cast<int64_t>(going.size()));
        const auto ahead = [&](size_t index) {
            return std::min(each, work.drafts.rows(index) + 1 - work.gained[index]);
        };
        int64_t rows = 0;
        for (const size_t index : going) rows += ahead(index);
        float* states = at_least(states_ahead, rows * dim);
        for (const size_t index : going) {
            const float* from = work.rows.x.data() + (work.first_row[index] + work.gained[index]) * dim;
            states = std::copy_n(from, ahead(index) * dim, states);
        }
        float* row = at_least(scores, rows * vocabulary);
        project(states_ahead.data(), rows, row);
        rest.clear();
        for (const size_t index : going) {
            const int64_t count = ahead(index);
            if (choose(index, count, row)) rest.push_back(index);
            row += count * vocabulary;
        }
        going.swap(rest);
    }
}

// Predicts the token after every row, also after rejected tokens.
void Worker::predict_all() {
    const int64_t rows = work.rows.size(), vocabulary = search.model->projection->outputs, dim = search.model->width;
    const int64_t together = search.model->projection->efficient_rows();
    float* values = at_least(scores, together * vocabulary);
    best.resize(rows);
    work.predicted.resize(rows);
    in_parts(rows, together, [&](int64_t first, int64_t count) {
        project(work.rows.x.data() + first * dim, count, values);
        for (int64_t row = first; row < first + count; ++row) {
            best[row] = best_token(values + (row - first) * vocabulary, batch.limits, work.rows.sentence[row],
                                   work.rows.position[row]);
            work.predicted[row] = best[row].token;
        }
    });
    for (size_t index = 0; index < work.active.size(); ++index) {
        for (bool is_accepted = true; is_accepted;) {
            const BestToken& next = best[work.first_row[index] + work.gained[index]];
            is_accepted = emit(index, next.token, next.log_prob);
        }
    }
}

// Chooses the tokens after `rows` rows of a sentence until one is rejected; returns whether none was.
bool Worker::choose(size_t index, int64_t rows, float* row) {
    const int64_t b = work.active[index], vocabulary = search.model->projection->outputs;
    for (int64_t end = work.gained[index] + rows; work.gained[index] < end; row += vocabulary) {
        const int64_t t = work.gained[index], position = batch.lengths[b] + t;
        BestToken next;
        const bool is_drafted = t < work.drafts.count(index);
        if (profiled_width && 2 * t < work.drafts.count(index)) {
            next = {work.drafts.token(index, t), best_token(row, batch.limits, b, position).log_prob};
        } else if (search.acceptance && is_drafted) {
            to_log_probs(row, batch.limits, b, position);
            const int64_t drafted = work.drafts.token(index, t), given = batch.limits.forced(b, position);
            // A given token may have no score.
            next.token = given >= 0 ? given : kernels().first_best(row, vocabulary);
            const bool is_allowed = drafted != next.token && row[drafted] > -HUGE_VALF;
            if (is_allowed && search.acceptance->accepts(row, vocabulary, t, drafted, next.token)) next.token = drafted;
            next.log_prob = row[next.token];
        } else {
            next = best_token(row, batch.limits, b, position);
        }
        if (!emit(index, next.token, next.log_prob)) return false;
    }
    return true;
}

// Adds a token to a sentence; returns whether it equals the drafted one, so that the following ones count.
bool Worker::emit(size_t index, int64_t token, float log_prob) {
    const int64_t b = work.active[index], t = work.gained[index]++,
                  place = b * batch.columns + batch.lengths[b] + t + 1;
    refuse_nan(log_prob);
    batch.tokens[place] = token;
    batch.log_probs[place] = log_prob;
    batch.finished[b] = token == batch.limits.eos && !profiled_width;
    const bool was_drafted = t < work.drafts.count(index) && work.drafts.token(index, t) == token;
    work.accepted[index] += was_drafted;
    return was_drafted && !batch.finished[b];
}

void Worker::count_drafts() {
    for (size_t index = 0; index < work.active.size(); ++index) {
        const int64_t b = work.active[index];
        if (!batch.is_drafted[b] || (batch.limits.prefix && batch.lengths[b] == 0)) continue;
        for (int64_t t = 0; t < work.drafts.rows(index); ++t) {
            const size_t token = counts.at(t, work.drafts.bin(index, t));
            counts.tried[token] += 1;
            counts.right[token] += t < work.accepted[index];
        }
    }
}

}  // namespace spec_dec
