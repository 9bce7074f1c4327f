#include "levels.h"

#include "headway.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace headway {
namespace {

#if defined(__x86_64__) || defined(_M_X64)
/* Intel's manual, volume 2 (CPUID) and volume 1, chapters 14 and 15: the processor has the instructions, and the
 * operating system keeps the registers (XGETBV). */
int levels() {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return HEADWAY_GENERIC;
    const bool fma = c & 1u << 12, osxsave = c & 1u << 27, avx = c & 1u << 28, f16c = c & 1u << 29;
    if (!(fma && osxsave && avx && f16c)) return HEADWAY_GENERIC;
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return HEADWAY_GENERIC;
    const bool avx2 = b & 1u << 5;
    const bool avx512 = (b & 1u << 16) && (b & 1u << 17) && (b & 1u << 30) && (b & 1u << 31); /* F DQ BW VL */
    if (!avx2) return HEADWAY_GENERIC;
    if (!avx512 || (low & 0xe6) != 0xe6) return HEADWAY_GENERIC | HEADWAY_AVX2;
    const bool bf16 = __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5);
    return HEADWAY_GENERIC | HEADWAY_AVX2 | HEADWAY_AVX512 | (bf16 ? HEADWAY_AVX512BF16 : 0);
}

int dots() {
    const int can = levels();
    unsigned a, b, c, d, most;
    if (!(can & HEADWAY_AVX2) || !__get_cpuid_count(7, 0, &most, &b, &c, &d)) return HEADWAY_DOTS_GENERIC;
    const bool avx512vnni = (can & HEADWAY_AVX512) && (c & 1u << 11);
    const bool avxvnni = most >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
    return HEADWAY_DOTS_GENERIC | HEADWAY_DOTS_AVX2 | (avxvnni ? HEADWAY_DOTS_AVXVNNI : 0) |
           (avx512vnni ? HEADWAY_DOTS_AVX512VNNI : 0);
}
#elif defined(__aarch64__)
int levels() { return HEADWAY_GENERIC | HEADWAY_NEON; }

bool dotprod() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) & 1ul << 20; /* HWCAP_ASIMDDP */
#elif defined(__APPLE__)
    int has = 0;
    size_t size = sizeof has;
    return !sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) && has;
#else
    return false;
#endif
}

int dots() { return HEADWAY_DOTS_GENERIC | HEADWAY_DOTS_NEON | (dotprod() ? HEADWAY_DOTS_DOTPROD : 0); }
#else
int levels() { return HEADWAY_GENERIC; }
int dots() { return HEADWAY_DOTS_GENERIC; }
#endif

} // namespace

const Kernels *kernels_of(int level) {
    if (!(level & levels())) return nullptr;
    switch (level) {
    case HEADWAY_GENERIC:
        return &kernels_generic;
#if defined(__x86_64__) || defined(_M_X64)
    case HEADWAY_AVX2:
        return &kernels_avx2;
    case HEADWAY_AVX512:
        return &kernels_avx512;
    case HEADWAY_AVX512BF16:
        return &kernels_avx512bf16;
#elif defined(__aarch64__)
    case HEADWAY_NEON:
        return &kernels_neon;
#endif
    default:
        return nullptr;
    }
}

const EncoderKernels *encoder_of(int level) {
    if (!(level & levels())) return nullptr;
    switch (level) {
    case HEADWAY_GENERIC:
        return &encoder_generic;
#if defined(__x86_64__) || defined(_M_X64)
    case HEADWAY_AVX2:
        return &encoder_avx2;
    case HEADWAY_AVX512:
    case HEADWAY_AVX512BF16: /* an encoder keeps no state */
        return &encoder_avx512;
#elif defined(__aarch64__)
    case HEADWAY_NEON:
        return &encoder_neon;
#endif
    default:
        return nullptr;
    }
}

const ProductKernels *products_of(int kind) {
    if (!(kind & dots())) return nullptr;
    switch (kind) {
    case HEADWAY_DOTS_GENERIC:
        return &products_generic;
#if defined(__x86_64__) || defined(_M_X64)
    case HEADWAY_DOTS_AVX2:
        return &products_avx2;
    case HEADWAY_DOTS_AVXVNNI:
        return &products_avxvnni;
    case HEADWAY_DOTS_AVX512VNNI:
        return &products_avx512vnni;
#elif defined(__aarch64__)
    case HEADWAY_DOTS_NEON:
        return &products_neon;
    case HEADWAY_DOTS_DOTPROD:
        return &products_dotprod;
#endif
    default:
        return nullptr;
    }
}

} // namespace headway

int32_t headway_abi(void) { return HEADWAY_ABI; }

int32_t headway_levels(void) { return headway::levels(); }

int32_t headway_dots(void) { return headway::dots(); }
