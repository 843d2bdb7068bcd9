#include "kernels.h"

#include <cmath>
#include <stdexcept>

namespace spec_dec {

// setup.py builds isa/ once for each of these that the compiler knows.
#define SPEC_DEC_DECLARE(name)    \
    namespace isa_##name {        \
    const Kernels& get_kernels(); \
    }
SPEC_DEC_DECLARE(portable)
#if defined(__x86_64__)
SPEC_DEC_DECLARE(avx2)
SPEC_DEC_DECLARE(avx512)
SPEC_DEC_DECLARE(vnni)
SPEC_DEC_DECLARE(amx)
#endif

namespace {

// The best first.
std::vector<const Kernels*> runnable() {
    std::vector<const Kernels*> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
    // The system has to allow tiles, too: that is asked for once they are wanted.
    if (vnni && isa_amx::get_kernels().supports(WeightFormat::FP16_AMX_TILES)) found.push_back(&isa_amx::get_kernels());
    if (vnni) found.push_back(&isa_vnni::get_kernels());
    if (avx512) found.push_back(&isa_avx512::get_kernels());
    if (avx2) found.push_back(&isa_avx2::get_kernels());
#endif
    found.push_back(&isa_portable::get_kernels());
    return found;
}

const Kernels*& in_use() {
    static const Kernels* chosen = runnable().front();
    return chosen;
}

}  // namespace

const Kernels& kernels() {
    static const Kernels*& chosen = in_use();
    return *chosen;
}

std::vector<std::string> runnable_instruction_sets() {
    std::vector<std::string> names;
    for (const Kernels* found : runnable()) names.emplace_back(found->name);
    return names;
}

void use_instruction_set(const std::string& name) {
    for (const Kernels* found : runnable()) {
        if (found->name == name) {
            in_use() = found;
            return;
        }
    }
    throw std::invalid_argument("this processor has no " + name);
}

float log_normalizer(const float* scores, int64_t size) {
    const float highest = kernels().highest(scores, size);
    return highest + std::log(kernels().sum_exponentials(scores, size, highest));
}

}  // namespace spec_dec
