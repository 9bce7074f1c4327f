/* Eight floats: AVX2 and FMA. */
#include <immintrin.h>

#define HEADWAY_LEVEL avx2

namespace headway { namespace avx2 { namespace {

typedef __m256 Floats;
enum { WIDTH = 8, ROWS = 6, COLUMNS = 2 };

inline Floats load(const float *p) { return _mm256_loadu_ps(p); }
inline void store(float *p, Floats x) { _mm256_storeu_ps(p, x); }
inline Floats set1(float x) { return _mm256_set1_ps(x); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
/* The second operand where either is NaN. */
inline Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline Floats load(const uint16_t *p) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline Floats as_floats(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))));
}
/* The first `count` lanes of x, the others of y. */
inline Floats first(int count, Floats x, Floats y) {
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i mine = _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane);
    return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(mine));
}
/* Zero where a < b, else x (also where either is NaN). */
inline Floats zero_below(Floats a, Floats b, Floats x) { return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_NLT_UQ), x); }
inline Floats round(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* x * 2^n for whole n from -126 to 0. */
inline Floats times_power(Floats x, Floats n) {
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}

/* Lanes in one order, whatever the level: halves are added. */
inline float sum(Floats x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
/* Of lanes that are numbers. */
inline float largest(Floats x) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* to[column * stride + row] = from[row][column] for a square of WIDTH. */
inline void transpose(const Floats *from, float *to, int stride) {
    __m256 a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(from[i], from[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(from[i], from[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        store(to + i * stride, _mm256_permute2f128_ps(b[i], b[i + 4], 0x20));
        store(to + (i + 4) * stride, _mm256_permute2f128_ps(b[i], b[i + 4], 0x31));
    }
}

} } }  // namespace
