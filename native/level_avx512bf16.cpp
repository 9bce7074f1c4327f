#include <stdint.h>

#if defined(__x86_64__) || defined(_M_X64)
#define HEADWAY_LEVEL avx512bf16
#include "simd_avx512.h"

#include "pairs_avx512bf16.h"

#include "level.h"
#endif
