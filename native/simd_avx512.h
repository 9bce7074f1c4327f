/* Sixteen floats: AVX-512 F, BW, DQ, VL. */
#include <immintrin.h>

#ifndef HEADWAY_LEVEL
#define HEADWAY_LEVEL avx512
#endif

namespace headway { namespace HEADWAY_LEVEL { namespace {

typedef __m512 Floats;
enum { WIDTH = 16, ROWS = 6, COLUMNS = 4 };

inline Floats load(const float *p) { return _mm512_loadu_ps(p); }
inline void store(float *p, Floats x) { _mm512_storeu_ps(p, x); }
inline Floats set1(float x) { return _mm512_set1_ps(x); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
/* The second operand where either is NaN. */
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats load(const uint16_t *p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline Floats as_floats(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
}
/* The first `count` lanes of x, the others of y. */
inline Floats first(int count, Floats x, Floats y) {
    return _mm512_mask_blend_ps(static_cast<__mmask16>((1u << count) - 1), y, x);
}
/* Zero where a < b, else x (also where either is NaN). */
inline Floats zero_below(Floats a, Floats b, Floats x) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ), x);
}
inline Floats round(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* x * 2^n for whole n from -126 to 0. */
inline Floats times_power(Floats x, Floats n) { return _mm512_scalef_ps(x, n); }

/* 2^x for x <= 0: one polynomial for 2^f on [0, 1), fitted for relative error, 8e-8. NaN stays NaN. */
inline Floats power_of_two(Floats x) {
    const Floats f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    Floats y = fma(set1(0.001867107f), f, set1(0.009017079f));
    y = fma(y, f, set1(0.05579988f));
    y = fma(y, f, set1(0.24016446f));
    y = fma(y, f, set1(0.6931513f));
    y = fma(y, f, set1(1.0f));
    return _mm512_scalef_ps(y, x);
}
/* e^x for x <= 0, within 1e-6 of it down to x = -20, and ever less below. */
#define HEADWAY_EXPONENTIAL_NEAR
inline Floats exponential_near(Floats x) { return power_of_two(mul(x, set1(1.44269504f))); }

/* Lanes in one order, whatever the level: halves are added. */
inline float sum(Floats x) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
/* Of lanes that are numbers. */
inline float largest(Floats x) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* to[column * stride + row] = from[row][column] for a square of WIDTH. */
inline void transpose(const Floats *from, float *to, int stride) {
    __m512 a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(from[i], from[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(from[i], from[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        for (int j = 0; j < 2; j++) {
            __m512d low = _mm512_castps_pd(a[i + j]), high = _mm512_castps_pd(a[i + j + 2]);
            b[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            b[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    }
    for (int i = 0; i < 4; i++) {
        a[i] = _mm512_shuffle_f32x4(b[i], b[i + 4], 0x88);
        a[i + 4] = _mm512_shuffle_f32x4(b[i], b[i + 4], 0xdd);
        a[i + 8] = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0x88);
        a[i + 12] = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        store(to + i * stride, _mm512_shuffle_f32x4(a[i], a[i + 8], 0x88));
        store(to + (i + 4) * stride, _mm512_shuffle_f32x4(a[i + 4], a[i + 12], 0x88));
        store(to + (i + 8) * stride, _mm512_shuffle_f32x4(a[i], a[i + 8], 0xdd));
        store(to + (i + 12) * stride, _mm512_shuffle_f32x4(a[i + 4], a[i + 12], 0xdd));
    }
}

} } }  // namespace
