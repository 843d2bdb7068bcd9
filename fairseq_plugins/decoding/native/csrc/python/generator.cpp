// The Python class that decodes batches with a method.

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "../beam_search.h"
#include "../continuous_batch.h"
#include "../greedy_search.h"
#include "binding.h"

namespace spec_dec {
namespace {

// Rows of a thread's micro-batch. Too few make matrix products slow. Too many push a narrow model's weights out of the
// cache; a wide model's weights do not fit into it anyway.
constexpr int NARROW = 256;
constexpr int64_t ROWS_IF_NARROW = 24, ROWS = 128;

using Head = std::pair<SharedLinear, SharedLinear>;

// A method with its models. Its memory is reused for each batch.
class Generator {
public:
    Generator(std::shared_ptr<Transformer> encoder, std::shared_ptr<Transformer> verifier,
              std::shared_ptr<Drafter> drafter, std::shared_ptr<const Acceptance> acceptance,
              std::shared_ptr<Policy> policy, std::optional<Head> head, int64_t beam)
        : encoder(std::move(encoder)),
          verifier(verifier),
          policy(policy),
          beam(beam),
          greedy(verifier, head ? OutputHead{head->first, head->second} : OutputHead{}, std::move(drafter),
                 std::move(acceptance), policy),
          search(verifier, std::max<int64_t>(beam, 1)) {
        require(verifier && verifier->projection && verifier->layers[0].cross_query, "a generator needs a decoder");
        require(beam <= 0 || 2 * beam + 2 <= verifier->projection->outputs, "the beam is too wide for the vocabulary");
        if (head) check_head(head->first, head->second);
        options.micro_batch_rows = verifier->width <= NARROW ? ROWS_IF_NARROW : ROWS;
        greedy.profile();
        options.check_signals = [] {
            nb::gil_scoped_acquire lock;
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
        };
    }

    // Begins a batch: encodes its sources, unless `encoded` [rows, D] is given, of all source tokens one after the
    // other.
    void begin(std::vector<Request> sentences, int64_t pad, int64_t unk, int64_t eos, int64_t first_token,
               const Maybe<float, 2>& encoded, const Maybe<float, 2>& embedding) {
        int64_t max_len = 0;
        for (const Request& sentence : sentences) max_len = std::max(max_len, sentence.limits.max_len);
        set_limits(pad, unk, eos, first_token, max_len);
        batch.sources.clear();
        batch.drafts.clear();
        for (Request& sentence : sentences) {
            check(sentence, max_len);
            batch.sources.add(sentence.source);
            batch.limits.of_sentences.push_back(std::move(sentence.limits));
            batch.drafts.push_back(std::move(sentence.drafts));
        }
        const nb::gil_scoped_release release;
        const double began = seconds_now();
        const int64_t count = batch.sentences(), rows = batch.sources.rows();
        if (encoded) {
            require(static_cast<int>(encoded->shape(1)) == verifier->layers[0].cross_key_value->inputs,
                    "encoded sources of another width");
            require(
                static_cast<int64_t>(encoded->shape(0)) == rows && (!embedding || embedding->size() == encoded->size()),
                "encoded sources of another size");
            batch.sources.encoded.assign(encoded->data(), encoded->data() + encoded->size());
            batch.sources.embedding.clear();
            if (embedding) batch.sources.embedding.assign(embedding->data(), embedding->data() + embedding->size());
        } else {
            require(encoder != nullptr, "a generator without encoder needs encoded sources");
            batch.sources.begin_encoding(*encoder);
            const int64_t multiply_adds = rows / std::max<int64_t>(count, 1) * encoder->multiply_adds();
            threads::parallel_for(count, multiply_adds, [&](int64_t first, int64_t last) {
                std::vector<int64_t> numbers(last - first);
                std::iota(numbers.begin(), numbers.end(), first);
                batch.sources.encode(*encoder, numbers);
            });
        }
        encoding += seconds_now() - began;
        if (beam <= 0) greedy.begin(batch);
        is_ready = true;
    }

    // Decodes until all sentences have ended, at most `iterations` (negative: no limit). Returns whether all have
    // ended.
    bool run(int64_t iterations) {
        require(is_ready && beam <= 0, "no batch for a greedy search has begun");
        const nb::gil_scoped_release release;
        lengths_before = batch.lengths;
        RunOptions own = options;
        own.iterations = iterations;
        greedy.run(batch, own);
        return std::all_of(batch.finished.begin(), batch.finished.end(), [](uint8_t ended) { return ended != 0; });
    }

    // Returns for each sentence its tokens, their log-probabilities, and emitted tokens by iteration.
    nb::list outputs() const {
        nb::list result;
        for (int64_t b = 0; b < batch.sentences(); ++b) {
            const int64_t begin = b * batch.columns + 1, end = begin + batch.lengths[b];
            result.append(nb::make_tuple(
                as_numpy(std::vector<int64_t>(batch.tokens.begin() + begin, batch.tokens.begin() + end)),
                as_numpy(std::vector<float>(batch.log_probs.begin() + begin, batch.log_probs.begin() + end)),
                batch.emitted[b]));
        }
        return result;
    }

    // Returns for each sentence the tokens that the last call of `run` emitted, the numbers of drafted and of accepted
    // tokens in the last iteration, and whether the output has ended.
    nb::list last_iteration() const {
        nb::list result;
        for (int64_t b = 0; b < batch.sentences(); ++b) {
            const int64_t* output = batch.output(b);
            const std::vector<int64_t> tokens(output + lengths_before[b], output + batch.lengths[b]);
            const bool has_run = !tokens.empty();
            result.append(nb::make_tuple(tokens, has_run ? batch.drafted[b] : 0, has_run ? batch.accepted[b] : 0,
                                         batch.finished[b] != 0));
        }
        return result;
    }

    // Returns for each sentence its hypotheses (tokens, log-probabilities, score) in the order in which they ended, and
    // its number of steps.
    nb::list run_beams() {
        require(is_ready && beam > 0, "no batch for a beam search has begun");
        std::vector<int64_t> steps;
        std::vector<std::vector<Hypothesis>> found;
        {
            const nb::gil_scoped_release release;
            found = search.run(batch, options, steps);
        }
        nb::list result;
        for (size_t b = 0; b < found.size(); ++b) {
            result.append(nb::make_tuple(to_list(std::move(found[b])), steps[b]));
        }
        return result;
    }

    // Opens a continuous batch, of which each thread decodes sentences until `close`.
    void open(int64_t pad, int64_t unk, int64_t eos, int64_t first_token, int64_t threads, int64_t max_sentences,
              int64_t max_source, int64_t max_len) {
        require(encoder != nullptr, "a continuous batch needs an encoder in the kernels");
        require(threads > 0 && max_sentences >= 0 && max_source > 0, "a continuous batch needs threads and room");
        set_limits(pad, unk, eos, first_token, max_len);
        const nb::gil_scoped_release release;
        RunOptions own = options;
        own.check_signals = {};
        running = std::make_unique<ContinuousBatch>(*encoder, greedy, beam > 0 ? &search : nullptr, batch, own,
                                                    OpenOptions{threads, max_sentences, max_source, max_len});
    }

    void admit(int64_t id, Request sentence, bool streams) {
        check(sentence, opened().options.max_len, opened().options.max_source);
        sentence.id = id;
        sentence.streams = streams;
        opened().admit(std::move(sentence));
    }

    void cancel(int64_t id) { opened().cancel(id); }

    std::pair<int64_t, int64_t> load() { return opened().load(); }

    // Returns the next events of the continuous batch: (id, output, (drafted, accepted), error), where output is None
    // for an error; the tokens of an iteration; (tokens, log-probabilities, emitted); or (hypotheses, steps).
    nb::list take(double seconds) {
        std::vector<Event> events;
        {
            ContinuousBatch& own = opened();
            const nb::gil_scoped_release release;
            events = own.take(seconds);
        }
        nb::list result;
        for (Event& event : events) {
            nb::object output = nb::none(), iteration = nb::none(), error = nb::none();
            if (!event.error.empty()) {
                error = nb::make_tuple(event.error, event.is_forbidden_eos);
            } else if (!event.is_end) {
                output = nb::cast(std::move(event.tokens));
                iteration = nb::make_tuple(event.drafted, event.accepted);
            } else if (beam > 0) {
                output = nb::make_tuple(to_list(std::move(event.hypotheses)), event.steps);
            } else {
                output = nb::make_tuple(as_numpy(std::move(event.tokens)), as_numpy(std::move(event.log_probs)),
                                        event.emitted);
            }
            result.append(nb::make_tuple(event.id, output, iteration, error));
        }
        return result;
    }

    void close() {
        const nb::gil_scoped_release release;
        if (running) running->close();
    }

    // Returns the seconds of each stage, summed over threads.
    nb::dict seconds() const {
        StageSeconds sums = greedy.seconds;
        for (int stage = 0; stage < STAGES; ++stage) sums[stage] += search.seconds[stage];
        sums[ENCODE] += encoding;
        nb::dict result;
        const char* names[STAGES] = {"encode", "prepare", "draft", "verify", "accept", "observe"};
        for (int stage = 0; stage < STAGES; ++stage) result[names[stage]] = sums[stage];
        return result;
    }

private:
    static nb::list to_list(std::vector<Hypothesis> hypotheses) {
        nb::list result;
        for (auto& hypothesis : hypotheses) {
            result.append(nb::make_tuple(as_numpy(std::move(hypothesis.tokens)),
                                         as_numpy(std::move(hypothesis.log_probs)), hypothesis.score));
        }
        return result;
    }

    ContinuousBatch& opened() {
        require(running != nullptr, "no continuous batch is open");
        return *running;
    }

    // Sets the limits that all sentences share. Ends a batch that has begun.
    void set_limits(int64_t pad, int64_t unk, int64_t eos, int64_t first_token, int64_t max_len) {
        require(!running, "a generator with a continuous batch decodes nothing else");
        Limits& limits = batch.limits;
        limits = {};
        limits.vocabulary = verifier->projection->outputs;
        limits.pad = pad;
        limits.unk = unk;
        limits.eos = eos;
        limits.max_len = max_len;
        for (const int64_t token : {pad, unk, eos, first_token}) {
            require(0 <= token && token < limits.vocabulary, "a special symbol is outside of the vocabulary");
        }
        constexpr int64_t MAX_LENGTH = 1 << 30;
        require(0 <= max_len && max_len < MAX_LENGTH, "the lengths are not possible");
        batch.first_token = first_token;
        is_ready = false;
    }

    // Throws std::invalid_argument for a sentence that does not fit the batch.
    void check(const Request& sentence, int64_t max_len, int64_t max_source = INT64_MAX) const {
        const SentenceLimits& limits = sentence.limits;
        const auto is_known = [&](int64_t token) { return 0 <= token && token < batch.limits.vocabulary; };
        require(0 <= limits.max_len && limits.max_len <= max_len && limits.min_len <= limits.max_len,
                "the lengths are not possible");
        require(limits.temperature > 0, "the temperature is not possible");
        require(1 <= limits.beam && limits.beam <= std::max<int64_t>(beam, 1),
                "the beam is wider than that of the batch");
        require(static_cast<int64_t>(limits.prefix.size()) <= max_len, "a prefix is too long");
        require(std::all_of(limits.prefix.begin(), limits.prefix.end(), is_known),
                "a prefix is outside of the vocabulary");
        for (const auto& draft : sentence.drafts) {
            require(std::all_of(draft.begin(), draft.end(), is_known),
                    "a token of a draft is outside of the vocabulary");
        }
        require(!sentence.source.empty() && static_cast<int64_t>(sentence.source.size()) <= max_source,
                "a source has no token, or more than there is room for");
        if (encoder) encoder->check_tokens(sentence.source.data(), sentence.source.size());
    }

    void check_head(const SharedLinear& expand, const SharedLinear& shrink) const {
        const int width = verifier->width;
        require(expand && shrink, "a head has two layers");
        require(beam <= 0, "a beam search has no head");
        require(expand->inputs == width && shrink->inputs == expand->outputs && shrink->outputs == width,
                "the head does not fit the decoder");
    }

    const std::shared_ptr<Transformer> encoder, verifier;
    const std::shared_ptr<Policy> policy;
    const int64_t beam;
    GreedySearch greedy;
    BeamSearch search;
    RunOptions options;
    Batch batch;
    std::vector<int64_t> lengths_before;
    double encoding = 0;
    bool is_ready = false;                     // whether a batch has begun
    std::unique_ptr<ContinuousBatch> running;  // uses the members above
};

}  // namespace

void bind_generator(nb::module_& m) {
    nb::exception<std::domain_error>(m, "EosForbidden", PyExc_ValueError);
    using Tokens = std::vector<int64_t>;
    nb::class_<Request>(m, "Sentence")
        .def(
            "__init__",
            [](Request* self, Tokens source, int64_t min_len, int64_t max_len, float unk_penalty, float temperature,
               int64_t beam, Tokens prefix, std::vector<Tokens> drafts, Tokens noise_key, int64_t topk, float topp,
               Tokens suppressed, Tokens begin_suppressed, bool needs_log_probs) {
                require(noise_key.empty() || noise_key.size() == 4, "a key of the noise has four numbers");
                for (const Tokens* tokens : {&suppressed, &begin_suppressed}) {
                    require(std::is_sorted(tokens->begin(), tokens->end()), "suppressed tokens are in ascending order");
                }
                const SentenceLimits limits{min_len, max_len,    unk_penalty,      temperature,
                                            beam,    prefix,     noise_key,        topk,
                                            topp,    suppressed, begin_suppressed, needs_log_probs};
                new (self) Request{0, std::move(source), limits, std::move(drafts), false};
            },
            "source"_a, nb::kw_only(), "min_len"_a, "max_len"_a, "unk_penalty"_a = 0, "temperature"_a = 1, "beam"_a = 1,
            "prefix"_a = Tokens(), "drafts"_a = std::vector<Tokens>(), "noise_key"_a = Tokens(), "topk"_a = 0,
            "topp"_a = 0, "suppressed"_a = Tokens(), "begin_suppressed"_a = Tokens(), "needs_log_probs"_a = true);
    nb::class_<Generator>(m, "Generator")
        .def(nb::init<std::shared_ptr<Transformer>, std::shared_ptr<Transformer>, std::shared_ptr<Drafter>,
                      std::shared_ptr<const Acceptance>, std::shared_ptr<Policy>, std::optional<Head>, int64_t>(),
             nb::kw_only(), "encoder"_a.none(), "verifier"_a, "drafter"_a = nb::none(), "acceptance"_a = nb::none(),
             "policy"_a = nb::none(), "head"_a = nb::none(), "beam"_a = 0)
        .def("begin", &Generator::begin, "sentences"_a, nb::kw_only(), "pad"_a, "unk"_a, "eos"_a, "first_token"_a,
             "encoded"_a = nb::none(), "embedding"_a = nb::none())
        .def("run", &Generator::run, "iterations"_a = -1)
        .def("outputs", &Generator::outputs)
        .def("last_iteration", &Generator::last_iteration)
        .def("run_beams", &Generator::run_beams)
        .def("open", &Generator::open, nb::kw_only(), "pad"_a, "unk"_a, "eos"_a, "first_token"_a, "threads"_a,
             "max_sentences"_a, "max_source"_a, "max_len"_a)
        .def("admit", &Generator::admit, "id"_a, "sentence"_a, "streams"_a)
        .def("cancel", &Generator::cancel, "id"_a)
        .def("load", &Generator::load)
        .def("take", &Generator::take, "seconds"_a)
        .def("close", &Generator::close)
        .def("seconds", &Generator::seconds);
}

}  // namespace spec_dec
