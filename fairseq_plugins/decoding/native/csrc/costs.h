// The costs that the policy weighs, measured on the real weights.

#pragma once

#include <memory>

#include "greedy_search.h"

namespace spec_dec {

// Returns the costs of steps, of drafts of up to `width` tokens and of their verification. Costs of larger calls are
// extrapolated from the sizes that are measured.
Costs measure_costs(std::shared_ptr<const Transformer> model, const OutputHead& head, std::shared_ptr<Drafter> drafter,
                    int64_t width);

// Returns measured costs without what only noise explains: a call is never cheaper than a smaller one, nor dearer than
// several smaller ones. The largest calls are measured least often. If other programs interrupt each of them, greedy
// decoding of large batches looks slow, and drafts fast.
CostTable consistent(CostTable measured);

}  // namespace spec_dec
