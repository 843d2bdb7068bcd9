#include "path.h"

#include "kernels.h"

namespace spec_dec {

void Path::check() const {
    require(!ids.empty(), "a path has no tokens");
    require(after || !to_rank, "the layers of a path do not fit each other");
    if (!after) return;
    require(before.numbers && static_cast<int>(ids.size()) == after->outputs,
            "the transition scores are of other tokens");
    for (const int64_t id : ids) require(0 <= id && id < before.size, "a path has an unknown token");
    if (!to_rank) return;
    require(gru_hidden && gru_token && gru_recurrent, "the layers of a path do not fit each other");
    const int gates = gru_hidden->outputs, rank = after->inputs;
    require(gru_token->outputs == gates && gru_recurrent->outputs == gates && gru_recurrent->inputs * 3 == gates &&
                to_rank->inputs == gru_recurrent->inputs && to_rank->outputs == rank && gru_token->inputs == rank,
            "the layers of a path do not fit each other");
}

void Path::check_drafter(const Transformer& drafter, int64_t vocabulary) const {
    require(drafter.projection && drafter.projection->outputs == static_cast<int>(ids.size()),
            "the drafter and its path score different tokens");
    require(!gru_hidden || gru_hidden->inputs == drafter.width, "the path does not fit the width of the drafter");
    require(drafter.embedding.size >= vocabulary && (!after || before.size >= vocabulary),
            "the vocabulary of the drafter is smaller than the verifier's");
}

void Path::choose(float* scores, const float* hidden, int64_t width, const std::vector<size_t>& indices,
                  Work& work) const {
    thread_local Floats factor_memory, hidden_memory, input_memory, recurrent_memory, state_memory;
    const int64_t count = indices.size(), size = ids.size();
    const int64_t rank = after ? after->inputs : 0, state_width = to_rank ? to_rank->inputs : 0,
                  gates = 3 * state_width;
    float* factor = at_least(factor_memory, count * rank);
    float *from_hidden = nullptr, *from_input = nullptr, *from_state = nullptr, *state = nullptr;
    if (to_rank) {
        from_hidden = at_least(hidden_memory, count * width * gates);
        from_input = at_least(input_memory, count * gates);
        from_state = at_least(recurrent_memory, count * gates);
        state = at_least(state_memory, count * state_width);
        std::fill_n(state, count * state_width, 0.0f);
        gru_hidden->run(hidden, count * width, from_hidden);
    }
    Drafts& drafts = work.drafts;
    std::vector<int64_t> previous;
    for (const size_t index : indices) previous.push_back(work.batch.last_token(work.active[index]));
    bool any = true;
    for (int64_t position = 0; any && position < width; ++position) {
        for (int64_t n = 0; after && n < count; ++n) {
            std::copy_n(before.numbers + previous[n] * rank, rank, factor + n * rank);
        }
        if (to_rank) {
            for (int64_t n = 0; n < count; ++n)
                std::copy_n(from_hidden + (n * width + position) * gates, gates, from_input + n * gates);
            gru_token->run(factor, count, from_input, Activation::NONE, true);
            gru_recurrent->run(state, count, from_state);
            kernels().gru_step(from_input, from_state, count, static_cast<int>(state_width), state);
            to_rank->run(state, count, factor, Activation::NONE, true);
        }
        if (after) {
            const Target sums{scores + position * size, width * size, Activation::NONE, true};
            after->run_outputs(factor, count, 0, after->outputs, sums);
        }
        any = false;
        for (int64_t n = 0; n < count; ++n) {
            if (!drafts.can_add(indices[n])) continue;
            const float* sums = scores + (n * width + position) * size;
            const int64_t b = work.active[indices[n]];
            const auto [token, probability] = choose_draft(
                sums, ids, work.batch.limits, b, work.batch.lengths[b] + position, drafts.needs_probabilities());
            previous[n] = token;
            any |= drafts.add(indices[n], token, probability);
        }
    }
}

}  // namespace spec_dec
