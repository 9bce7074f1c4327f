#include <stdint.h>
#include "simd_generic.h"

#include "level.h"

#include "encoder_level.h"
