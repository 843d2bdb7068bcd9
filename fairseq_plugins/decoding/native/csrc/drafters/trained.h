// Base of trained drafters: one pass of a decoder over masks, then a path through its scores.

#pragma once

#include "mask_embeddings.h"

namespace spec_dec {

class TrainedDrafter : public Drafter {
public:
    int64_t max_width(const Batch&) const override { return width; }

    void draft(Work& work) override {
        thread_local Rows rows;
        thread_local Floats hidden_memory, scores_memory;
        std::vector<size_t> indices;
        int64_t longest = 0;
        for (size_t index = 0; index < work.active.size(); ++index) {
            if (!work.batch.is_drafted[work.active[index]] || !work.drafts.can_add(index)) continue;
            indices.push_back(index);
            longest = std::max(longest, work.drafts.max_count(index));
        }
        if (indices.empty()) return;
        const int64_t dim = model->width, count = indices.size() * longest;
        rows.clear();
        float* hidden = at_least(hidden_memory, count * dim);
        std::vector<int64_t> first_draft_row;
        for (const size_t index : indices) {
            add_rows(work.batch, work.active[index], longest, rows);
            first_draft_row.push_back(rows.size() - longest);
        }
        const auto input = [&](int64_t row, float* x) {
            if (rows.tokens[row] == MASK) {
                std::copy_n(masks.at(rows.sentence[row], rows.position[row]), dim, x);
            } else {
                model->embed(rows.tokens[row], x);
            }
            add_to_input(rows.sentence[row], x);
        };
        decoder.run(rows, input, {});
        for (size_t n = 0; n < indices.size(); ++n) {
            std::copy_n(rows.x.data() + first_draft_row[n] * dim, longest * dim, hidden + n * longest * dim);
        }
        float* scores = at_least(scores_memory, count * model->projection->outputs);
        model->projection->run(hidden, count, scores);
        path.choose(scores, hidden, longest, indices, work);
    }

protected:
    static constexpr int64_t MASK = -1;

    TrainedDrafter(std::shared_ptr<const Transformer> model, Path path, MaskWeights mask, int64_t width)
        : model(model), decoder(model), path(std::move(path)), masks(std::move(mask)), width(width) {}

    // Begins a batch with the sources that the drafter attends to.
    void begin_sources(const Batch& batch, const Sources& sources) {
        const int64_t capacity = batch.columns + width + 1;
        decoder.begin(sources, capacity);
        masks.begin_batch(sources, capacity);
    }

    // Adds the rows of a sentence. The last `longest` of them predict the tokens of its draft.
    virtual void add_rows(const Batch& batch, int64_t sentence, int64_t longest, Rows& rows) = 0;

    // Adds a vector to the input x[D] of each row of a sentence.
    virtual void add_to_input(int64_t, float*) const {}

    const std::shared_ptr<const Transformer> model;
    Decoder decoder;
    const Path path;
    MaskEmbeddings masks;
    const int64_t width;
};

}  // namespace spec_dec
