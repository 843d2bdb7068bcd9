// How the tokens of a draft are chosen from left to right: see models/transition.py.

#pragma once

#include <vector>

#include "drafter.h"
#include "transformer.h"

namespace spec_dec {

// Scores of a token given those before it. Without `before`, each token is chosen by itself.
struct Path {
    std::vector<int64_t> ids;  // [N], of the tokens that have scores
    Table before;              // [vocabulary][rank], of the token before
    SharedLinear after;        // rank to N
    // A recurrent cell (GRU) of width S along the path; null for none.
    SharedLinear of_hidden, of_before, of_state;  // D, rank and S to 3 S: reset, update and new
    SharedLinear to_rank;                         // S to rank

    // Checks that the parts fit each other. Throws std::invalid_argument.
    void check() const;

    // Checks that a drafter can choose with it, given the vocabulary of the verifier. Throws std::invalid_argument.
    void check_drafter(const Transformer& drafter, int64_t vocabulary) const;

    // Chooses the tokens of some drafts: at each position the one with the highest sum of its own score and that of
    // coming after the tokens before it.
    //
    // scores: [n][width][N], changed; hidden: [n][width][D]; which: [n], indices in drafts; last: [n], the token
    // before.
    void choose(float* scores, const float* hidden, int64_t width, const std::vector<size_t>& which,
                const std::vector<int64_t>& last, Drafts& drafts) const;
};

}  // namespace spec_dec
