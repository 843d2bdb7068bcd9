// A trained drafter that reads the verifier's states, as DFlash (arXiv 2602.06036) does for decoder-only models. A
// token's states become keys and values of every layer, once, when the token is emitted.

#include "drafters.h"
#include "trained.h"

namespace spec_dec {
namespace {

class FeatureDrafter final : public TrainedDrafter {
public:
    FeatureDrafter(std::shared_ptr<const Transformer> model, Path path, MaskWeights mask, std::vector<int> layers,
                   SharedLinear reader, std::vector<SharedLinear> projections, int64_t width)
        : TrainedDrafter(std::move(model), std::move(path), std::move(mask), width),
          layers(std::move(layers)),
          reader(std::move(reader)),
          projections(std::move(projections)) {
        const int dim = this->model->width, count = static_cast<int>(this->model->layers.size());
        const bool is_fused = this->projections.empty();
        require(this->reader->outputs == (is_fused ? 2 * count + 1 : count + 1) * dim &&
                    (is_fused || static_cast<int>(this->projections.size()) == count),
                "the layers of the drafter do not fit each other");
    }

    std::vector<int> layers_read() const override { return layers; }

    void begin_batch(const Batch& batch) override {
        path.check_drafter(*model, batch.limits.vocabulary);
        begin_sources(batch, batch.sources);
        newest.resize(batch.sentences() * model->width);
    }

    void begin(const Batch&, const std::vector<int64_t>& sentences) override {
        decoder.read_sources(sentences);
        masks.begin(sentences);
        for (const int64_t b : sentences) std::fill_n(newest.begin() + b * model->width, model->width, 0.0f);
        for (const int64_t b : sentences) masks.at(b, 0);
    }

    void observe(const Work& work) override {
        thread_local Floats states_memory, read_memory, context_memory, projected_memory;
        const Batch& batch = work.batch;
        const int64_t dim = model->width, inputs = reader->inputs, outputs = reader->outputs;
        struct Token {
            int64_t row, sentence, slot;
        };
        std::vector<Token> tokens;
        for (size_t index = 0; index < work.active.size(); ++index) {
            const int64_t b = work.active[index];
            for (int64_t t = 0; batch.is_drafted[b] && t < work.emitted[index]; ++t) {
                tokens.push_back({work.first_row[index] + t, b, batch.lengths[b] + t});
            }
        }
        const int64_t count = tokens.size();
        if (count == 0) return;
        float* states = at_least(states_memory, count * inputs);
        for (int64_t n = 0; n < count; ++n) {
            std::copy_n(work.rows.states.data() + tokens[n].row * inputs, inputs, states + n * inputs);
        }
        float* read = at_least(read_memory, count * outputs);
        reader->run(states, count, read);
        for (size_t layer = 0; layer < model->layers.size(); ++layer) {
            const float* from = read + layer * 2 * dim;
            int64_t stride = outputs;
            if (!projections.empty()) {
                float* inputs_of_layer = at_least(context_memory, count * dim);
                for (int64_t n = 0; n < count; ++n)
                    std::copy_n(read + n * outputs + layer * dim, dim, inputs_of_layer + n * dim);
                const Layer& own = model->layers[layer];
                if (own.normalize_before) own.self_norm.run(inputs_of_layer, count, inputs_of_layer);
                float* projected = at_least(projected_memory, count * 2 * dim);
                projections[layer]->run(inputs_of_layer, count, projected);
                from = projected;
                stride = 2 * dim;
            }
            for (int64_t n = 0; n < count; ++n) {
                std::copy_n(from + n * stride, 2 * dim, decoder.slot(layer, tokens[n].sentence, tokens[n].slot));
            }
        }
        // The newest token's part is added to the inputs of the next draft.
        for (int64_t n = 0; n < count; ++n) {
            std::copy_n(read + (n + 1) * outputs - dim, dim, newest.begin() + tokens[n].sentence * dim);
        }
    }

protected:
    // Adds the last token and then masks, with causal attention.
    void add_rows(const Batch& batch, int64_t sentence, int64_t longest, Rows& rows) override {
        const int64_t length = batch.lengths[sentence];
        rows.add(sentence, length, batch.last_token(sentence));
        for (int64_t t = 1; t < longest; ++t) rows.add(sentence, length + t, MASK);
    }

    void add_to_input(int64_t sentence, float* x) const override {
        for (int64_t c = 0; c < model->width; ++c) x[c] += newest[sentence * model->width + c];
    }

private:
    const std::vector<int> layers;
    const SharedLinear reader;
    const std::vector<SharedLinear> projections;
    Floats newest;  // [B][D], added to the inputs of the next draft
};

}  // namespace

SharedDrafter make_feature_drafter(std::shared_ptr<const Transformer> model, Path path, MaskWeights mask,
                                   std::vector<int> layers, SharedLinear reader, std::vector<SharedLinear> projections,
                                   int64_t width) {
    return std::make_shared<FeatureDrafter>(std::move(model), std::move(path), std::move(mask), std::move(layers),
                                            std::move(reader), std::move(projections), width);
}

}  // namespace spec_dec
