#include "transformer.h"

#include <string>

#include "kernels.h"

namespace spec_dec {

void Norm::run(const float* x, int64_t rows, float* y) const {
    kernels().layer_norm(weight.data(), bias.data(), epsilon, x, rows, static_cast<int>(weight.size()), y);
}

namespace {

void check_size(const SharedLinear& linear, int inputs, int outputs, const std::string& name) {
    require(linear != nullptr, (name + " is missing").c_str());
    const std::string size = std::to_string(linear->inputs) + " by " + std::to_string(linear->outputs);
    require(linear->inputs == inputs && linear->outputs == outputs, (name + " is " + size).c_str());
}

void check_norm(const Norm& norm, int width, bool may_be_none) {
    const size_t size = width;
    require((may_be_none && !norm) || (norm.weight.size() == size && norm.bias.size() == size),
            "a normalisation has another width");
}

}  // namespace

void Transformer::check() const {
    require(width > 0 && !layers.empty(), "a Transformer without layers");
    require(embedding.size > 0 && embedding.numbers, "the vocabulary is empty");
    const bool has_cross = layers[0].cross_query != nullptr;
    for (const Layer& layer : layers) {
        require(layer.heads > 0 && width % layer.heads == 0, "the heads do not divide the width");
        require((layer.cross_query != nullptr) == has_cross, "only some layers have cross-attention");
        check_size(layer.self_qkv, width, 3 * width, "self_qkv");
        check_size(layer.self_out, width, width, "self_out");
        require(layer.fc1 != nullptr, "fc1 is missing");
        check_size(layer.fc1, width, layer.fc1->outputs, "fc1");
        check_size(layer.fc2, layer.fc1->outputs, width, "fc2");
        check_norm(layer.self_norm, width, false);
        check_norm(layer.final_norm, width, false);
        if (!has_cross) continue;
        check_size(layer.cross_query, width, width, "cross_query");
        check_size(layer.cross_out, width, width, "cross_out");
        require(layer.cross_key_value != nullptr, "cross_key_value is missing");
        check_size(layer.cross_key_value, layers[0].cross_key_value->inputs, 2 * width, "cross_key_value");
        check_norm(layer.cross_norm, width, false);
    }
    check_norm(embedding_norm, width, true);
    check_norm(final_norm, width, true);
    require(!projection || projection->inputs == width, "the projection does not fit the width");
    if (screen) check_size(screen, width, projection ? projection->outputs : 0, "screen");
}

void Transformer::check_tokens(const int64_t* tokens, int64_t count) const {
    for (const int64_t* token = tokens; token < tokens + count; ++token) {
        require(0 <= *token && *token < embedding.size, "a source token is outside of the vocabulary");
    }
}

void Transformer::embed(int64_t token, float* x) const {
    if (embedding.scales) {
        const int8_t* from = static_cast<const int8_t*>(embedding.numbers) + token * width;
        for (int i = 0; i < width; ++i) x[i] = embedding_scale * (embedding.scales[token] * from[i]);
    } else {
        const float* from = static_cast<const float*>(embedding.numbers) + token * width;
        for (int i = 0; i < width; ++i) x[i] = embedding_scale * from[i];
    }
}

void Transformer::add_position(int64_t position, float* x) const {
    if (positions.size == 0) return;
    const float* from = positions.numbers + std::min(position, positions.size - 1) * width;
    for (int i = 0; i < width; ++i) x[i] += from[i];
}

void Transformer::run(float* x, int64_t rows, const Attend& attend_self, const Attend& attend_source,
                      const std::function<void(size_t, const float*)>& keep) const {
    thread_local Floats wide_memory, attended_memory, normal_memory;
    int widest = 3 * width;
    for (const Layer& layer : layers) widest = std::max(widest, layer.fc1->outputs);
    float* wide = at_least(wide_memory, rows * widest);
    float* attended = at_least(attended_memory, rows * width);
    float* normal = at_least(normal_memory, rows * width);
    if (keep) keep(0, x);
    for (size_t index = 0; index < layers.size(); ++index) {
        const Layer& layer = layers[index];
        const float* input = x;
        const auto before = [&](const Norm& norm) {
            if (layer.normalize_before) norm.run(x, rows, normal);
            input = layer.normalize_before ? normal : x;
        };
        const auto after = [&](const Norm& norm) {
            if (!layer.normalize_before) norm.run(x, rows, x);
        };

        before(layer.self_norm);
        layer.self_qkv->run(input, rows, wide);
        attend_self(index, wide, attended);
        layer.self_out->run(attended, rows, x, Activation::NONE, true);
        after(layer.self_norm);

        if (layer.cross_query) {
            before(layer.cross_norm);
            layer.cross_query->run(input, rows, wide);
            attend_source(index, wide, attended);
            layer.cross_out->run(attended, rows, x, Activation::NONE, true);
            after(layer.cross_norm);
        }

        before(layer.final_norm);
        layer.fc1->run(input, rows, wide, layer.activation);
        layer.fc2->run(wide, rows, x, Activation::NONE, true);
        after(layer.final_norm);
        if (keep) keep(index + 1, x);
    }
    if (final_norm) final_norm.run(x, rows, x);
}

int64_t Transformer::multiply_adds() const {
    int64_t sum = projection ? projection->multiply_adds() : 0;
    for (const Layer& layer : layers) {
        for (const SharedLinear* linear :
             {&layer.self_qkv, &layer.self_out, &layer.cross_query, &layer.cross_out, &layer.fc1, &layer.fc2}) {
            if (*linear) sum += (*linear)->multiply_adds();
        }
    }
    return sum;
}

}  // namespace spec_dec
