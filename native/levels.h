/* Which levels this machine can run, and their kernels. */
#ifndef HEADWAY_LEVELS_H
#define HEADWAY_LEVELS_H

#include "kernels.h"

namespace headway {

/* NULL for a level that this library does not hold, or this machine cannot run. */
const Kernels *kernels_of(int level);

} // namespace headway
#endif
