/* What a level's `Floats` give: functions of them, and numbers of other formats. Included after a level's simd header, once
 * per file, like level.h; for the same reason it uses nothing of the standard library. */
#define HEADWAY_PASTE(a, b) a##b
#define HEADWAY_NAME(prefix, level) HEADWAY_PASTE(prefix, level)

namespace headway { namespace HEADWAY_LEVEL { namespace {

inline int least(int a, int b) { return a < b ? a : b; }
inline int padded(int count) { return (count + WIDTH - 1) / WIDTH * WIDTH; }
inline void copy(float *to, const float *from, int count) { __builtin_memcpy(to, from, sizeof(float) * count); }

/* e^x for x <= 0 (Cody and Waite's reduction; a polynomial for 2^f on [-1/2, 1/2], fitted for relative error, 2e-9).
 * Zero below 2^-126. NaN stays NaN. */
inline Floats exponential(Floats x) {
    const Floats high = set1(1.44269504f), low = set1(1.9259629e-8f), least_power = set1(-126.0f);
    Floats power = mul(x, high);
    Floats bounded = max(least_power, power);
    Floats n = round(bounded);
    Floats f = fma(x, low, fma(x, high, sub(set1(0.0f), n)));
    Floats y = fma(set1(0.00015353361f), f, set1(0.0013398875f));
    y = fma(y, f, set1(0.009618437f));
    y = fma(y, f, set1(0.055503324f));
    y = fma(y, f, set1(0.24022648f));
    y = fma(y, f, set1(0.6931472f));
    y = fma(y, f, set1(1.0f));
    return zero_below(power, least_power, times_power(y, n));
}

/* Less exact and quicker, where a level has such a one. */
#ifndef HEADWAY_EXPONENTIAL_NEAR
inline Floats exponential_near(Floats x) { return exponential(x); }
#endif

inline float wide(float x) { return x; }
inline float wide(uint16_t x) {
    uint32_t bits = static_cast<uint32_t>(x) << 16;
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}
inline float wide(int8_t x) { return x; }
inline void narrow(float x, float *to) { *to = x; }
/* To nearest, ties to even; NaN becomes the quiet one. */
inline void narrow(float x, uint16_t *to) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    *to = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

} } }  // namespace
