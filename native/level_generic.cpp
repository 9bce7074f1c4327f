#include <stdint.h>
#include "simd_generic.h"

#include "level.h"
