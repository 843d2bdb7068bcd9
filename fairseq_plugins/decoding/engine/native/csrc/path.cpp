#include "path.h"

#include <stdexcept>

#include "kernels.h"

namespace spec_dec {
namespace {

void require(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

}  // namespace

void Path::check() const {
    require(!ids.empty(), "a path scores no token");
    require(after || !to_rank, "the layers of a path do not fit each other");
    if (!after) return;
    require(before.numbers && static_cast<int>(ids.size()) == after->outputs, "a path scores other tokens");
    for (const int64_t id : ids) require(0 <= id && id < before.size, "a path has an unknown token");
    if (!to_rank) return;
    require(of_hidden && of_before && of_state, "the layers of a path do not fit each other");
    const int gates = of_hidden->outputs, rank = after->inputs;
    require(of_before->outputs == gates && of_state->outputs == gates && of_state->inputs * 3 == gates &&
                to_rank->inputs == of_state->inputs && to_rank->outputs == rank && of_before->inputs == rank,
            "the layers of a path do not fit each other");
}

void Path::check_drafter(const Transformer& drafter, int64_t vocabulary) const {
    require(drafter.projection && drafter.projection->outputs == static_cast<int>(ids.size()),
            "a drafter scores other tokens than its path");
    require(!of_hidden || of_hidden->inputs == drafter.width, "a path reads other states than the drafter's");
    require(drafter.embedding.size >= vocabulary && (!after || before.size >= vocabulary),
            "a drafter knows fewer tokens than the verifier");
}

void Path::choose(float* scores, const float* hidden, int64_t width, const std::vector<size_t>& which,
                  const std::vector<int64_t>& last, Drafts& drafts) const {
    thread_local Floats before_memory, read_memory, gates_memory, recurrent_memory, state_memory;
    const int64_t count = which.size(), size = ids.size();
    const int64_t rank = after ? after->inputs : 0, state_width = to_rank ? to_rank->inputs : 0,
                  gates = 3 * state_width;
    float* context = at_least(before_memory, count * rank);
    float *read = nullptr, *gate = nullptr, *recurrent = nullptr, *state = nullptr;
    if (to_rank) {
        read = at_least(read_memory, count * width * gates);
        gate = at_least(gates_memory, count * gates);
        recurrent = at_least(recurrent_memory, count * gates);
        state = at_least(state_memory, count * state_width);
        std::fill_n(state, count * state_width, 0.0f);
        of_hidden->run(hidden, count * width, read);
    }
    std::vector<int64_t> previous = last;
    bool any = true;
    for (int64_t position = 0; any && position < width; ++position) {
        for (int64_t n = 0; after && n < count; ++n) {
            std::copy_n(before.numbers + previous[n] * rank, rank, context + n * rank);
        }
        if (to_rank) {
            for (int64_t n = 0; n < count; ++n)
                std::copy_n(read + (n * width + position) * gates, gates, gate + n * gates);
            of_before->run(context, count, gate, Activation::NONE, true);
            of_state->run(state, count, recurrent);
            kernels().update_gru(gate, recurrent, count, static_cast<int>(state_width), state);
            to_rank->run(state, count, context, Activation::NONE, true);
        }
        if (after) {
            const Target sums{scores + position * size, width * size, Activation::NONE, true};
            after->run_outputs(context, count, 0, after->outputs, sums);
        }
        any = false;
        for (int64_t n = 0; n < count; ++n) {
            if (!drafts.goes_on(which[n])) continue;
            const float* sums = scores + (n * width + position) * size;
            const int64_t best = kernels().first_best(sums, size);
            previous[n] = ids[best];
            const float probability =
                drafts.wants_probabilities() ? 1 / kernels().sum_exponentials(sums, size, sums[best]) : 1;
            any |= drafts.add(which[n], previous[n], probability);
        }
    }
}

}  // namespace spec_dec
