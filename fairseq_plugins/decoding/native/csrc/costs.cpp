#include "costs.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "worker.h"

namespace spec_dec {
namespace {

// Returns the time that this thread has had the processor: other programs may take it for some milliseconds.
double thread_seconds() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Returns the clock of measurements. Some sandboxes count a thread's time in units of 10 ms, in which calls take none.
Clock finest_clock() {
    constexpr double SHORT = 20e-6;
    const double began = thread_seconds(), end = seconds_now() + SHORT;
    while (seconds_now() < end) continue;
    return thread_seconds() > began ? thread_seconds : seconds_now;
}

// Accepts the first half of a draft.
Acceptance accept_half(int64_t width) {
    return {[width](const float*, int64_t, int64_t offset, int64_t, int64_t) { return 2 * offset < width; }, false};
}

// Adds a measurement. Of several for the same size the minimum is kept.
void add_cost(CostTable& table, double size, double seconds) {
    double& minimum = table.try_emplace(size, seconds).first->second;
    minimum = std::min(minimum, seconds);
}

// Returns a batch of synthetic sources whose outputs do not end.
Batch synthetic_batch(const Transformer& model, int64_t sentences, int64_t source_length, int64_t max_len) {
    Batch batch;
    batch.limits.vocabulary = model.projection->outputs;
    batch.limits.pad = 1;
    batch.limits.eos = -1;
    batch.limits.max_len = max_len;
    SentenceLimits limits;
    limits.min_len = limits.max_len = max_len;
    limits.needs_log_probs = false;
    batch.limits.of_sentences.assign(sentences, limits);
    for (int64_t b = 0; b <= sentences; ++b) batch.sources.begins.push_back(b * source_length);
    batch.sources.lengths.assign(sentences, batch.sources.longest = source_length);
    const int64_t rows = sentences * source_length, dim = model.layers[0].cross_key_value->inputs;
    // Ids of the special symbols, which every dictionary has. No sentence equals the one before it, which is encoded
    // once for both.
    for (int64_t row = 0; row < rows; ++row) batch.sources.tokens.push_back((row + row / source_length) % 4);
    for (auto* values : {&batch.sources.encoded, &batch.sources.embedding}) {
        values->resize(rows * dim);
        for (int64_t i = 0; i < rows * dim; ++i) (*values)[i] = static_cast<float>(i * 7919 % 101) / 101 - 0.5f;
    }
    return batch;
}

// Measures the first iterations of a search. drafted: tokens of each draft, 0 without a drafter.
void measure(GreedySearch& search, const Transformer& model, int64_t sentences, int64_t drafted, Clock clock,
             Costs& costs) {
    constexpr int64_t SOURCE_LENGTH = 24, MAX_ITERATIONS = 4;
    constexpr double MAX_SECONDS = 0.0015;
    Batch batch = synthetic_batch(model, sentences, SOURCE_LENGTH, SOURCE_LENGTH + MAX_ITERATIONS * (drafted + 1));
    search.begin(batch);
    Worker worker(search, batch, clock);
    std::vector<int64_t> all(sentences);
    std::iota(all.begin(), all.end(), 0);
    worker.admit(all, sentences);
    if (drafted > 0) costs.prepare = std::min(costs.prepare, worker.seconds[PREPARE] / (sentences * SOURCE_LENGTH));
    double spent = 0;
    for (int64_t i = 0; i < MAX_ITERATIONS && spent < MAX_SECONDS; ++i) {
        StageSeconds& spent_on = worker.seconds;
        spent_on.fill(0);
        worker.iterate();
        const double drafting = spent_on[DRAFT] + spent_on[OBSERVE], verifying = spent_on[VERIFY] + spent_on[ACCEPT];
        spent += drafting + verifying;
        if (drafted == 0) {
            add_cost(costs.step, sentences, verifying);
        } else {
            add_cost(costs.draft, sentences * drafted, drafting);
        }
        if (drafted > 0 || sentences == 1) add_cost(costs.verify, sentences * (1 + drafted), verifying);
    }
}

}  // namespace

CostTable consistent(CostTable measured) {
    double dearest = HUGE_VAL;
    for (auto point = measured.rbegin(); point != measured.rend(); ++point) {
        point->second = dearest = std::min(dearest, point->second);
    }
    double dearest_unit = HUGE_VAL;
    for (auto& [size, seconds] : measured) {
        dearest_unit = std::min(dearest_unit, seconds / size);
        seconds = size * dearest_unit;
    }
    return measured;
}

Costs measure_costs(std::shared_ptr<const Transformer> model, const OutputHead& head, std::shared_ptr<Drafter> drafter,
                    int64_t width) {
    Costs costs;
    costs.prepare = HUGE_VAL;
    costs.can_be_free = &drafter->costly() != drafter.get();
    const Clock clock = finest_clock();
    const auto without_drafts = [&](int64_t sentences) {
        GreedySearch search(model, head, nullptr, nullptr, nullptr);
        measure(search, *model, sentences, 0, clock, costs);
    };
    const auto with_drafts = [&](int64_t sentences, int64_t drafted) {
        GreedySearch search(model, head, drafter, std::make_shared<Acceptance>(accept_half(drafted)),
                            std::make_shared<Policy>(drafted, /*always_drafts=*/true));
        search.filled_width = drafted;
        measure(search, *model, sentences, drafted, clock, costs);
    };
    // Several rounds: other programs may take the caches for some milliseconds.
    for (int round = 0; round < 3; ++round) {
        for (const int64_t sentences : {1, 4, 16}) without_drafts(sentences);
        for (const int64_t tokens : {1, 3, 7, 15, 31}) {
            if (tokens <= width) with_drafts(1, tokens);
        }
        with_drafts(4, std::min<int64_t>(width, 7));
    }
    for (CostTable* table : {&costs.step, &costs.draft, &costs.verify}) *table = consistent(std::move(*table));
    return costs;
}

}  // namespace spec_dec
