/* Dot products of bytes: AVX-VNNI where this is compiled for it, else AVX2. */
#include "simd_avx2.h"

#if defined(__AVXVNNI__)
#define HEADWAY_DOTS avxvnni
#else
#define HEADWAY_DOTS avx2
#endif

namespace headway { namespace avx2 { namespace {

typedef __m256i Ints;
typedef __m256i Bytes;

inline Ints no_ints() { return _mm256_setzero_si256(); }
inline Bytes load(const int8_t *p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)); }
inline Ints plus(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
inline Floats to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
/* Four inputs, for every lane. */
inline Bytes four_inputs(const int8_t *p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

#if defined(__AVXVNNI__)
/* One operand is unsigned: the weight, which is held as 128 more than it is. */
enum { EIGHTS_ROWS = 6, WIDE_ROWS = 2, FOURS_ROWS = 2 };
typedef __m256i Spread;
inline Bytes load_weights(const int8_t *p) { return load(p); }
/* What a sum starts from. */
inline Ints first_sum(int32_t offset) { return _mm256_set1_epi32(offset); }
inline Spread spread(const int8_t *p) { return four_inputs(p); }
/* Not the intrinsic: GCC 12 then keeps copies of the sums on the stack. */
inline Ints dot(Ints sum, Bytes weight, Spread input) {
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(weight), "x"(input));
    return sum;
}
#else
/* Products are added in pairs of 16 bits, at most 2 * 128 * 127 where the unsigned operand is the input's magnitude, and
 * the weight takes its sign: nothing saturates. */
enum { EIGHTS_ROWS = 4, WIDE_ROWS = 2, FOURS_ROWS = 2 };
struct Spread {
    __m256i value, magnitude;
};
inline Bytes load_weights(const int8_t *p) { return _mm256_xor_si256(load(p), _mm256_set1_epi8(-128)); }
inline Ints first_sum(int32_t) { return no_ints(); }
inline Spread spread(const int8_t *p) {
    const __m256i value = four_inputs(p);
    return {value, _mm256_abs_epi8(value)};
}
inline Ints dot(Ints sum, Bytes weight, Spread input) {
    const __m256i pairs = _mm256_maddubs_epi16(input.magnitude, _mm256_sign_epi8(weight, input.value));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#endif

/* Of weights of 4 bits, which are unsigned as they are. */
#if defined(__AVXVNNI__)
typedef Ints PartSums;
inline PartSums no_parts() { return no_ints(); }
inline PartSums dot_parts(PartSums sum, Bytes weight, Bytes input) { return dot(sum, weight, input); }
#else
/* 16 bits hold a whole group: 32 / 2 * 15 * 128. */
struct PartSums {
    __m256i pairs;
};
inline PartSums no_parts() { return {no_ints()}; }
inline PartSums dot_parts(PartSums sum, Bytes weight, Bytes input) {
    return {_mm256_add_epi16(sum.pairs, _mm256_maddubs_epi16(weight, input))};
}
inline Floats to_floats(PartSums x) { return to_floats(_mm256_madd_epi16(x.pairs, _mm256_set1_epi16(1))); }
#endif
inline Bytes low_halves(Bytes x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline Bytes high_halves(Bytes x) { return low_halves(_mm256_srli_epi16(x, 4)); }
inline Floats load_half(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}

/* Whole numbers from -128 to 127. */
inline void store_bytes(int8_t *p, Floats x) {
    const __m256i whole = _mm256_cvtps_epi32(x);
    const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i *>(p), _mm_packs_epi16(half, half));
}
/* x where a < b, else y. */
inline Floats select_below(Floats a, Floats b, Floats x, Floats y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
/* Whether a magnitude is above the bound's. */
inline bool any_beyond(Floats x, Floats bound) {
    const Floats size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
    return _mm256_movemask_ps(_mm256_cmp_ps(size, bound, _CMP_GT_OQ));
}

} } }  // namespace
