#include "greedy_search.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include "costs.h"
#include "queue.h"
#include "worker.h"

namespace spec_dec {
namespace {

// A micro-batch is refilled once 1 / REFILL_SHARE of its sentences have finished: more frequent refills are slower.
constexpr int64_t REFILL_SHARE = 4;

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
    if (drafter) timed(seconds[PREPARE], [&] { drafter->begin_batch(batch); });
    verifier.begin(batch.sources, batch.columns + max_width(batch) + 1);
}

int64_t GreedySearch::micro_batch_size(const Batch& batch, const RunOptions& options) const {
    const double share = drafted_share(batch);
    const auto with_drafts = [&](int64_t width) {
        const auto rows = static_cast<int64_t>(1 + share * static_cast<double>(width));
        return std::max({int64_t{1}, options.min_sentences, options.micro_batch_rows / rows});
    };
    if (!policy) return with_drafts(max_width(batch));
    const int64_t without = std::min(with_drafts(0), batch.sentences());
    const int64_t drafting = std::min(with_drafts(policy->plan(without).width), without);
    const Plan plan = policy->plan(drafting);
    // The mean time per token of sentences with and without drafts.
    const double per_token = share / plan.rate + (share < 1 ? (1 - share) / plan.greedy_rate : 0);
    return 1 / per_token > policy->plan(without).greedy_rate ? drafting : without;
}

// Returns the share of the waiting sentences that can have drafts; 1 for an open batch, whose sentences come later.
double GreedySearch::drafted_share(const Batch& batch) const {
    if (!drafter || batch.is_open) return 1;
    int64_t drafted = 0, waiting = 0;
    for (int64_t b = 0; b < batch.sentences(); ++b) {
        if (batch.finished[b]) continue;
        ++waiting;
        drafted += drafter->can_draft(batch, b);
    }
    return waiting > 0 ? static_cast<double>(drafted) / static_cast<double>(waiting) : 0;
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
        worker.finish();
        std::lock_guard<std::mutex> lock(summing);
        for (int stage = 0; stage < STAGES; ++stage) seconds[stage] += worker.seconds[stage];
    });
}

void GreedySearch::profile() {
    if (policy && drafter && !policy->always_drafts) policy->costs = measure_costs(model, head, drafter, policy->width);
}

}  // namespace spec_dec
