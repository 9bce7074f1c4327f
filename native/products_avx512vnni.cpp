#include <stdint.h>

#if defined(__x86_64__) || defined(_M_X64)
#include "dots_avx512.h"

#include "simd_math.h"

#include "product_level.h"
#endif
