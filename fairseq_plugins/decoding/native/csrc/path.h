// Selection of a draft's tokens from left to right, with transition scores (models/transition.py).

#pragma once

#include <vector>

#include "drafter.h"
#include "transformer.h"

namespace spec_dec {

// Transition scores: of a token, given the tokens before it. Without them, each token is chosen independently.
struct Path {
    std::vector<int64_t> ids;  // [N], tokens that the drafter scores
    Table before;              // [vocabulary][rank], left factor: of the previous token
    SharedLinear after;        // rank to N, right factor: of the token; null without transition scores
    // A GRU of width S over the path, whose state adds to the left factor; null without it.
    SharedLinear gru_hidden, gru_token,
        gru_recurrent;     // to 3 S, from the drafter's states, left factors and GRU states
    SharedLinear to_rank;  // S to rank

    // Throws std::invalid_argument if the shapes of two parts do not match.
    void check() const;

    // Throws std::invalid_argument if it does not match the drafter or the verifier's vocabulary.
    void check_drafter(const Transformer& drafter, int64_t vocabulary) const;

    // Fills drafts: at each position with the token whose own score and transition score have the highest sum.
    //
    // scores: [n][width][N], overwritten. hidden: [n][width][D]. indices: [n], of the sentences in work.active.
    void choose(float* scores, const float* hidden, int64_t width, const std::vector<size_t>& indices,
                Work& work) const;
};

}  // namespace spec_dec
