#include <stdint.h>

#if defined(__aarch64__)
#define HEADWAY_SDOT 1
/* Not by a flag: GCC, clang and zig agree on none that adds this instruction to the baseline. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif
#include "dots_neon.h"

#include "simd_math.h"

#include "product_level.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
