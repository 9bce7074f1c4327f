#include <stdint.h>
#include "dots_generic.h"

#include "simd_math.h"

#include "product_level.h"
