// Python bindings of drafters, acceptance rules and the policy.

#include "../drafters/drafters.h"

#include "../acceptance.h"
#include "../costs.h"
#include "../policy.h"
#include "binding.h"

namespace spec_dec {
namespace {

void bind_policy(nb::module_& m) {
    m.attr("BINS") = BINS;
    nb::class_<Plan>(m, "Plan")
        .def_ro("width", &Plan::width)
        .def_ro("greedy_rate", &Plan::greedy_rate)
        .def_ro("rate", &Plan::rate)
        .def_prop_ro("is_faster", &Plan::is_faster)
        .def_prop_ro("verified", [](const Plan& self) { return *self.verified; });
    nb::class_<Costs>(m, "Costs", "Seconds by size: see policy.h.")
        .def(nb::init<CostTable, CostTable, CostTable, double, bool>(), "step"_a, "draft"_a, "verify"_a,
             "prepare"_a = 0, "can_be_free"_a = false)
        .def_ro("step", &Costs::step)
        .def_ro("draft", &Costs::draft)
        .def_ro("verify", &Costs::verify)
        .def_ro("prepare", &Costs::prepare);
    m.def("consistent", &consistent, "measured"_a, "Return measured seconds by size without what only noise explains.");
    nb::class_<Policy>(m, "Policy")
        .def(nb::init<int64_t, bool>(), "width"_a, "always_drafts"_a = false)
        .def(
            "learn",
            [](Policy& self, const Array<double, 2>& drafted, const Array<double, 2>& accepted) {
                SurvivalCounts counts(static_cast<int64_t>(drafted.shape(0)));
                require(drafted.size() == counts.drafted.size() && accepted.size() == drafted.size(),
                        "counts have another shape");
                counts.drafted.assign(drafted.data(), drafted.data() + drafted.size());
                counts.verified = counts.drafted;
                counts.accepted.assign(accepted.data(), accepted.data() + accepted.size());
                for (size_t i = 0; i < counts.drafted.size(); ++i) counts.drafts[i / BINS] += counts.drafted[i];
                self.learn(counts);
            },
            "drafted"_a, "accepted"_a, "Add counts [W, BINS] of drafts that were verified in full.")
        .def(
            "counts",
            [](const Policy& self) {
                const SurvivalCounts counts = self.counts();
                return std::make_tuple(counts.drafts, counts.drafted, counts.verified, counts.accepted);
            },
            "Return drafts by position; drafted, verified and accepted tokens by position and bin.")
        .def("learn_length", &Policy::learn_length, "source"_a, "output"_a)
        .def("plan", &Policy::plan, "sentences"_a)
        .def("should_draft", &Policy::should_draft, "sentences"_a, "source"_a)
        .def_rw("costs", &Policy::costs);
}

}  // namespace

void bind_drafters(nb::module_& m) {
    nb::class_<Drafter>(m, "Drafter");
    nb::class_<Path>(m, "Path").def(
        "__init__",
        [](Path* self, const Array<int64_t, 1>& ids, const Maybe<float, 2>& before, SharedLinear after,
           SharedLinear gru_hidden, SharedLinear gru_token, SharedLinear gru_recurrent, SharedLinear to_rank) {
            Path path{integers(ids), {}, after, gru_hidden, gru_token, gru_recurrent, to_rank};
            if (after) path.before = table(before, after->inputs);
            path.check();
            new (self) Path(std::move(path));
        },
        "ids"_a, "before"_a.none(), "after"_a.none(), "gru_hidden"_a.none(), "gru_token"_a.none(),
        "gru_recurrent"_a.none(), "to_rank"_a.none());
    nb::class_<MaskWeights>(m, "MaskWeights")
        .def(
            "__init__",
            [](MaskWeights* self, const Array<float, 1>& vector, SharedLinear copy_attention,
               const Maybe<float, 2>& positions) {
                const auto width = static_cast<int64_t>(vector.size());
                require(!copy_attention || (positions && copy_attention->outputs == width),
                        "the mask weights do not fit each other");
                new (self) MaskWeights{floats(vector), copy_attention, table(positions, width)};
            },
            "vector"_a, "copy_attention"_a.none(), "positions"_a.none());
    m.def("feature_drafter", &make_feature_drafter, "model"_a, "path"_a, "mask"_a, "layers"_a, "reader"_a,
          "projections"_a, "width"_a);
    m.def("token_drafter", &make_token_drafter, "model"_a, "encoder"_a.none(), "path"_a, "mask"_a, "caches_prefix"_a,
          "width"_a);
    nb::enum_<Lookup>(m, "Lookup").value("UNIQUE", Lookup::UNIQUE).value("NEAREST", Lookup::NEAREST);
    nb::class_<CopyDrafter, Drafter>(m, "CopyDrafter", "Copies the source, or given drafts.")
        .def(nb::init<Lookup, int64_t, int64_t>(), "lookup"_a, "max_match"_a, "width"_a = INT64_MAX);
    m.def("jacobi_drafter", &make_jacobi_drafter, "block"_a, "window_ratio"_a, "length"_a, "initial"_a);
    m.def("heads_drafter", &make_heads_drafter, "expand"_a, "shrink"_a, "projection"_a);
    m.def("fallback_drafter", &make_fallback_drafter, "first"_a, "second"_a);
    nb::class_<Acceptance>(m, "Acceptance");
    m.def("accept_top_beta", &accept_top_beta, "beta"_a, "tau"_a);
    m.def(
        "accept_within_distance",
        [](float epsilon, const Array<float, 1>& values) { return accept_within_distance(epsilon, floats(values)); },
        "epsilon"_a, "values"_a);
    m.def("accept_at_least", &accept_at_least, "block"_a, "rule"_a.none());
    bind_policy(m);
}

}  // namespace spec_dec
