#include <stdint.h>

#if defined(__aarch64__)
#include "dots_neon.h"

#include "simd_math.h"

#include "product_level.h"
#endif
