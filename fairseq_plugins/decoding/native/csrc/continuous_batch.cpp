#include "continuous_batch.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "worker.h"

namespace spec_dec {
namespace {

// While more sentences wait than there is room for, they are admitted in groups, once 1 / REFILL_SHARE of a thread's
// room is free: products of more rows are faster.
constexpr int64_t REFILL_SHARE = 4;
// Sentences of a thread, at most: they bound the memory.
constexpr int64_t MAX_SENTENCES = 64;
// Memory of positions after this one is given back when a sentence has ended.
constexpr int64_t KEPT_POSITIONS = 256;

}  // namespace

ContinuousBatch::ContinuousBatch(const Transformer& encoder, GreedySearch& greedy, BeamSearch* beam, Batch& batch,
                                 const RunOptions& run_options, const OpenOptions& options)
    : options(options), encoder(encoder), greedy(greedy), beam(beam), batch(batch), run_options(run_options) {
    const int64_t per_thread = options.max_sentences > 0
                                   ? (options.max_sentences + options.threads - 1) / options.threads
                                   : std::min(MAX_SENTENCES, std::max(run_options.micro_batch_rows, int64_t{1}));
    const int64_t count = per_thread * options.threads;
    batch.is_open = true;
    batch.limits.max_len = options.max_len;
    batch.limits.of_sentences.assign(count, {});
    batch.sources.reserve(count, options.max_source, encoder.width);
    batch.drafts.assign(count, {});
    slots.resize(count);
    hypotheses.resize(count);
    steps.assign(count, 0);
    for (int64_t b = count - 1; b >= 0; --b) free.push_back(b);
    beam ? beam->begin(batch) : greedy.begin(batch);
    try {
        for (int64_t number = 0; number < options.threads; ++number) workers.emplace_back([this] { run_worker(); });
    } catch (...) {
        close();
        throw;
    }
}

void ContinuousBatch::admit(Request request) {
    {
        std::lock_guard<std::mutex> lock(mutex);
        if (failure) std::rethrow_exception(failure);
        require(!is_closed, "the batch is closed");
        waiting.push_back(std::move(request));
    }
    has_work.notify_one();
}

void ContinuousBatch::cancel(int64_t id) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto active = slot_of.find(id);
    if (active != slot_of.end()) slots[active->second].is_cancelled = true;
    const auto is_cancelled = [id](const Request& request) { return request.id == id; };
    waiting.erase(std::remove_if(waiting.begin(), waiting.end(), is_cancelled), waiting.end());
}

std::vector<Event> ContinuousBatch::take(double seconds) {
    std::unique_lock<std::mutex> lock(mutex);
    has_events.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return !events.empty() || is_closed; });
    if (events.empty() && failure) std::rethrow_exception(failure);
    return std::exchange(events, {});
}

std::pair<int64_t, int64_t> ContinuousBatch::load() {
    std::lock_guard<std::mutex> lock(mutex);
    return {waiting.size(), slot_of.size()};
}

void ContinuousBatch::close() {
    std::vector<std::thread> ending;  // each is joined once, also when two threads close
    {
        std::lock_guard<std::mutex> lock(mutex);
        is_closed = true;
        ending.swap(workers);
    }
    has_work.notify_all();
    has_events.notify_all();
    for (std::thread& worker : ending) worker.join();
}

std::unique_ptr<SearchWorker> ContinuousBatch::make_worker() {
    if (beam) return beam->worker(batch, hypotheses, steps);
    return std::make_unique<Worker>(greedy, batch);
}

// Moves waiting sentences to free slots, and waits for one if none is active. Returns them; none if the batch is
// closed.
std::vector<int64_t> ContinuousBatch::take_waiting(const std::vector<int64_t>& active) {
    std::unique_lock<std::mutex> lock(mutex);
    if (active.empty()) {
        --busy_workers;
        has_work.wait(lock, [&] { return is_closed || (!waiting.empty() && !free.empty()); });
        ++busy_workers;
    }
    const int64_t count = active.size(), threads = options.threads;
    // A thread that decodes alone may use the others' cores.
    threads::set_own(busy_workers > 1 ? 1 : threads);
    if (is_closed || waiting.empty()) return {};
    int64_t room = static_cast<int64_t>(slots.size()) / threads - count;
    if (!beam) room = std::min(room, greedy.micro_batch_size(batch, run_options) - count);
    int64_t rows = 0;  // of a beam search
    for (const int64_t b : active) rows += batch.limits.of(b).beam;
    const auto waiting_count = static_cast<int64_t>(waiting.size());
    if (waiting_count > room && room * REFILL_SHARE < room + count) return {};
    // No thread takes more than its share, so that idle ones get sentences.
    const auto all = static_cast<int64_t>(slot_of.size()) + waiting_count;
    const int64_t share = std::max<int64_t>((all + threads - 1) / threads - count, count == 0);
    const int64_t taken = std::min({room, share, waiting_count, static_cast<int64_t>(free.size())});
    std::vector<int64_t> fresh;
    for (int64_t n = 0; n < taken; ++n) {
        rows += waiting.front().limits.beam;
        if (beam && rows > run_options.micro_batch_rows && count + n > 0) break;
        Request request = std::move(waiting.front());
        waiting.pop_front();
        const int64_t b = free.back();
        free.pop_back();
        slots[b] = {request.id, request.streams, false, 0};
        slot_of[request.id] = b;
        batch.sources.set(b, request.source.data(), request.source.size());
        batch.limits.of_sentences[b] = std::move(request.limits);
        batch.drafts[b] = std::move(request.drafts);
        fresh.push_back(b);
    }
    std::sort(fresh.begin(), fresh.end());
    if (!waiting.empty() && !free.empty()) has_work.notify_one();
    return fresh;
}

// Begins sentences from their start.
void ContinuousBatch::begin(SearchWorker& worker, const std::vector<int64_t>& sentences, int64_t batch_size) {
    for (const int64_t b : sentences) {
        batch.restart(b);
        hypotheses[b].clear();
        steps[b] = 0;
    }
    batch.sources.encode(encoder, sentences);
    worker.admit(sentences, batch_size);
}

// Reports what the last iteration of sentences emitted. Returns those that go on.
std::vector<int64_t> ContinuousBatch::report(const std::vector<int64_t>& sentences) {
    std::vector<Event> reported;
    std::vector<int64_t> ended, kept;
    for (const int64_t b : sentences) {
        const int64_t* output = batch.output(b);
        Slot& slot = slots[b];
        if (slot.streams && !beam && batch.lengths[b] > slot.reported) {
            Event event;
            event.id = slot.id;
            event.tokens.assign(output + slot.reported, output + batch.lengths[b]);
            event.drafted = batch.drafted[b];
            event.accepted = batch.accepted[b];
            slot.reported = batch.lengths[b];
            reported.push_back(std::move(event));
        }
        if (!batch.finished[b]) {
            kept.push_back(b);
            continue;
        }
        Event event;
        event.id = slot.id;
        event.is_end = true;
        if (beam) {
            event.hypotheses = std::move(hypotheses[b]);
            event.steps = steps[b];
        } else {
            const float* log_probs = batch.log_probs.data() + b * batch.columns + 1;
            event.tokens.assign(output, output + batch.lengths[b]);
            event.log_probs.assign(log_probs, log_probs + batch.lengths[b]);
            event.emitted = std::move(batch.emitted[b]);
        }
        reported.push_back(std::move(event));
        ended.push_back(b);
    }
    if (!reported.empty() || !ended.empty()) push(std::move(reported), ended);
    return kept;
}

// Adds events, and frees the slots of sentences that have ended or been cancelled.
void ContinuousBatch::push(std::vector<Event> reported, const std::vector<int64_t>& ended) {
    for (const int64_t b : ended) {
        if (std::max({batch.lengths[b], steps[b], batch.sources.length(b)}) <= KEPT_POSITIONS) continue;
        beam ? beam->release(b, KEPT_POSITIONS) : greedy.release(b, KEPT_POSITIONS);
    }
    {
        std::lock_guard<std::mutex> lock(mutex);
        for (Event& event : reported) {
            const auto found = slot_of.find(event.id);
            if (found != slot_of.end() && !slots[found->second].is_cancelled) events.push_back(std::move(event));
        }
        for (const int64_t b : ended) {
            slot_of.erase(slots[b].id);
            slots[b] = {};
            free.push_back(b);
        }
    }
    has_events.notify_one();
}

// Decodes each sentence again by itself after an error, so that one that fails harms no other.
void ContinuousBatch::retry_alone(const std::vector<int64_t>& sentences) {
    for (const int64_t b : sentences) {
        try {
            const std::unique_ptr<SearchWorker> worker = make_worker();
            begin(*worker, {b}, 1);
            bool goes_on = true;
            do {
                worker->iterate();
                goes_on = !report({b}).empty();
            } while (goes_on && !is_dropped(b));
            // The slot of a sentence that has ended may be another's by now.
            if (goes_on) push({}, {b});
        } catch (const std::exception& error) {
            Event event;
            event.id = slots[b].id;
            event.is_end = true;
            event.error = error.what();
            event.is_forbidden_eos = dynamic_cast<const std::domain_error*>(&error) != nullptr;
            push({std::move(event)}, {b});
        }
    }
}

bool ContinuousBatch::is_dropped(int64_t sentence) {
    std::lock_guard<std::mutex> lock(mutex);
    return is_closed || slots[sentence].is_cancelled;
}

// Runs a thread. Its exception, which is of no sentence, such as that of no memory, closes the batch.
void ContinuousBatch::run_worker() {
    try {
        work();
    } catch (...) {
        {
            std::lock_guard<std::mutex> lock(mutex);
            if (!failure) failure = std::current_exception();
            is_closed = true;
        }
        has_work.notify_all();
        has_events.notify_all();
    }
}

// The loop of a thread.
void ContinuousBatch::work() {
    std::unique_ptr<SearchWorker> worker = make_worker();
    std::vector<int64_t> active;
    {
        std::lock_guard<std::mutex> lock(mutex);
        ++busy_workers;
    }
    while (true) {
        const std::vector<int64_t> fresh = take_waiting(active);
        std::vector<int64_t> dropped;
        {
            std::lock_guard<std::mutex> lock(mutex);
            if (is_closed) return;
            for (const int64_t b : active) {
                if (slots[b].is_cancelled) dropped.push_back(b);
            }
        }
        for (const int64_t b : dropped) {
            worker->drop(b);
            active.erase(std::find(active.begin(), active.end(), b));
        }
        if (!dropped.empty()) push({}, dropped);
        active.insert(active.end(), fresh.begin(), fresh.end());
        if (active.empty()) continue;
        try {
            if (!fresh.empty()) begin(*worker, fresh, active.size());
            worker->iterate();
            active = report(active);
        } catch (...) {
            worker = make_worker();
            retry_alone(active);
            active.clear();
        }
    }
}

}  // namespace spec_dec
