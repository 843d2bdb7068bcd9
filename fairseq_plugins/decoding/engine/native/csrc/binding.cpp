// The Python module. Types, shapes and memory of tensors are checked here, by the declared array types.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "beam_search.h"
#include "drafters/drafters.h"
#include "greedy_search.h"
#include "kernels.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace spec_dec;

namespace {

template <typename Number, int DIMS>
using Array = nb::ndarray<const Number, nb::ndim<DIMS>, nb::c_contig, nb::device::cpu>;
template <typename Number, int DIMS>
using Maybe = std::optional<Array<Number, DIMS>>;

void require(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

// Keeps the memory of an array alive. Python objects hold what has it, so it goes while Python's lock is held.
template <typename Held>
std::shared_ptr<const void> owner_of(const Held& array) {
    return std::make_shared<Held>(array);
}

std::vector<float> floats(const Array<float, 1>& array) { return {array.data(), array.data() + array.size()}; }
std::vector<int64_t> integers(const Array<int64_t, 1>& array) { return {array.data(), array.data() + array.size()}; }

Table table(const Maybe<float, 2>& array, int64_t width) {
    if (!array) return {};
    require(static_cast<int64_t>(array->shape(1)) == width, "a table has another width");
    return {array->data(), static_cast<int64_t>(array->shape(0)), owner_of(*array)};
}

// A numpy array that owns its numbers.
template <typename Number>
auto as_numpy(std::vector<Number> values) {
    auto* held = new std::vector<Number>(std::move(values));
    nb::capsule owner(held, [](void* memory) noexcept { delete static_cast<std::vector<Number>*>(memory); });
    return nb::ndarray<nb::numpy, Number, nb::ndim<1>>(held->data(), {held->size()}, owner);
}

std::shared_ptr<Linear> linear(nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu, nb::ro> weight,
                               const Maybe<float, 1>& bias, const Maybe<float, 1>& scale, WeightFormat format,
                               bool batch_invariant) {
    const bool is_int8 = format == WeightFormat::INT8_ROWS;
    require(weight.dtype() == (is_int8 ? nb::dtype<int8_t>() : nb::dtype<float>()), "a weight has another type");
    require(weight.size() > 0, "a weight is empty");
    const auto outputs = static_cast<int>(weight.shape(0)), inputs = static_cast<int>(weight.shape(1));
    require(!bias || static_cast<int>(bias->size()) == outputs, "a bias has another size");
    require(scale.has_value() == is_int8 && (!scale || static_cast<int>(scale->size()) == outputs),
            "the scales have another size");
    require(kernels().supports(format), "this processor does not compute with this weight format");
    return kernels().make_linear({weight.data(), scale ? scale->data() : nullptr, bias ? bias->data() : nullptr, inputs,
                                  outputs, batch_invariant, owner_of(weight)},
                                 format);
}

std::shared_ptr<Transformer> transformer(std::vector<Layer> layers, const Array<float, 2>& embedding, float scale,
                                         const Maybe<float, 2>& positions, bool positions_every_layer,
                                         Norm embedding_norm, Norm final_norm, SharedLinear projection) {
    auto model = std::make_shared<Transformer>();
    model->width = static_cast<int>(embedding.shape(1));
    model->layers = std::move(layers);
    model->embedding = table(embedding, model->width);
    model->embedding_scale = scale;
    model->positions = table(positions, model->width);
    model->adds_positions_to_every_layer = positions_every_layer;
    model->embedding_norm = std::move(embedding_norm);
    model->final_norm = std::move(final_norm);
    model->projection = std::move(projection);
    model->check();
    return model;
}

// A method put together, with memory that is used again for every batch.
class Generator {
public:
    Generator(std::shared_ptr<Transformer> encoder, std::shared_ptr<Transformer> verifier, SharedLinear expand,
              SharedLinear shrink, std::shared_ptr<Drafter> drafter, std::shared_ptr<Acceptance> acceptance,
              std::shared_ptr<Policy> policy, int64_t beam, int64_t least_together, int64_t rows_together)
        : encoder(std::move(encoder)),
          verifier(verifier),
          policy(policy),
          beam(beam),
          greedy(verifier, {std::move(expand), std::move(shrink)}, std::move(drafter), std::move(acceptance), policy),
          search(verifier, std::max<int64_t>(beam, 1)) {
        require(this->verifier && this->verifier->projection, "a generator needs a decoder");
        budget.least_together = least_together;
        budget.rows_together = rows_together;
        budget.check_signals = [] {
            nb::gil_scoped_acquire lock;
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
        };
    }

    // Begins a batch; see the docstring below.
    void begin(const Array<int64_t, 2>& source, int64_t pad, int64_t unk, int64_t eos, int64_t first_token,
               int64_t min_len, int64_t max_len, float unk_penalty, float temperature, const Maybe<int64_t, 2>& prefix,
               const Maybe<float, 3>& encoded, const Maybe<float, 3>& embedding, const Maybe<bool, 2>& padding) {
        const auto sentences = static_cast<int64_t>(source.shape(0)), width = static_cast<int64_t>(source.shape(1));
        Limits& limits = batch.limits;
        limits = {verifier->projection->outputs, pad, unk, eos, min_len, max_len, unk_penalty, temperature, nullptr, 0};
        for (const int64_t token : {pad, unk, eos, first_token}) {
            require(0 <= token && token < limits.vocabulary, "a special symbol is outside of the vocabulary");
        }
        require(min_len <= max_len && max_len >= 0, "no output has such a length");
        if (prefix) {
            require(static_cast<int64_t>(prefix->shape(0)) == sentences, "prefixes of another number of sentences");
            prefixes.assign(prefix->data(), prefix->data() + prefix->size());
            for (const int64_t token : prefixes)
                require(0 <= token && token < limits.vocabulary, "a prefix is outside of the vocabulary");
            limits.prefix = prefixes.data();
            limits.prefix_width = static_cast<int64_t>(prefix->shape(1));
        }
        batch.first_token = first_token;
        const nb::gil_scoped_release release;
        const double began = seconds_now();
        if (encoded) {
            const auto dim = static_cast<int64_t>(encoded->shape(2));
            require(padding.has_value() && dim == verifier->layers[0].cross_key_value->inputs, "other encoded sources");
            require(encoded->shape(0) == source.shape(0) && padding->shape(0) == source.shape(0) &&
                        encoded->shape(1) == padding->shape(1) && (!embedding || embedding->size() == encoded->size()),
                    "encoded sources of another size");
            const bool has_tokens = encoded->shape(1) == source.shape(1);
            batch.sources.take(has_tokens ? source.data() : nullptr, encoded->data(),
                               embedding ? embedding->data() : nullptr,
                               reinterpret_cast<const uint8_t*>(padding->data()), sentences,
                               static_cast<int64_t>(encoded->shape(1)), dim);
        } else {
            require(encoder != nullptr, "a generator without encoder needs encoded sources");
            batch.sources.read(source.data(), sentences, width, pad);
            batch.sources.encode(*encoder);
        }
        encoding += seconds_now() - began;
        if (beam > 0) return;
        if (policy) greedy.profile(sentences, budget);
        greedy.begin(batch);
    }

    // Decodes until all sentences have ended, or have had so many iterations; returns whether all have ended.
    bool run(int64_t iterations) {
        const nb::gil_scoped_release release;
        lengths_before = batch.lengths;
        Budget own = budget;
        own.iterations = iterations;
        greedy.run(batch, own);
        return std::all_of(batch.finished.begin(), batch.finished.end(), [](uint8_t ended) { return ended != 0; });
    }

    // Tokens and log-probabilities of all outputs, one after the other, their lengths, and tokens by iteration.
    auto outputs() const {
        std::vector<int64_t> tokens;
        std::vector<float> log_probs;
        for (int64_t b = 0; b < batch.sentences(); ++b) {
            const int64_t begin = b * batch.columns + 1, end = begin + batch.lengths[b];
            tokens.insert(tokens.end(), batch.tokens.begin() + begin, batch.tokens.begin() + end);
            log_probs.insert(log_probs.end(), batch.log_probs.begin() + begin, batch.log_probs.begin() + end);
        }
        return std::make_tuple(as_numpy(std::move(tokens)), as_numpy(std::move(log_probs)), batch.lengths,
                               batch.emitted);
    }

    // Of every sentence what the last call of `run` did: tokens, how many were drafted and accepted in the last
    // iteration, and whether the output has ended.
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

    // Of every sentence its hypotheses (tokens, log-probabilities, score) in the order in which they ended; and its
    // steps.
    auto run_beams() {
        std::vector<int64_t> steps;
        std::vector<std::vector<Hypothesis>> found;
        {
            const nb::gil_scoped_release release;
            found = search.run(batch, budget, steps);
        }
        nb::list result;
        for (auto& hypotheses : found) {
            nb::list of_sentence;
            for (auto& hypothesis : hypotheses) {
                of_sentence.append(nb::make_tuple(as_numpy(std::move(hypothesis.tokens)),
                                                  as_numpy(std::move(hypothesis.log_probs)), hypothesis.score));
            }
            result.append(of_sentence);
        }
        return std::make_pair(result, steps);
    }

    // Seconds by part, summed over threads.
    nb::dict seconds() const {
        PartSeconds sums = greedy.seconds;
        for (int part = 0; part < PARTS; ++part) sums[part] += search.seconds[part];
        sums[ENCODE] += encoding;
        nb::dict result;
        const char* names[PARTS] = {"encode", "prepare", "draft", "verify", "accept", "observe"};
        for (int part = 0; part < PARTS; ++part) result[names[part]] = sums[part];
        return result;
    }

private:
    const std::shared_ptr<Transformer> encoder, verifier;
    const std::shared_ptr<Policy> policy;
    const int64_t beam;
    GreedySearch greedy;
    BeamSearch search;
    Budget budget;
    Batch batch;
    std::vector<int64_t> prefixes, lengths_before;
    double encoding = 0;
};

void bind_layers(nb::module_& m) {
    nb::enum_<WeightFormat>(m, "WeightFormat")
        .value("PANELS", WeightFormat::PANELS)
        .value("ROWS", WeightFormat::ROWS)
        .value("FP16_PANELS", WeightFormat::FP16_PANELS)
        .value("FP16_AMX_TILES", WeightFormat::FP16_AMX_TILES)
        .value("INT8_ROWS", WeightFormat::INT8_ROWS)
        .value("INT8_PANELS", WeightFormat::INT8_PANELS);
    nb::enum_<Activation>(m, "Activation")
        .value("RELU", Activation::RELU)
        .value("GELU", Activation::GELU)
        .value("SILU", Activation::SILU);
    m.def(
        "supports", [](WeightFormat format) { return kernels().supports(format); }, "format"_a,
        "Whether this processor computes with a weight format.");
    nb::class_<Linear>(m, "Linear")
        .def_ro("inputs", &Linear::inputs)
        .def_ro("outputs", &Linear::outputs)
        .def(
            "__call__",
            [](const Linear& self, const Array<float, 2>& x) {
                require(static_cast<int>(x.shape(1)) == self.inputs, "the input has another width");
                std::vector<float> y(x.shape(0) * self.outputs);
                self.run(x.data(), static_cast<int64_t>(x.shape(0)), y.data());
                return as_numpy(std::move(y));
            },
            "x"_a, "Apply to x [R, inputs]; returns R * outputs numbers.");
    m.def("linear", &linear, "weight"_a, "bias"_a.none(), "scale"_a.none(), "format"_a, "batch_invariant"_a);
    nb::class_<Norm>(m, "Norm")
        .def(nb::init<>())
        .def(
            "__init__",
            [](Norm* self, const Array<float, 1>& weight, const Array<float, 1>& bias, float epsilon) {
                new (self) Norm{floats(weight), floats(bias), epsilon};
            },
            "weight"_a, "bias"_a, "epsilon"_a);
    nb::class_<Layer>(m, "Layer")
        .def(nb::init<>())
        .def_rw("heads", &Layer::heads)
        .def_rw("normalize_before", &Layer::normalize_before)
        .def_rw("activation", &Layer::activation)
        .def_rw("self_qkv", &Layer::self_qkv)
        .def_rw("self_out", &Layer::self_out)
        .def_rw("self_norm", &Layer::self_norm)
        .def_rw("cross_query", &Layer::cross_query)
        .def_rw("cross_key_value", &Layer::cross_key_value)
        .def_rw("cross_out", &Layer::cross_out)
        .def_rw("cross_norm", &Layer::cross_norm)
        .def_rw("fc1", &Layer::fc1)
        .def_rw("fc2", &Layer::fc2)
        .def_rw("final_norm", &Layer::final_norm);
    nb::class_<Transformer>(m, "Transformer");
    m.def("transformer", &transformer, "layers"_a, "embedding"_a, "scale"_a, "positions"_a.none(),
          "positions_every_layer"_a, "embedding_norm"_a, "final_norm"_a, "projection"_a.none());
}

void bind_drafters(nb::module_& m) {
    nb::class_<Drafter>(m, "Drafter");
    nb::class_<Path>(m, "Path").def(
        "__init__",
        [](Path* self, const Array<int64_t, 1>& ids, const Maybe<float, 2>& before, SharedLinear after,
           SharedLinear of_hidden, SharedLinear of_before, SharedLinear of_state, SharedLinear to_rank) {
            Path path{integers(ids), {}, after, of_hidden, of_before, of_state, to_rank};
            if (after) {
                require(before && static_cast<int>(ids.size()) == after->outputs, "a path scores other tokens");
                path.before = table(before, after->inputs);
                for (const int64_t id : path.ids)
                    require(0 <= id && id < path.before.size, "a path has an unknown token");
            }
            if (to_rank) {
                const int gates = of_hidden->outputs;
                require(of_before->outputs == gates && of_state->outputs == gates && of_state->inputs * 3 == gates &&
                            to_rank->inputs == of_state->inputs && to_rank->outputs == after->inputs &&
                            of_before->inputs == after->inputs,
                        "the layers of a path do not fit each other");
            }
            new (self) Path(std::move(path));
        },
        "ids"_a, "before"_a.none(), "after"_a.none(), "of_hidden"_a.none(), "of_before"_a.none(), "of_state"_a.none(),
        "to_rank"_a.none());
    nb::class_<MaskFeed>(m, "MaskFeed")
        .def(
            "__init__",
            [](MaskFeed* self, const Array<float, 1>& vector, SharedLinear copy_attention,
               const Maybe<float, 2>& positions) {
                const auto width = static_cast<int64_t>(vector.size());
                require(!copy_attention || (positions && copy_attention->outputs == width), "masks have another width");
                new (self) MaskFeed{floats(vector), copy_attention, table(positions, width)};
            },
            "vector"_a, "copy_attention"_a.none(), "positions"_a.none());
    m.def(
        "feature_drafter",
        [](std::shared_ptr<Transformer> model, Path path, MaskFeed feed, std::vector<int> layers, SharedLinear reader,
           std::vector<SharedLinear> projections,
           int64_t width) { return make_feature_drafter(model, path, feed, {layers, reader, projections}, width); },
        "model"_a, "path"_a, "feed"_a, "layers"_a, "reader"_a, "projections"_a, "width"_a);
    m.def(
        "token_drafter",
        [](std::shared_ptr<Transformer> model, std::shared_ptr<Transformer> encoder, Path path, MaskFeed feed,
           bool caches_prefix,
           int64_t width) { return make_token_drafter(model, encoder, path, feed, caches_prefix, width); },
        "model"_a, "encoder"_a.none(), "path"_a, "feed"_a, "caches_prefix"_a, "width"_a);
    m.def("source_copy_drafter", &make_source_copy_drafter, "pad"_a, "max_match"_a, "reads_output"_a);
    m.def(
        "jacobi_drafter",
        [](int64_t block, double window_ratio, int64_t length, int64_t initial, int64_t pool) {
            return make_jacobi_drafter({block, window_ratio, length, initial, pool});
        },
        "block"_a, "window_ratio"_a, "length"_a, "initial"_a, "pool"_a);
    m.def("heads_drafter", &make_heads_drafter, "expand"_a, "others"_a, "projection"_a);
    m.def("fallback_drafter", &make_fallback_drafter, "first"_a, "second"_a);
    nb::class_<Acceptance>(m, "Acceptance");
    m.def("accept_top_beta", &accept_top_beta, "beta"_a, "tau"_a);
    m.def(
        "accept_within_distance",
        [](float epsilon, const Array<float, 1>& values) { return accept_within_distance(epsilon, floats(values)); },
        "epsilon"_a, "values"_a);
    m.def("accept_at_least", &accept_at_least, "block"_a, "rule"_a.none());
}

void bind_policy(nb::module_& m) {
    using Points = std::vector<std::pair<double, double>>;
    nb::class_<Plan>(m, "Plan")
        .def_ro("width", &Plan::width)
        .def_ro("threshold", &Plan::threshold)
        .def_ro("rate", &Plan::rate)
        .def_ro("pays", &Plan::pays);
    const auto counts = [](std::vector<double> tried, std::vector<double> right, std::vector<double> drafts,
                           std::vector<double> worthy, std::vector<double> survival) {
        Counts result;
        if (!tried.empty()) {
            require(tried.size() == BINS && right.size() == BINS, "counts of another number of bins");
            result.tried = std::move(tried);
            result.right = std::move(right);
        }
        require(drafts.size() == worthy.size() && drafts.size() == survival.size(), "counts of several widths");
        result.drafts = std::move(drafts);
        result.worthy = std::move(worthy);
        result.survival = std::move(survival);
        return result;
    };
    const std::vector<double> none;
    nb::class_<Policy>(m, "Policy")
        .def(nb::init<int64_t>(), "width"_a)
        .def(
            "learn",
            [counts](Policy& self, std::vector<double> tried, std::vector<double> right, std::vector<double> drafts,
                     std::vector<double> worthy,
                     std::vector<double> survival) { self.learn(counts(tried, right, drafts, worthy, survival)); },
            "tried"_a, "right"_a, "drafts"_a, "worthy"_a, "survival"_a)
        .def("learn_length", &Policy::learn_length, "source"_a, "output"_a)
        .def("plan", &Policy::plan, "sentences"_a)
        .def("drafts", &Policy::drafts, "sentences"_a, "source"_a)
        .def("right_rate", &Policy::right_rate)
        .def_prop_ro("width", [](const Policy& self) { return self.width; })
        .def_prop_rw(
            "costs",
            [](const Policy& self) {
                nb::dict result;
                result["step"] = self.costs.step.measured();
                result["verify"] = self.costs.verify.measured();
                result["draft"] = self.costs.draft.measured();
                result["prepare"] = self.costs.prepare.measured();
                return result;
            },
            [](Policy& self, const nb::dict& costs) {
                self.costs = Costs();
                const auto fill = [&](const char* name, CostTable& into) {
                    for (const auto& [rows, seconds] : nb::cast<Points>(costs[name])) into.add(rows, seconds);
                };
                fill("step", self.costs.step);
                fill("verify", self.costs.verify);
                fill("draft", self.costs.draft);
                fill("prepare", self.costs.prepare);
            });
}

}  // namespace

NB_MODULE(_kernels, m) {
    m.def("instruction_set", [] { return std::string(kernels().name); }, "The instruction set in use.");
    m.def("runnable_instruction_sets", &runnable_instruction_sets, "Those that this processor runs, the best first.");
    m.def("use_instruction_set", &use_instruction_set, "name"_a);
    bind_layers(m);
    bind_drafters(m);
    bind_policy(m);
    nb::exception<std::domain_error>(m, "NothingMayEnd", PyExc_ValueError);
    nb::class_<Generator>(m, "Generator")
        .def(nb::init<std::shared_ptr<Transformer>, std::shared_ptr<Transformer>, SharedLinear, SharedLinear,
                      std::shared_ptr<Drafter>, std::shared_ptr<Acceptance>, std::shared_ptr<Policy>, int64_t, int64_t,
                      int64_t>(),
             nb::kw_only(), "encoder"_a.none(), "verifier"_a, "expand"_a.none(), "shrink"_a.none(), "drafter"_a.none(),
             "acceptance"_a.none(), "policy"_a.none(), "beam"_a, "least_together"_a, "rows_together"_a)
        .def("begin", &Generator::begin, "source"_a, nb::kw_only(), "pad"_a, "unk"_a, "eos"_a, "first_token"_a,
             "min_len"_a, "max_len"_a, "unk_penalty"_a, "temperature"_a, "prefix"_a.none(), "encoded"_a.none(),
             "embedding"_a.none(), "padding"_a.none())
        .def("run", &Generator::run, "iterations"_a = -1)
        .def("outputs", &Generator::outputs)
        .def("last_iteration", &Generator::last_iteration)
        .def("run_beams", &Generator::run_beams)
        .def("seconds", &Generator::seconds);
    m.def("set_threads", &threads::set, "count"_a);
}
