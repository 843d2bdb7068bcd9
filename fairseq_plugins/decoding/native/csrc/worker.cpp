#include "worker.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "kernels.h"

namespace spec_dec {
namespace {

// Iterations between two updates of the policy.
constexpr int64_t LEARN_AFTER = 8;

// Adds the time of its scope to `seconds`.
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

void Worker::admit(const std::vector<int64_t>& sentences, int64_t batch_size) {
    std::vector<int64_t> drafted;
    for (const int64_t b : sentences) {
        bool is_drafted = search.drafter && search.drafter->can_draft(batch, b);
        if (is_drafted && search.policy) {
            is_drafted = search.policy->should_draft(batch_size, batch.sources.length(b));
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
    if (search.policy && search.drafter) {
        const Timer timer(seconds[PREPARE]);
        start_late();
    }
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
        batch.lengths[b] += work.emitted[index];
        batch.emitted[b].push_back(static_cast<int32_t>(work.emitted[index]));
        batch.drafted[b] = work.drafts.count(index);
        batch.accepted[b] = work.accepted[index];
        if (batch.finished[b] && search.policy) search.policy->learn_length(batch.sources.length(b), batch.lengths[b]);
    }
    const auto has_ended = [&](int64_t b) { return batch.finished[b] != 0; };
    work.active.erase(std::remove_if(work.active.begin(), work.active.end(), has_ended), work.active.end());
    const bool is_new = search.policy && search.policy->is_new();
    const bool is_due = ++iterations % LEARN_AFTER == 0 || work.active.empty() || is_new;
    if (is_due) learn();
}

void Worker::drop(int64_t sentence) {
    work.active.erase(std::remove(work.active.begin(), work.active.end(), sentence), work.active.end());
}

void Worker::learn() {
    if (!search.policy || counts.drafts[0] == 0) return;
    search.policy->learn(counts);
    counts = SurvivalCounts(search.policy->width);
}

// Starts to draft for sentences that have been decoded without drafts, for example because there were many at first.
// How long a sentence goes on is unknown. Starting it once the time that it has lost equals the cost takes at most
// twice the time of starting at the best moment (ski rental).
void Worker::start_late() {
    const Plan best = search.policy->plan(work.active.size());
    if (!best.is_faster()) return;
    const std::vector<int> layers = search.drafter->layers_read();
    std::vector<int64_t> sentences;
    for (const int64_t b : work.active) {
        if (batch.is_drafted[b] || batch.lengths[b] == 0 || !search.drafter->can_draft(batch, b)) continue;
        batch.lost[b] += 1 / best.greedy_rate - 1 / best.rate;
        const int64_t states = layers.empty() ? 0 : batch.lengths[b];
        if (batch.lost[b] < search.policy->seconds_to_start(batch.sources.length(b), states)) continue;
        batch.lost[b] = 0;
        batch.is_drafted[b] = 1;
        sentences.push_back(b);
    }
    if (sentences.empty()) return;
    search.drafter->begin(batch, sentences);
    if (!layers.empty()) observe_outputs(sentences, layers);
}

// Shows the drafter the outputs of sentences, as if they had been emitted in one iteration.
void Worker::observe_outputs(const std::vector<int64_t>& sentences, const std::vector<int>& layers) {
    Work past(batch);
    past.active = sentences;
    for (const int64_t b : sentences) {
        past.first_row.push_back(past.rows.size());
        past.emitted.push_back(batch.lengths[b]);
        for (int64_t t = 0; t < batch.lengths[b]; ++t) past.rows.add(b, t, batch.output(b)[t - 1]);
    }
    search.verifier.run(past.rows, {}, layers);
    for (const int64_t b : sentences) batch.lengths[b] = 0;
    search.drafter->observe(past);
    for (size_t index = 0; index < sentences.size(); ++index) batch.lengths[sentences[index]] = past.emitted[index];
}

void Worker::draft() {
    const int64_t sentences = work.active.size();
    int64_t drafted = 0, width = search.drafter ? search.drafter->max_width(batch) : 0;
    for (const int64_t b : work.active) drafted += batch.is_drafted[b];
    Drafts& drafts = work.drafts;
    drafts.survival_counts = nullptr;
    drafts.verified = nullptr;
    if (search.policy && drafted > 0) {
        plan = search.policy->plan(sentences);
        // A drafter that misses an iteration of a sentence has to start it again. Sentences that explore, alone or
        // among others without drafts, keep drafting.
        if (!plan.is_faster() && drafted == sentences && sentences > 1) {
            for (const int64_t b : work.active) batch.is_drafted[b] = 0;
            drafted = 0;
        }
        width = std::min(width, plan.width);
        drafts.survival_counts = &counts;
        drafts.verified = plan.verified.get();
    }
    std::vector<int64_t> max_counts;
    int64_t longest_prefix = 0;
    for (const int64_t b : work.active) {
        const bool has_prefix = batch.begins_with_prefix(b);
        if (has_prefix) longest_prefix = std::max<int64_t>(longest_prefix, batch.limits.of(b).prefix.size());
        max_counts.push_back(batch.is_drafted[b] || has_prefix ? batch.remaining(b) : 0);
    }
    // Jacobi decoding drafts past EOS: the predictions there are its next draft if EOS is rejected.
    const bool ends_at_eos = !search.drafter || !search.drafter->reads_all_predictions();
    drafts.begin(std::max(drafted > 0 ? width : 0, longest_prefix), std::move(max_counts),
                 ends_at_eos ? batch.limits.eos : -1);
    if (longest_prefix > 0) draft_prefix();
    drafts.reopen_empty(width);
    if (drafted == 0) return;
    for (size_t index = 0; drafts.survival_counts && index < work.active.size(); ++index) {
        if (!batch.is_drafted[work.active[index]]) continue;
        const int64_t allowed = std::min(drafts.max_count(index) - drafts.count(index), search.policy->width);
        for (int64_t t = 0; t < allowed; ++t) counts.drafts[t] += 1;
    }
    search.drafter->draft(work);
}

// Drafts the prefix (--prefix-size). The first iteration of a sentence drafts nothing else, even if its prefix is
// empty.
void Worker::draft_prefix() {
    for (size_t index = 0; index < work.active.size(); ++index) {
        const int64_t b = work.active[index];
        if (!batch.begins_with_prefix(b)) continue;
        for (int64_t t = 0; work.drafts.can_add(index) && batch.limits.forced(b, t) >= 0; ++t) {
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
    work.emitted.assign(work.active.size(), 0);
    work.accepted.assign(work.active.size(), 0);
    if (search.drafter && search.drafter->reads_all_predictions()) {
        predict_all_rows();
    } else {
        predict_accepted_rows();
    }
}

void Worker::project(const float* states, int64_t rows, float* to) {
    const SharedLinear& expand = search.head.expand;
    if (expand) {
        const int64_t dim = search.model->width;
        float* wide = at_least(head_states, rows * (expand->outputs + dim));
        float* projected = wide + rows * expand->outputs;
        expand->run(states, rows, wide, Activation::RELU);
        std::copy_n(states, rows * dim, projected);
        search.head.shrink->run(wide, rows, projected, Activation::NONE, true);
        states = projected;
    }
    search.model->projection->run(states, rows, to);
}

// Predicts the tokens after a few rows of each sentence at a time, up to the first rejected token: the vocabulary
// projection of later rows is not needed.
void Worker::predict_accepted_rows() {
    const int64_t dim = search.model->width, vocabulary = search.model->projection->outputs;
    const int64_t max_rows = search.model->projection->efficient_rows();
    std::vector<size_t> pending(work.active.size()), still_pending;
    std::iota(pending.begin(), pending.end(), 0);
    while (!pending.empty()) {
        const int64_t rows_each = std::max<int64_t>(1, max_rows / static_cast<int64_t>(pending.size()));
        const auto next_rows = [&](size_t index) {
            return std::min(rows_each, work.drafts.rows(index) + 1 - work.emitted[index]);
        };
        int64_t rows = 0;
        for (const size_t index : pending) rows += next_rows(index);
        float* states = at_least(next_states, rows * dim);
        for (const size_t index : pending) {
            const float* from = work.rows.x.data() + (work.first_row[index] + work.emitted[index]) * dim;
            states = std::copy_n(from, next_rows(index) * dim, states);
        }
        float* row = at_least(scores, rows * vocabulary);
        project(next_states.data(), rows, row);
        still_pending.clear();
        for (const size_t index : pending) {
            const int64_t count = next_rows(index);
            if (emit_accepted(index, count, row)) still_pending.push_back(index);
            row += count * vocabulary;
        }
        pending.swap(still_pending);
    }
}

// Predicts the tokens after all rows, even after rejected tokens.
void Worker::predict_all_rows() {
    const int64_t rows = work.rows.size(), vocabulary = search.model->projection->outputs, dim = search.model->width;
    const int64_t max_rows = search.model->projection->efficient_rows();
    float* values = at_least(scores, max_rows * vocabulary);
    best.resize(rows);
    work.predicted.resize(rows);
    for_each_block(rows, max_rows, [&](int64_t first, int64_t count) {
        project(work.rows.x.data() + first * dim, count, values);
        for (int64_t row = first; row < first + count; ++row) {
            best[row] = best_token(values + (row - first) * vocabulary, batch.limits, work.rows.sentence[row],
                                   work.rows.position[row]);
            work.predicted[row] = best[row].token;
        }
    });
    for (size_t index = 0; index < work.active.size(); ++index) {
        for (bool is_accepted = true; is_accepted;) {
            const BestToken& next = best[work.first_row[index] + work.emitted[index]];
            is_accepted = emit(index, next.token, next.log_prob);
        }
    }
}

// Emits the tokens after `rows` rows of a sentence, up to the first rejected draft. Returns whether none was rejected.
bool Worker::emit_accepted(size_t index, int64_t rows, float* row) {
    const int64_t b = work.active[index], vocabulary = search.model->projection->outputs;
    for (int64_t end = work.emitted[index] + rows; work.emitted[index] < end; row += vocabulary) {
        const int64_t t = work.emitted[index], position = batch.lengths[b] + t;
        BestToken next;
        const bool is_drafted = t < work.drafts.count(index);
        if (search.acceptance && is_drafted) {
            to_log_probs(row, batch.limits, b, position);
            const int64_t drafted = work.drafts.token(index, t), forced = batch.limits.forced(b, position);
            // A forced token may have the score -inf, which argmax would not find.
            next.token = forced >= 0 ? forced : kernels().argmax(row, vocabulary);
            const bool is_allowed = forced < 0 && drafted != next.token && row[drafted] > -HUGE_VALF;
            if (is_allowed && search.acceptance->accepts(row, vocabulary, t, drafted, next.token)) next.token = drafted;
            next.log_prob = row[next.token];
        } else {
            next = best_token(row, batch.limits, b, position);
        }
        if (!emit(index, next.token, next.log_prob)) return false;
    }
    return true;
}

// Emits a token. Returns whether it equals the drafted one and the sentence continues, so that the next row is valid.
bool Worker::emit(size_t index, int64_t token, float log_prob) {
    const int64_t b = work.active[index], t = work.emitted[index]++,
                  column = b * batch.columns + batch.lengths[b] + t + 1;
    refuse_nan(log_prob);
    batch.tokens[column] = token;
    batch.log_probs[column] = log_prob;
    batch.finished[b] = token == batch.limits.eos;
    const bool was_drafted = t < work.drafts.count(index) && work.drafts.token(index, t) == token;
    work.accepted[index] += was_drafted;
    return was_drafted && !batch.finished[b];
}

void Worker::count_drafts() {
    for (size_t index = 0; index < work.active.size(); ++index) {
        const int64_t b = work.active[index];
        if (!batch.is_drafted[b] || batch.begins_with_prefix(b)) continue;
        for (int64_t t = 0; t < work.drafts.rows(index); ++t) {
            const size_t entry = counts.at(t, work.drafts.bin(index, t));
            counts.verified[entry] += 1;
            counts.accepted[entry] += t < work.accepted[index];
        }
    }
}

}  // namespace spec_dec
