// Python bindings of layers and weights.

#include <utility>

#include "../kernels.h"
#include "../transformer.h"
#include "binding.h"

namespace spec_dec {
namespace {

std::shared_ptr<Linear> linear(nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu, nb::ro> weight,
                               const Maybe<float, 1>& bias, const Maybe<float, 1>& scale, WeightFormat format,
                               bool batch_invariant) {
    const bool is_quantized = scale.has_value();
    require(weight.dtype() == (is_quantized ? nb::dtype<int8_t>() : nb::dtype<float>()), "a weight has another type");
    require(!is_quantized || format == WeightFormat::INT8, "scales are for int8");
    require(weight.size() > 0, "a weight is empty");
    const auto outputs = static_cast<int>(weight.shape(0)), inputs = static_cast<int>(weight.shape(1));
    require(!bias || static_cast<int>(bias->size()) == outputs, "a bias has another size");
    require(!scale || static_cast<int>(scale->size()) == outputs, "the scales have another size");
    require(kernels().supports(format), "this processor does not support the weight format");
    return kernels().make_linear({weight.data(), scale ? scale->data() : nullptr, bias ? bias->data() : nullptr, inputs,
                                  outputs, batch_invariant, owner_of(weight)},
                                 format);
}

using AnyMatrix = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu, nb::ro>;

// scales: of the rows of an embedding in int8; none for float32.
Embedding embedding_of(const AnyMatrix& embedding, const Maybe<float, 1>& scales) {
    require(embedding.dtype() == (scales ? nb::dtype<int8_t>() : nb::dtype<float>()), "the embedding has another type");
    require(!scales || scales->size() == embedding.shape(0), "the scales of the embedding have another size");
    Embedding result{embedding.data(), nullptr, static_cast<int64_t>(embedding.shape(0)), owner_of(embedding), {}};
    if (scales) {
        result.scales = scales->data();
        result.owner_of_scales = owner_of(*scales);
    }
    return result;
}

std::shared_ptr<Transformer> transformer(std::vector<Layer> layers, const AnyMatrix& embedding, float scale,
                                         const Maybe<float, 2>& positions, Norm embedding_norm, Norm final_norm,
                                         SharedLinear projection, const Maybe<float, 1>& embedding_scales,
                                         SharedLinear screen, bool scores_later) {
    auto model = std::make_shared<Transformer>();
    model->width = static_cast<int>(embedding.shape(1));
    model->layers = std::move(layers);
    model->embedding = embedding_of(embedding, embedding_scales);
    model->embedding_scale = scale;
    model->positions = table(positions, model->width);
    model->embedding_norm = std::move(embedding_norm);
    model->final_norm = std::move(final_norm);
    model->projection = std::move(projection);
    model->screen = std::move(screen);
    model->scores_later = scores_later;
    model->check();
    return model;
}

}  // namespace

void bind_layers(nb::module_& m) {
    nb::enum_<WeightFormat>(m, "WeightFormat")
        .value("PANELS", WeightFormat::PANELS)
        .value("ROWS", WeightFormat::ROWS)
        .value("FP16_PANELS", WeightFormat::FP16_PANELS)
        .value("FP32_AMX_TILES", WeightFormat::FP32_AMX_TILES)
        .value("FP16_AMX_TILES", WeightFormat::FP16_AMX_TILES)
        .value("INT8", WeightFormat::INT8);
    nb::enum_<Activation>(m, "Activation")
        .value("RELU", Activation::RELU)
        .value("GELU", Activation::GELU)
        .value("SILU", Activation::SILU);
    m.def(
        "supports", [](WeightFormat format) { return kernels().supports(format); }, "format"_a,
        "Return whether this processor supports a weight format.");
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
            "x"_a, "Apply to x [R, inputs]; return R * outputs numbers.")
        .def(
            "error_bound",
            [](const Linear& self, const Array<float, 1>& x) {
                require(static_cast<int>(x.shape(0)) == self.inputs, "the input has another width");
                return self.error_bound(x.data());
            },
            "x"_a, "Return how far an output of x [inputs] may be from that of the weight in float32.");
    m.def("linear", &linear, "weight"_a, "bias"_a.none(), "scale"_a.none(), "format"_a, "batch_invariant"_a);
    nb::class_<Norm>(m, "Norm").def(
        "__init__",
        [](Norm* self, const Maybe<float, 1>& weight, const Maybe<float, 1>& bias, float eps) {
            require(weight.has_value() == bias.has_value(), "a norm has weights and biases, or none");
            new (self)
                Norm{weight ? floats(*weight) : std::vector<float>(), bias ? floats(*bias) : std::vector<float>(), eps};
        },
        "weight"_a = nb::none(), "bias"_a = nb::none(), "eps"_a = 0.0f);
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
    m.def("transformer", &transformer, "layers"_a, "embedding"_a, "scale"_a, "positions"_a.none(), "embedding_norm"_a,
          "final_norm"_a, "projection"_a.none(), "embedding_scales"_a.none() = nb::none(),
          "screen"_a.none() = nb::none(), "scores_later"_a = false);
}

}  // namespace spec_dec
