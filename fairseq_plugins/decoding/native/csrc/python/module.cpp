// The Python module.

#include "../kernels.h"
#include "binding.h"

NB_MODULE(_kernels, m) {
    using namespace spec_dec;
    // At the end of a program the traceback of its error may still hold a model: not a leak that users can mend.
    nb::set_leak_warnings(false);
    m.def("instruction_set", [] { return std::string(kernels().name); }, "Return the instruction set in use.");
    m.def("runnable_instruction_sets", &runnable_instruction_sets,
          "Return those that this processor runs, the best first.");
    m.def("use_instruction_set", &use_instruction_set, "name"_a);
    m.def("set_threads", &threads::set, "count"_a);
    m.def(
        "gumbel",
        [](const Array<int64_t, 1>& words) {
            std::vector<float> result;
            for (size_t i = 0; i < words.size(); ++i) {
                result.push_back(noise::gumbel(static_cast<uint32_t>(words.data()[i])));
            }
            return as_numpy(std::move(result));
        },
        "words"_a, "Return the noise of random words.");
    m.def(
        "noisy_argmax",
        [](const Array<float, 2>& scores, const Array<int64_t, 2>& keys, const Array<int64_t, 1>& positions) {
            const size_t rows = scores.shape(0), size = scores.shape(1);
            require(keys.shape(0) == rows && keys.shape(1) == 4 && positions.size() == rows && size > 0,
                    "scores, keys and positions do not fit each other");
            std::vector<int64_t> result;
            for (size_t row = 0; row < rows; ++row) {
                const float* from = scores.data() + row * size;
                const NoiseKey key(keys.data() + 4 * row, positions.data()[row]);
                result.push_back(kernels().noisy_argmax(from, size, kernels().argmax(from, size), key));
            }
            return as_numpy(std::move(result));
        },
        "scores"_a, "keys"_a, "positions"_a, "Return the best tokens of rows of scores with their noise.");
    bind_layers(m);
    bind_drafters(m);
    bind_generator(m);
}
