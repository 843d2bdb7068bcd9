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
    bind_layers(m);
    bind_drafters(m);
    bind_generator(m);
}
