/* Dot products of bytes in plain C++, for any processor. */
#include "simd_generic.h"

#define HEADWAY_DOTS generic

namespace headway { namespace generic { namespace {

enum { EIGHTS_ROWS = 2, WIDE_ROWS = 2, FOURS_ROWS = 2 };
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
inline Bytes load(const int8_t *p) {
    Bytes x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
}
/* They are held as 128 more than they are. */
inline Bytes load_weights(const int8_t *p) {
    Bytes x = load(p);
    for (int i = 0; i < WIDTH * 4; i++) x.byte[i] = static_cast<int8_t>(x.byte[i] ^ -128);
    return x;
}
inline Ints first_sum(int32_t) { return no_ints(); }
inline Ints plus(Ints a, Ints b) {
    for (int i = 0; i < WIDTH; i++) a.lane[i] += b.lane[i];
    return a;
}
inline Floats to_floats(Ints x) { HEADWAY_LANES(static_cast<float>(x.lane[i])); }
/* Four inputs, for every lane. */
inline Spread spread(const int8_t *p) { return {{p[0], p[1], p[2], p[3]}}; }
inline Ints dot(Ints sum, Bytes weight, Spread input) {
    for (int i = 0; i < WIDTH; i++)
        for (int k = 0; k < 4; k++) sum.lane[i] += weight.byte[4 * i + k] * input.byte[k];
    return sum;
}

/* Of weights of 4 bits. */
typedef Ints PartSums;
inline PartSums no_parts() { return no_ints(); }
inline PartSums dot_parts(PartSums sum, Bytes weight, Bytes input) {
    for (int i = 0; i < WIDTH; i++)
        for (int k = 0; k < 4; k++) sum.lane[i] += weight.byte[4 * i + k] * input.byte[4 * i + k];
    return sum;
}
inline Bytes four_inputs(const int8_t *p) {
    Bytes x;
    for (int i = 0; i < WIDTH; i++) __builtin_memcpy(x.byte + 4 * i, p, 4);
    return x;
}
inline Bytes low_halves(Bytes x) {
    for (int i = 0; i < WIDTH * 4; i++) x.byte[i] &= 15;
    return x;
}
inline Bytes high_halves(Bytes x) {
    for (int i = 0; i < WIDTH * 4; i++) x.byte[i] = static_cast<int8_t>(static_cast<uint8_t>(x.byte[i]) >> 4);
    return x;
}
/* IEEE 754's half precision; numbers that are not finite do not come up. */
inline float from_half(uint16_t half) {
    const float magnitude = from_bits((half & 0x7fffu) << 13) * from_bits(0x77800000u); /* 2^112 */
    return half & 0x8000 ? -magnitude : magnitude;
}
inline Floats load_half(const uint16_t *p) { HEADWAY_LANES(from_half(p[i])); }

/* Whole numbers from -128 to 127. */
inline void store_bytes(int8_t *p, Floats x) {
    for (int i = 0; i < WIDTH; i++) p[i] = static_cast<int8_t>(x.lane[i]);
}
/* x where a < b, else y. */
inline Floats select_below(Floats a, Floats b, Floats x, Floats y0) {
    HEADWAY_LANES(a.lane[i] < b.lane[i] ? x.lane[i] : y0.lane[i]);
}
/* Whether a magnitude is above the bound's. */
inline bool any_beyond(Floats x, Floats bound) {
    for (int i = 0; i < WIDTH; i++)
        if (__builtin_fabsf(x.lane[i]) > bound.lane[i]) return true;
    return false;
}

} } }  // namespace
