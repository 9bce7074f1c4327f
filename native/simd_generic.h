/* Four floats in plain C++, for any processor. A product and a sum are rounded each (see -ffp-contract in build.py). */
#include <math.h>

#define HEADWAY_LEVEL generic

namespace headway { namespace generic { namespace {

enum { WIDTH = 4, ROWS = 6, COLUMNS = 2 };
struct Floats {
    float lane[WIDTH];
};

#define HEADWAY_LANES(expression)                 \
    Floats y;                                     \
    for (int i = 0; i < WIDTH; i++) y.lane[i] = (expression); \
    return y

inline Floats load(const float *p) { HEADWAY_LANES(p[i]); }
inline void store(float *p, Floats x) {
    for (int i = 0; i < WIDTH; i++) p[i] = x.lane[i];
}
inline Floats set1(float x) { HEADWAY_LANES(x); }
inline Floats add(Floats a, Floats b) { HEADWAY_LANES(a.lane[i] + b.lane[i]); }
inline Floats sub(Floats a, Floats b) { HEADWAY_LANES(a.lane[i] - b.lane[i]); }
inline Floats mul(Floats a, Floats b) { HEADWAY_LANES(a.lane[i] * b.lane[i]); }
inline Floats div(Floats a, Floats b) { HEADWAY_LANES(a.lane[i] / b.lane[i]); }
inline Floats fma(Floats a, Floats b, Floats c) { HEADWAY_LANES(a.lane[i] * b.lane[i] + c.lane[i]); }
/* The second operand where either is NaN. */
inline Floats max(Floats a, Floats b) { HEADWAY_LANES(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]); }
inline Floats min(Floats a, Floats b) { HEADWAY_LANES(a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]); }
inline float from_bits(uint32_t bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}
inline Floats load(const uint16_t *p) { HEADWAY_LANES(from_bits(static_cast<uint32_t>(p[i]) << 16)); }
inline Floats as_floats(const int8_t *p) { HEADWAY_LANES(p[i]); }
/* The first `count` lanes of x, the others of y. */
inline Floats first(int count, Floats x, Floats y0) { HEADWAY_LANES(i < count ? x.lane[i] : y0.lane[i]); }
/* Zero where a < b, else x (also where either is NaN). */
inline Floats zero_below(Floats a, Floats b, Floats x) { HEADWAY_LANES(a.lane[i] < b.lane[i] ? 0.0f : x.lane[i]); }
/* To the nearest whole number, for magnitudes below 2^22: adding 1.5 * 2^23 leaves no room for a fraction. */
inline Floats round(Floats x) { HEADWAY_LANES((x.lane[i] + 12582912.0f) - 12582912.0f); }
/* x * 2^n for whole n from -126 to 0; NaN where n is. */
inline Floats times_power(Floats x, Floats n) {
    HEADWAY_LANES(n.lane[i] == n.lane[i]
                      ? x.lane[i] * from_bits(static_cast<uint32_t>(static_cast<int32_t>(n.lane[i]) + 127) << 23)
                      : n.lane[i]);
}

/* Lanes in one order, whatever the level: halves are added. */
inline float sum(Floats x) {
    for (int half = WIDTH / 2; half; half /= 2)
        for (int i = 0; i < half; i++) x.lane[i] += x.lane[i + half];
    return x.lane[0];
}
/* Of lanes that are numbers. */
inline float largest(Floats x) {
    for (int i = 1; i < WIDTH; i++) x.lane[0] = x.lane[i] > x.lane[0] ? x.lane[i] : x.lane[0];
    return x.lane[0];
}

/* to[column * stride + row] = from[row][column] for a square of WIDTH. */
inline void transpose(const Floats *from, float *to, int stride) {
    for (int column = 0; column < WIDTH; column++)
        for (int row = 0; row < WIDTH; row++) to[column * stride + row] = from[row].lane[column];
}

} } }  // namespace
