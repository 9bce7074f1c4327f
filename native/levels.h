/* Which levels this machine can run, and their kernels. */
#ifndef HEADWAY_LEVELS_H
#define HEADWAY_LEVELS_H

#include "encoder.h"
#include "kernels.h"
#include "products.h"

namespace headway {

/* NULL for a level that this library does not hold, or this machine cannot run. */
const Kernels *kernels_of(int level);
const EncoderKernels *encoder_of(int level);

/* NULL for what cannot run here, or is more than one. */
const ProductKernels *products_of(int dots);

} // namespace headway
#endif
