// Prints which sentences of the batch, with which costs are measured, equal the one before: no number if none does.
// Then prints how many times 100 ms the clock of these measurements counts in a sleep of as much.

#include <chrono>
#include <cstdio>
#include <thread>

// For what is its own.
#include "costs.cpp"

namespace {

struct NoLinear final : spec_dec::Linear {
    NoLinear() : Linear({nullptr, nullptr, nullptr, PANEL, PANEL, false, nullptr}, 1) {}
    void run_outputs(const float*, int64_t, int, int, const spec_dec::Target&) const override {}
};

}  // namespace

int main() {
    spec_dec::Transformer model;
    model.projection = std::make_shared<NoLinear>();
    model.layers.resize(1);
    model.layers[0].cross_key_value = model.projection;
    const spec_dec::Batch batch = spec_dec::synthetic_batch(model, 16, 24, 40);
    for (int64_t b = 1; b < batch.sentences(); ++b) {
        if (batch.sources.are_equal(b, b - 1)) std::printf("%d ", static_cast<int>(b));
    }
    std::printf("of %d\n", static_cast<int>(batch.sentences()));
    const spec_dec::Clock clock = spec_dec::finest_clock();
    const double began = clock();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::printf("%d\n", static_cast<int>(1000 * (clock() - began)) / 100);
}
