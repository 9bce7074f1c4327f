/* Four floats: AArch64's Advanced SIMD. */
#include <arm_neon.h>

#define HEADWAY_LEVEL neon

namespace headway { namespace neon { namespace {

typedef float32x4_t Floats;
enum { WIDTH = 4, ROWS = 6, COLUMNS = 4 };

inline Floats load(const float *p) { return vld1q_f32(p); }
inline void store(float *p, Floats x) { vst1q_f32(p, x); }
inline Floats set1(float x) { return vdupq_n_f32(x); }
inline Floats add(Floats a, Floats b) { return vaddq_f32(a, b); }
inline Floats sub(Floats a, Floats b) { return vsubq_f32(a, b); }
inline Floats mul(Floats a, Floats b) { return vmulq_f32(a, b); }
inline Floats div(Floats a, Floats b) { return vdivq_f32(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
/* The second operand where either is NaN. */
inline Floats max(Floats a, Floats b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline Floats min(Floats a, Floats b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline Floats load(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
inline Floats as_floats(const int8_t *p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}
/* The first `count` lanes of x, the others of y. */
inline Floats first(int count, Floats x, Floats y) {
    const int32_t lanes[4] = {0, 1, 2, 3};
    return vbslq_f32(vcgtq_s32(vdupq_n_s32(count), vld1q_s32(lanes)), x, y);
}
/* Zero where a < b, else x (also where either is NaN). */
inline Floats zero_below(Floats a, Floats b, Floats x) {
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), vcltq_f32(a, b)));
}
inline Floats round(Floats x) { return vrndnq_f32(x); }
/* x * 2^n for whole n from -126 to 0. */
inline Floats times_power(Floats x, Floats n) {
    int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
    return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
}

/* Lanes in one order, whatever the level: halves are added. */
inline float sum(Floats x) {
    const float32x2_t two = vadd_f32(vget_low_f32(x), vget_high_f32(x));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
/* Of lanes that are numbers. */
inline float largest(Floats x) { return vmaxvq_f32(x); }

/* to[column * stride + row] = from[row][column] for a square of WIDTH. */
inline void transpose(const Floats *from, float *to, int stride) {
    Floats low0 = vzip1q_f32(from[0], from[2]), high0 = vzip2q_f32(from[0], from[2]);
    Floats low1 = vzip1q_f32(from[1], from[3]), high1 = vzip2q_f32(from[1], from[3]);
    store(to, vzip1q_f32(low0, low1));
    store(to + stride, vzip2q_f32(low0, low1));
    store(to + 2 * stride, vzip1q_f32(high0, high1));
    store(to + 3 * stride, vzip2q_f32(high0, high1));
}

} } }  // namespace
