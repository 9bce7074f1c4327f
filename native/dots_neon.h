/* Dot products of bytes: AArch64's SDOT where `HEADWAY_SDOT` says so, else Advanced SIMD alone. */
#include "simd_neon.h"

#if defined(HEADWAY_SDOT)
#define HEADWAY_DOTS dotprod
#else
#define HEADWAY_DOTS neon
#endif

namespace headway { namespace neon { namespace {

enum { EIGHTS_ROWS = 6, WIDE_ROWS = 6, FOURS_ROWS = 4 };
typedef int32x4_t Ints;
typedef int8x16_t Bytes;
typedef int8x16_t Spread;

inline Ints no_ints() { return vdupq_n_s32(0); }
inline Bytes load(const int8_t *p) { return vld1q_s8(p); }
/* They are held as 128 more than they are. */
inline Bytes load_weights(const int8_t *p) { return veorq_s8(load(p), vdupq_n_s8(-128)); }
inline Ints first_sum(int32_t) { return no_ints(); }
inline Ints plus(Ints a, Ints b) { return vaddq_s32(a, b); }
inline Floats to_floats(Ints x) { return vcvtq_f32_s32(x); }
/* Four inputs, for every lane. */
inline Bytes four_inputs(const int8_t *p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
}
inline Spread spread(const int8_t *p) { return four_inputs(p); }
inline Ints dot(Ints sum, Bytes weight, Spread input) {
#if defined(HEADWAY_SDOT)
    return vdotq_s32(sum, weight, input);
#else
    const int16x8_t low = vmull_s8(vget_low_s8(weight), vget_low_s8(input));
    const int16x8_t high = vmull_s8(vget_high_s8(weight), vget_high_s8(input));
    return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}

/* Of weights of 4 bits. */
typedef Ints PartSums;
inline PartSums no_parts() { return no_ints(); }
inline PartSums dot_parts(PartSums sum, Bytes weight, Bytes input) { return dot(sum, weight, input); }
inline Bytes low_halves(Bytes x) { return vandq_s8(x, vdupq_n_s8(15)); }
inline Bytes high_halves(Bytes x) { return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(x), 4)); }
inline Floats load_half(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }

/* Whole numbers from -128 to 127. */
inline void store_bytes(int8_t *p, Floats x) {
    const int32x4_t whole = vcvtq_s32_f32(x);
    for (int i = 0; i < WIDTH; i++) p[i] = static_cast<int8_t>(whole[i]);
}
/* x where a < b, else y. */
inline Floats select_below(Floats a, Floats b, Floats x, Floats y) { return vbslq_f32(vcltq_f32(a, b), x, y); }
/* Whether a magnitude is above the bound's. */
inline bool any_beyond(Floats x, Floats bound) { return vmaxvq_u32(vcagtq_f32(x, bound)); }

} } }  // namespace
