#include <stdint.h>

#if defined(__x86_64__) || defined(_M_X64)
#include "simd_avx512.h"

#include "level.h"

#include "encoder_level.h"
#endif
