// How likely drafted tokens survive verification, by their place in the draft and what the drafter says of them.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace spec_dec {

constexpr int BINS = 20;  // of the probability that a token and all before it are right, as the drafter says

// The bin of a probability; NaN is in the first.
inline int bin_of(float probability) {
    return probability > 0 ? std::min(static_cast<int>(std::min(probability, 1.0f) * BINS), BINS - 1) : 0;
}

// What became of drafts of up to `width` tokens.
struct SurvivalCounts {
    explicit SurvivalCounts(int64_t width = 0)
        : drafts(width), seen(width * BINS), tried(width * BINS), right(width * BINS) {}

    int64_t width() const { return drafts.size(); }
    // Of a token; those after the last one count as the last one.
    size_t place(int64_t position, int bin) const { return std::min(position, width() - 1) * BINS + bin; }

    std::vector<double> drafts;              // [width], drafts that might have a token there
    std::vector<double> seen, tried, right;  // [width][BINS], tokens that were made, verified, accepted
};

// The same as shares, [width][BINS].
struct SurvivalRates {
    std::vector<float> reach;  // of all drafts that might have a token there, those that have one in the bin
    std::vector<float> rate;   // of these, those that survive
};

}  // namespace spec_dec
