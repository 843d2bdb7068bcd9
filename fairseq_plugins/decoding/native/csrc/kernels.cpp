#include "kernels.h"

#include <cmath>
#include <stdexcept>

#if defined(SPEC_DEC_WITH_AMX) || defined(SPEC_DEC_WITH_AVXVNNI)
#include <cpuid.h>
#endif
#if defined(SPEC_DEC_WITH_DOTPROD) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace spec_dec {

// setup.py compiles isa/ for each instruction set that the compiler knows, and defines SPEC_DEC_WITH_AVX2 ... for them.
#define SPEC_DEC_DECLARE(name)        \
    namespace isa_##name {            \
        const Kernels& get_kernels(); \
    }
SPEC_DEC_DECLARE(portable)
SPEC_DEC_DECLARE(avx2)
SPEC_DEC_DECLARE(avxvnni)
SPEC_DEC_DECLARE(avx512)
SPEC_DEC_DECLARE(vnni)
SPEC_DEC_DECLARE(amx)
SPEC_DEC_DECLARE(dotprod)

namespace {

#ifdef SPEC_DEC_WITH_AMX
// Whether the processor has AMX-BF16, AMX-INT8 and AVX512-FP16. `__builtin_cpu_supports` of older compilers lacks these
// names.
bool has_amx() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
    constexpr unsigned AMX_BF16 = 1u << 22, AVX512_FP16 = 1u << 23, AMX_TILE = 1u << 24, AMX_INT8 = 1u << 25;
    constexpr unsigned NEEDED = AMX_BF16 | AVX512_FP16 | AMX_TILE | AMX_INT8;
    return (edx & NEEDED) == NEEDED;
}
#endif

#ifdef SPEC_DEC_WITH_AVXVNNI
// Whether the processor has AVX-VNNI. `__builtin_cpu_supports` of older compilers lacks this name.
bool has_avx_vnni() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    constexpr unsigned AVX_VNNI = 1u << 4;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & AVX_VNNI);
}
#endif

#ifdef SPEC_DEC_WITH_DOTPROD
// Whether the processor multiplies and sums bytes (ASIMDDP), as all of Apple's do.
bool has_dotprod() {
#ifdef __linux__
    constexpr unsigned long ASIMDDP = 1ul << 20;
    return getauxval(AT_HWCAP) & ASIMDDP;
#else
    return true;
#endif
}
#endif

// Returns the kernels that this processor runs, the best first.
std::vector<const Kernels*> runnable() {
    std::vector<const Kernels*> result;
#if defined(__x86_64__)
    __builtin_cpu_init();
    [[maybe_unused]] const bool avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    [[maybe_unused]] const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                                         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                                         __builtin_cpu_supports("avx512vl");
    [[maybe_unused]] const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
#ifdef SPEC_DEC_WITH_AMX
    if (vnni && has_amx() && isa_amx::get_kernels().supports(WeightFormat::FP16_AMX_TILES)) {
        result.push_back(&isa_amx::get_kernels());
    }
#endif
#ifdef SPEC_DEC_WITH_VNNI
    if (vnni) result.push_back(&isa_vnni::get_kernels());
#endif
#ifdef SPEC_DEC_WITH_AVX512
    if (avx512) result.push_back(&isa_avx512::get_kernels());
#endif
#ifdef SPEC_DEC_WITH_AVXVNNI
    if (avx2 && has_avx_vnni()) result.push_back(&isa_avxvnni::get_kernels());
#endif
#ifdef SPEC_DEC_WITH_AVX2
    if (avx2) result.push_back(&isa_avx2::get_kernels());
#endif
#endif
#ifdef SPEC_DEC_WITH_DOTPROD
    if (has_dotprod()) result.push_back(&isa_dotprod::get_kernels());
#endif
    result.push_back(&isa_portable::get_kernels());
    return result;
}

const Kernels*& in_use() {
    static const Kernels* chosen = runnable().front();
    return chosen;
}

}  // namespace

const Kernels& kernels() { return *in_use(); }

std::vector<std::string> runnable_instruction_sets() {
    std::vector<std::string> names;
    for (const Kernels* each : runnable()) names.emplace_back(each->name);
    return names;
}

void use_instruction_set(const std::string& name) {
    for (const Kernels* each : runnable()) {
        if (each->name == name) {
            in_use() = each;
            return;
        }
    }
    throw std::invalid_argument("this processor does not run " + name);
}

float log_sum_exp(const float* scores, int64_t size) {
    const float max = kernels().max(scores, size);
    return max + std::log(kernels().sum_exp(scores, size, max));
}

}  // namespace spec_dec
