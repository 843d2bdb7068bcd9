#include "greedy_search.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include "queue.h"
#include "worker.h"

namespace spec_dec {
namespace {

// A micro-batch is refilled once 1 / REFILL_SHARE of its sentences have finished: more frequent refills are slower.
constexpr int64_t REFILL_SHARE = 4;

// Adds a measurement. Of several for the same size the minimum is kept.
void add_cost(CostTable& table, double size, double seconds) {
    double& minimum = table.try_emplace(size, seconds).first->second;
    minimum = std::min(minimum, seconds);
}

}  // namespace

GreedySearch::GreedySearch(std::shared_ptr<const Transformer> model, OutputHead head, std::shared_ptr<Drafter> drafter,
                           std::shared_ptr<const Acceptance> acceptance, std::shared_ptr<Policy> policy)
    : model(model),
      verifier(model),
      head(std::move(head)),
      drafter(std::move(drafter)),
      acceptance(std::move(acceptance)),
      policy(std::move(policy)) {}

void GreedySearch::begin(Batch& batch) {
    batch.begin();
    const double began = seconds_now();
    if (drafter) drafter->begin_batch(batch);
    seconds[PREPARE] += seconds_now() - began;
    const int64_t width = drafter ? drafter->max_width(batch) : 0;
    verifier.begin(batch.sources, batch.columns + std::max(width, batch.limits.prefix_width) + 1);
}

int64_t GreedySearch::micro_batch_size(const Batch& batch, const RunOptions& options) const {
    const auto with_drafts = [&](int64_t width) {
        return std::max({int64_t{1}, options.min_sentences, options.micro_batch_rows / (1 + width)});
    };
    const int64_t width = drafter ? drafter->max_width(batch) : 0;
    if (!policy) return with_drafts(width);
    const int64_t without = std::min(with_drafts(0), batch.sentences());
    const int64_t drafting = std::min(with_drafts(policy->plan(without).width), without);
    return policy->plan(drafting).rate > policy->plan(without).greedy_rate ? drafting : without;
}

void GreedySearch::run(Batch& batch, const RunOptions& options) {
    std::vector<int64_t> waiting;
    for (int64_t b = 0; b < batch.sentences(); ++b) {
        if (!batch.finished[b]) waiting.push_back(b);
    }
    if (waiting.empty()) return;
    const int64_t count = waiting.size(), workers = std::min(threads::available(), count);
    // No thread takes more than its share of the sentences.
    const int64_t most = std::min(micro_batch_size(batch, options), (count + workers - 1) / workers);
    Queue queue(std::move(waiting));
    std::mutex summing;
    queue.run(workers, [&](int64_t number) {
        Worker worker(*this, batch);
        std::vector<int64_t>& active = worker.active();
        double checked = seconds_now();
        // Adds up to `count` sentences. Those that an earlier call began are not begun again.
        const auto refill = [&](int64_t count) {
            const std::vector<int64_t> sentences = queue.take(count);
            std::vector<int64_t> fresh;
            for (const int64_t b : sentences) (batch.lengths[b] == 0 ? fresh : active).push_back(b);
            if (!fresh.empty()) worker.admit(fresh, most);
            return !sentences.empty();
        };
        queue.begin();
        if (options.iterations < 0) {
            do {
                while (!queue.has_failed) {
                    const int64_t missing = most - static_cast<int64_t>(active.size());
                    if (missing * REFILL_SHARE >= most) refill(missing);
                    if (active.empty()) break;
                    worker.iterate();
                    queue.offer(active);
                    options.check(number, checked);
                }
            } while (queue.wait(active));
        } else {
            while (refill(most)) {
                for (int64_t i = 0; i < options.iterations && !active.empty(); ++i) worker.iterate();
                active.clear();
            }
        }
        worker.learn();
        std::lock_guard<std::mutex> lock(summing);
        for (int stage = 0; stage < STAGES; ++stage) seconds[stage] += worker.seconds[stage];
    });
}

// Measures the first iterations of a batch of synthetic sources. Half of the drafted tokens are accepted.
void GreedySearch::profile(int64_t sentences, int64_t width, Costs& costs) {
    constexpr int64_t SOURCE_LENGTH = 24, MAX_ITERATIONS = 4;
    constexpr double MAX_SECONDS = 0.0015;
    Batch batch;
    batch.limits.vocabulary = model->projection->outputs;
    batch.limits.max_len = SOURCE_LENGTH + MAX_ITERATIONS * (width + 1);
    SentenceLimits limits;
    limits.min_len = limits.max_len = batch.limits.max_len;
    batch.limits.of_sentences.assign(sentences, limits);
    batch.limits.pad = 1 % batch.limits.vocabulary;
    batch.limits.eos = 2 % batch.limits.vocabulary;
    for (int64_t b = 0; b <= sentences; ++b) batch.sources.begins.push_back(b * SOURCE_LENGTH);
    batch.sources.lengths.assign(sentences, batch.sources.longest = SOURCE_LENGTH);
    const int64_t rows = sentences * SOURCE_LENGTH, dim = model->layers[0].cross_key_value->inputs;
    // Ids of the special symbols, which every dictionary has.
    for (int64_t row = 0; row < rows; ++row) batch.sources.tokens.push_back(row % 4);
    for (auto* values : {&batch.sources.encoded, &batch.sources.embedding}) {
        values->resize(rows * dim);
        for (int64_t i = 0; i < rows * dim; ++i) (*values)[i] = static_cast<float>(i * 7919 % 101) / 101 - 0.5f;
    }
    begin(batch);
    Worker worker(*this, batch);
    worker.profiled_width = width;
    std::vector<int64_t> all(sentences);
    std::iota(all.begin(), all.end(), 0);
    worker.admit(all, sentences);
    if (width > 0) costs.prepare = std::min(costs.prepare, worker.seconds[PREPARE] / (sentences * SOURCE_LENGTH));
    double spent = 0;
    for (int64_t i = 0; i < MAX_ITERATIONS && spent < MAX_SECONDS; ++i) {
        StageSeconds& spent_on = worker.seconds;
        spent_on.fill(0);
        worker.iterate();
        const double drafting = spent_on[DRAFT] + spent_on[OBSERVE], verifying = spent_on[VERIFY] + spent_on[ACCEPT];
        spent += drafting + verifying;
        if (width == 0) {
            add_cost(costs.step, sentences, verifying);
        } else {
            add_cost(costs.draft, sentences * width, drafting);
        }
        if (width > 0 || sentences == 1) add_cost(costs.verify, sentences * (1 + width), verifying);
    }
}

void GreedySearch::profile() {
    if (!policy || !drafter || policy->always_drafts) return;
    const int64_t width = policy->width;
    // Costs of larger calls are extrapolated from these sizes.
    Costs costs;
    costs.prepare = HUGE_VAL;
    // Several rounds: other programs may take the processor for some milliseconds.
    for (int round = 0; round < 3; ++round) {
        for (const int64_t sentences : {1, 4, 16}) profile(sentences, 0, costs);
        for (const int64_t tokens : {1, 3, 7, 15, 31}) {
            if (tokens <= width) profile(1, tokens, costs);
        }
        profile(4, std::min<int64_t>(width, 7), costs);
    }
    // Make costs monotonic: noise must not make a larger call cheaper.
    for (CostTable* table : {&costs.step, &costs.draft, &costs.verify}) {
        double minimum = HUGE_VAL;
        for (auto point = table->rbegin(); point != table->rend(); ++point) {
            point->second = minimum = std::min(minimum, point->second);
        }
    }
    policy->costs = std::move(costs);
}

}  // namespace spec_dec
