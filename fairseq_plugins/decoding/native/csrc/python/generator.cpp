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
using GivenDrafts = std::vector<std::vector<std::vector<int64_t>>>;  // of each sentence, as token ids

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

    // Begins a batch: encodes its sources, unless `encoded` is given.
    void begin(const Array<int64_t, 2>& source, int64_t pad, int64_t unk, int64_t eos, int64_t first_token,
               int64_t min_len, int64_t max_len, float unk_penalty, float temperature, const Maybe<int64_t, 2>& prefix,
               GivenDrafts drafts, const Maybe<float, 3>& encoded, const Maybe<float, 3>& embedding,
               const Maybe<int64_t, 2>& noise_keys, int64_t topk, float topp, const std::vector<int64_t>& suppressed,
               const std::vector<int64_t>& begin_suppressed, bool needs_log_probs) {
        const auto sentences = static_cast<int64_t>(source.shape(0)), width = static_cast<int64_t>(source.shape(1));
        Limits& limits = batch.limits;
        set_limits(pad, unk, eos, first_token, max_len);
        require(min_len <= max_len, "the lengths are not possible");
        limits.of_sentences.assign(sentences, {min_len,
                                               max_len,
                                               unk_penalty,
                                               temperature,
                                               beam,
                                               {},
                                               {},
                                               topk,
                                               topp,
                                               suppressed,
                                               begin_suppressed,
                                               needs_log_probs});
        check_suppressed(suppressed, begin_suppressed);
        require(drafts.empty() || static_cast<int64_t>(drafts.size()) == sentences,
                "the number of drafts differs from that of the sentences");
        for (const auto& of_sentence : drafts) {
            for (const auto& draft : of_sentence) {
                for (const int64_t token : draft)
                    require(0 <= token && token < limits.vocabulary, "a token of a draft is outside of the vocabulary");
            }
        }
        batch.drafts = std::move(drafts);
        if (prefix) {
            require(static_cast<int64_t>(prefix->shape(0)) == sentences,
                    "the number of prefixes differs from that of the sentences");
            limits.prefix_width = static_cast<int64_t>(prefix->shape(1));
            for (int64_t b = 0; b < sentences; ++b) {
                const int64_t* own = prefix->data() + b * limits.prefix_width;
                limits.of_sentences[b].prefix.assign(own, own + limits.prefix_width);
                for (const int64_t token : limits.of_sentences[b].prefix)
                    require(0 <= token && token < limits.vocabulary, "a prefix is outside of the vocabulary");
            }
        }
        if (noise_keys) {
            require(static_cast<int64_t>(noise_keys->shape(0)) == sentences && noise_keys->shape(1) == 4,
                    "the number of keys of the noise differs from that of the sentences");
            for (int64_t b = 0; b < sentences; ++b) {
                const int64_t* key = noise_keys->data() + 4 * b;
                limits.of_sentences[b].noise_key.assign(key, key + 4);
            }
        }
        const nb::gil_scoped_release release;
        const double began = seconds_now();
        if (encoded) {
            const auto dim = static_cast<int64_t>(encoded->shape(2));
            require(dim == verifier->layers[0].cross_key_value->inputs, "encoded sources of another width");
            require(encoded->shape(0) == source.shape(0) && encoded->shape(1) == source.shape(1) &&
                        (!embedding || embedding->size() == encoded->size()),
                    "encoded sources of another size");
            batch.sources.read(source.data(), sentences, width, pad, dim, encoded->data(),
                               embedding ? embedding->data() : nullptr);
        } else {
            require(encoder != nullptr, "a generator without encoder needs encoded sources");
            batch.sources.read(source.data(), sentences, width, pad);
            batch.sources.begin_encoding(*encoder);
            const int64_t multiply_adds =
                batch.sources.rows() / std::max<int64_t>(sentences, 1) * encoder->multiply_adds();
            threads::parallel_for(sentences, multiply_adds, [&](int64_t first, int64_t last) {
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

    void admit(int64_t id, std::vector<int64_t> source, int64_t min_len, int64_t max_len, float unk_penalty,
               float temperature, int64_t sentence_beam, std::vector<int64_t> prefix,
               std::vector<std::vector<int64_t>> drafts, bool streams, std::vector<int64_t> noise_key, int64_t topk,
               float topp, std::vector<int64_t> suppressed, std::vector<int64_t> begin_suppressed,
               bool needs_log_probs) {
        check_suppressed(suppressed, begin_suppressed);
        require(noise_key.empty() || noise_key.size() == 4, "a key of the noise has four numbers");
        opened().admit(
            {id,
             std::move(source),
             {min_len, max_len, unk_penalty, temperature, sentence_beam, std::move(prefix), std::move(noise_key), topk,
              topp, std::move(suppressed), std::move(begin_suppressed), needs_log_probs},
             std::move(drafts),
             streams});
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

    static void check_suppressed(const std::vector<int64_t>& suppressed, const std::vector<int64_t>& begin_suppressed) {
        for (const auto* tokens : {&suppressed, &begin_suppressed}) {
            require(std::is_sorted(tokens->begin(), tokens->end()), "suppressed tokens are in ascending order");
        }
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
    nb::class_<Generator>(m, "Generator")
        .def(nb::init<std::shared_ptr<Transformer>, std::shared_ptr<Transformer>, std::shared_ptr<Drafter>,
                      std::shared_ptr<const Acceptance>, std::shared_ptr<Policy>, std::optional<Head>, int64_t>(),
             nb::kw_only(), "encoder"_a.none(), "verifier"_a, "drafter"_a = nb::none(), "acceptance"_a = nb::none(),
             "policy"_a = nb::none(), "head"_a = nb::none(), "beam"_a = 0)
        .def("begin", &Generator::begin, "source"_a, nb::kw_only(), "pad"_a, "unk"_a, "eos"_a, "first_token"_a,
             "min_len"_a, "max_len"_a, "unk_penalty"_a, "temperature"_a, "prefix"_a = nb::none(),
             "drafts"_a = GivenDrafts(), "encoded"_a = nb::none(), "embedding"_a = nb::none(),
             "noise_keys"_a = nb::none(), "topk"_a = 0, "topp"_a = 0, "suppressed"_a = std::vector<int64_t>(),
             "begin_suppressed"_a = std::vector<int64_t>(), "needs_log_probs"_a = true)
        .def("run", &Generator::run, "iterations"_a = -1)
        .def("outputs", &Generator::outputs)
        .def("last_iteration", &Generator::last_iteration)
        .def("run_beams", &Generator::run_beams)
        .def("open", &Generator::open, nb::kw_only(), "pad"_a, "unk"_a, "eos"_a, "first_token"_a, "threads"_a,
             "max_sentences"_a, "max_source"_a, "max_len"_a)
        .def("admit", &Generator::admit, "id"_a, "source"_a, nb::kw_only(), "min_len"_a, "max_len"_a, "unk_penalty"_a,
             "temperature"_a, "beam"_a, "prefix"_a, "drafts"_a, "streams"_a, "noise_key"_a = std::vector<int64_t>(),
             "topk"_a = 0, "topp"_a = 0, "suppressed"_a = std::vector<int64_t>(),
             "begin_suppressed"_a = std::vector<int64_t>(), "needs_log_probs"_a = true)
        .def("cancel", &Generator::cancel, "id"_a)
        .def("load", &Generator::load)
        .def("take", &Generator::take, "seconds"_a)
        .def("close", &Generator::close)
        .def("seconds", &Generator::seconds);
}

}  // namespace spec_dec
