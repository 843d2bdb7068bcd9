#include "worker.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels.h"

namespace spec_dec {
namespace {

// Iterations between two updates of the policy.
constexpr int64_t LEARN_AFTER = 8;

}  // namespace

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
    timed(seconds[ENCODE], [&] { search.verifier.read_sources(sentences); }, clock);
    if (!drafted.empty()) timed(seconds[PREPARE], [&] { search.drafter->begin(batch, drafted); }, clock);
    work.active.insert(work.active.end(), sentences.begin(), sentences.end());
}

void Worker::iterate() {
    if (search.policy && search.drafter) timed(seconds[PREPARE], [&] { start_late(); }, clock);
    timed(seconds[DRAFT], [&] { draft(); }, clock);
    timed(seconds[VERIFY], [&] { verify(); }, clock);
    timed(seconds[ACCEPT], [&] { accept(); }, clock);
    if (search.drafter) timed(seconds[OBSERVE], [&] { search.drafter->observe(work); }, clock);
    if (search.drafter && search.policy) count_drafts();
    for (size_t index = 0; index < work.active.size(); ++index) {
        const int64_t b = work.active[index];
        batch.lengths[b] += work.emitted[index];
        batch.emitted[b].push_back(static_cast<int32_t>(work.emitted[index]));
        batch.drafted[b] = work.drafts.count(index);
        batch.accepted[b] = work.accepted[index];
        if (batch.finished[b] && search.policy) search.policy->learn_length(batch.sources.length(b), batch.lengths[b]);
    }
    const size_t before = work.active.size();
    const auto has_ended = [&](int64_t b) { return batch.finished[b] != 0; };
    work.active.erase(std::remove_if(work.active.begin(), work.active.end(), has_ended), work.active.end());
    const bool has_finished = work.active.size() < before;
    const bool is_new = search.policy && search.policy->is_new();
    const bool is_due = ++iterations % LEARN_AFTER == 0 || work.active.empty() || is_new;
    if (is_due) learn();
    if (has_finished || predictor.unscored() >= Predictor::SCORED_AT_ONCE) predictor.score_emitted();
}

void Worker::drop(int64_t sentence) {
    predictor.forget(sentence);
    work.active.erase(std::remove(work.active.begin(), work.active.end(), sentence), work.active.end());
}

void Worker::finish() {
    learn();
    predictor.score_emitted();
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
    int64_t drafted = 0, width = search.max_width(batch);
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
    if (search.filled_width > 0) {
        search.drafter->costly().draft(work);
        drafts.fill(0);
    } else {
        search.drafter->draft(work);
    }
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

// Predicts the tokens after a few rows of each sentence at a time, up to the first rejected token: the vocabulary
// projection of later rows is not needed.
void Worker::predict_accepted_rows() {
    const int64_t dim = search.model->width, max_rows = search.model->projection->efficient_rows;
    const bool needs_all = search.acceptance && search.acceptance->reads_log_probs;
    std::vector<size_t> pending(work.active.size()), still_pending;
    std::iota(pending.begin(), pending.end(), 0);
    while (!pending.empty()) {
        const int64_t rows_each = std::max<int64_t>(1, max_rows / static_cast<int64_t>(pending.size()));
        const auto next_rows = [&](size_t index) {
            return std::min(rows_each, work.drafts.rows(index) + 1 - work.emitted[index]);
        };
        std::vector<int64_t> sentences;
        for (const size_t index : pending) sentences.insert(sentences.end(), next_rows(index), work.active[index]);
        float* states = at_least(next_states, sentences.size() * dim);
        for (const size_t index : pending) {
            const float* from = work.rows.x.data() + (work.first_row[index] + work.emitted[index]) * dim;
            states = std::copy_n(from, next_rows(index) * dim, states);
        }
        predictor.project(next_states.data(), sentences, needs_all);
        still_pending.clear();
        int64_t row = 0;
        for (const size_t index : pending) {
            const int64_t end = row + next_rows(index);
            bool goes_on = true;
            for (; goes_on && row < end; ++row) goes_on = emit(index, next_token(index, row), row);
            if (goes_on) still_pending.push_back(index);
            row = end;
        }
        pending.swap(still_pending);
    }
}

// Predicts the tokens after all rows, even after rejected tokens.
void Worker::predict_all_rows() {
    const int64_t max_rows = search.model->projection->efficient_rows, dim = search.model->width;
    work.predicted.clear();
    size_t index = 0;
    bool goes_on = true;
    for_each_block(work.rows.size(), max_rows, [&](int64_t first, int64_t count) {
        const auto sentences = work.rows.sentence.begin() + first;
        predictor.project(work.rows.x.data() + first * dim, {sentences, sentences + count}, false);
        for (int64_t row = 0; row < count; ++row) {
            if (index + 1 < work.active.size() && first + row == work.first_row[index + 1]) {
                ++index;
                goes_on = true;
            }
            const int64_t token = predictor.best(row, work.rows.position[first + row]);
            work.predicted.push_back(token);
            if (goes_on) goes_on = emit(index, token, row);
        }
    });
}

// Returns the next token of a sentence: the best one after a row, or a drafted one that a rule accepts.
int64_t Worker::next_token(size_t index, int64_t row) {
    const int64_t t = work.emitted[index], best = predictor.best(row, batch.lengths[work.active[index]] + t);
    if (!search.acceptance || t >= work.drafts.count(index)) return best;
    const float* scores = predictor.scores_of(row);
    const int64_t drafted = work.drafts.token(index, t);
    const bool is_allowed = drafted != best && scores[drafted] > -HUGE_VALF;
    const bool is_accepted =
        is_allowed && search.acceptance->accepts(scores, batch.limits.vocabulary, t, drafted, best);
    return is_accepted ? drafted : best;
}

// Emits a token after a row. Returns whether it equals the drafted one and the sentence continues, so that the next row
// is valid.
bool Worker::emit(size_t index, int64_t token, int64_t row) {
    const int64_t b = work.active[index], t = work.emitted[index]++, position = batch.lengths[b] + t,
                  column = b * batch.columns + position + 1;
    batch.tokens[column] = token;
    batch.log_probs[column] = predictor.log_prob(row, position, token);
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
