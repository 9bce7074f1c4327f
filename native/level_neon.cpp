#include <stdint.h>

#if defined(__aarch64__)
#include "simd_neon.h"

#include "level.h"

#include "encoder_level.h"
#endif
