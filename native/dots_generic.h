/* Dot products of bytes in plain C++, for any processor. */
#include "simd_generic.h"

#define HEADWAY_DOTS generic

namespace headway { namespace generic { namespace {

enum { DOT_ROWS = 2, DOT_COLUMNS = 2, UNSIGNED = 0 };
struct Ints {
    int32_t lane[WIDTH];
};
struct Bytes {
    int8_t byte[WIDTH * 4];
};
struct Spread {
    int8_t byte[4];
};

inline Ints no_ints() { return {}; }
inline Ints load(const int32_t *p) {
    Ints x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
}
inline Bytes load(const int8_t *p) {
    Bytes x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
}
inline Floats to_floats(Ints x) { HEADWAY_LANES(static_cast<float>(x.lane[i])); }
/* Four inputs, for every lane. */
inline Spread spread(const int8_t *p) { return {{p[0], p[1], p[2], p[3]}}; }
inline Ints dot(Ints sum, Bytes weight, Spread input) {
    for (int i = 0; i < WIDTH; i++)
        for (int k = 0; k < 4; k++) sum.lane[i] += weight.byte[4 * i + k] * input.byte[k];
    return sum;
}
/* Whole numbers from -127 to 127, as inputs are held. */
inline void store_inputs(int8_t *p, Floats x) {
    for (int i = 0; i < WIDTH; i++) p[i] = static_cast<int8_t>(x.lane[i]);
}
/* x where a < b, else y. */
inline Floats select_below(Floats a, Floats b, Floats x, Floats y0) {
    HEADWAY_LANES(a.lane[i] < b.lane[i] ? x.lane[i] : y0.lane[i]);
}

} } }  // namespace
