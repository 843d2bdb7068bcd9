// Continuous batching: sentences join and leave a running batch. Threads decode it until it is closed.
//
// A batch has a fixed number of slots, each with room for the longest source and output. Memory of a slot is mapped
// when it is first used. A sentence's output does not depend on the sentences beside it.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "beam_search.h"
#include "greedy_search.h"

namespace spec_dec {

// A sentence to decode.
struct Request {
    int64_t id = 0;
    std::vector<int64_t> source;
    SentenceLimits limits;
    std::vector<std::vector<int64_t>> drafts;
    bool streams = false;  // whether each iteration is reported
};

// What happened to a sentence: an iteration that is streamed, or its end.
struct Event {
    int64_t id = 0;
    bool is_end = false;
    std::vector<int64_t> tokens;         // of the iteration; at the end, the whole output
    int64_t drafted = 0, accepted = 0;   // numbers of tokens in the iteration
    std::vector<float> log_probs;        // at the end: of each token
    std::vector<int32_t> emitted;        // at the end: numbers of tokens of each iteration
    std::vector<Hypothesis> hypotheses;  // at the end of a beam search, in the order in which they ended
    int64_t steps = 0;                   // of a beam search
    std::string error;                   // at the end: why there is no output; empty for none
    bool is_forbidden_eos = false;       // whether the error is that EOS is forbidden at the maximum length
};

struct OpenOptions {
    int64_t threads = 1;
    int64_t max_sentences = 0;  // decoded at a time; 0 for what is efficient
    int64_t max_source = 0;     // tokens
    int64_t max_len = 0;        // largest of a sentence's limits
};

class ContinuousBatch {
public:
    // Opens a batch and starts its threads. The searches and the encoder must outlive it, and decode nothing else
    // meanwhile. beam: null for greedy search. batch: empty, with the limits that all sentences share.
    ContinuousBatch(const Transformer& encoder, GreedySearch& greedy, BeamSearch* beam, Batch& batch,
                    const RunOptions& run_options, const OpenOptions& options);

    // Closes the batch; sentences that have not ended are dropped.
    ~ContinuousBatch() { close(); }

    // Adds a sentence that fits the batch, which waits until there is room. Throws std::invalid_argument once the batch
    // is closed, and the exception of a thread that has failed.
    void admit(Request request);

    // Drops a sentence. It has no more events, except those already reported.
    void cancel(int64_t id);

    // Returns the next events; waits for the first one up to `seconds`. Throws the exception of a thread that has
    // failed: then sentences that have not ended are dropped.
    std::vector<Event> take(double seconds);

    // Returns the numbers of waiting and of active sentences.
    std::pair<int64_t, int64_t> load();

    // Stops the threads after their current iteration. May be called several times.
    void close();

    const OpenOptions options;

private:
    // A sentence in a slot.
    struct Slot {
        int64_t id = -1;
        bool streams = false, is_cancelled = false;
        int64_t reported = 0;  // tokens of the output
    };

    std::unique_ptr<SearchWorker> make_worker();
    void run_worker();
    void work();
    std::vector<int64_t> take_waiting(const std::vector<int64_t>& active);
    void begin(SearchWorker& worker, const std::vector<int64_t>& sentences, int64_t batch_size);
    void retry_alone(const std::vector<int64_t>& sentences);
    std::vector<int64_t> report(const std::vector<int64_t>& sentences);
    bool is_dropped(int64_t sentence);
    void push(std::vector<Event> events, const std::vector<int64_t>& ended);

    const Transformer& encoder;
    GreedySearch& greedy;
    BeamSearch* const beam;
    Batch& batch;
    const RunOptions run_options;
    std::vector<std::vector<Hypothesis>> hypotheses;  // [slots]
    std::vector<int64_t> steps;                       // [slots]

    std::mutex mutex;
    std::condition_variable has_work, has_events;
    std::deque<Request> waiting;
    std::vector<int64_t> free;  // slots; the one used last is used next
    std::vector<Slot> slots;
    std::unordered_map<int64_t, int64_t> slot_of;  // of an id
    std::vector<Event> events;
    int64_t busy_workers = 0;
    bool is_closed = false;
    std::exception_ptr failure;  // of a thread
    std::vector<std::thread> workers;
};

}  // namespace spec_dec
