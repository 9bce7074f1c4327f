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
inline Ints load(const int32_t *p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)); }
inline Bytes load(const int8_t *p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)); }
inline Floats to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
inline __m256i four_inputs(const int8_t *p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

#if defined(__AVXVNNI__)
/* One operand is unsigned, so inputs are 128 more than they mean. */
enum { DOT_ROWS = 6, DOT_COLUMNS = 2, GROUP_ROWS = 2, UNSIGNED = 1 };
typedef __m256i Spread;
inline Spread spread(const int8_t *p) { return four_inputs(p); }
/* Not the intrinsic: GCC 12 then keeps copies of the sums on the stack. */
inline Ints dot(Ints sum, Bytes weight, Spread input) {
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(input), "x"(weight));
    return sum;
}
#else
/* Products are added in pairs of 16 bits, at most 2 * 127 * 127 where the unsigned operand is the input's magnitude, and
 * the weight takes its sign: nothing saturates. */
enum { DOT_ROWS = 4, DOT_COLUMNS = 2, GROUP_ROWS = 2, UNSIGNED = 0 };
struct Spread {
    __m256i value, magnitude;
};
inline Spread spread(const int8_t *p) {
    const __m256i value = four_inputs(p);
    return {value, _mm256_abs_epi8(value)};
}
inline Ints dot(Ints sum, Bytes weight, Spread input) {
    const __m256i pairs = _mm256_maddubs_epi16(input.magnitude, _mm256_sign_epi8(weight, input.value));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#endif

/* Of weights of 4 bits, which are unsigned, and inputs that are not. */
#if defined(__AVXVNNI__)
typedef Ints PartSums;
inline PartSums no_parts() { return no_ints(); }
inline PartSums dot_parts(PartSums sum, Bytes weight, Bytes input) { return dot(sum, input, weight); }
#else
/* 16 bits hold a whole group: 32 / 2 * 15 * 127. */
struct PartSums {
    __m256i pairs;
};
inline PartSums no_parts() { return {no_ints()}; }
inline PartSums dot_parts(PartSums sum, Bytes weight, Bytes input) {
    return {_mm256_add_epi16(sum.pairs, _mm256_maddubs_epi16(weight, input))};
}
inline Floats to_floats(PartSums x) { return to_floats(_mm256_madd_epi16(x.pairs, _mm256_set1_epi16(1))); }
#endif
inline Bytes signed_inputs(const int8_t *p) { return four_inputs(p); }
inline Bytes low_halves(Bytes x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline Bytes high_halves(Bytes x) { return low_halves(_mm256_srli_epi16(x, 4)); }
inline Floats load_half(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}

/* Whole numbers from -127 to 127; `flip` is -128 for inputs that are held as 128 more, else 0. */
inline void store_inputs(int8_t *p, Floats x, int flip) {
    const __m256i whole = _mm256_cvtps_epi32(x);
    const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    const __m128i bytes = _mm_xor_si128(_mm_packs_epi16(half, half), _mm_set1_epi8(static_cast<char>(flip)));
    _mm_storel_epi64(reinterpret_cast<__m128i *>(p), bytes);
}
/* x where a < b, else y. */
inline Floats select_below(Floats a, Floats b, Floats x, Floats y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

} } }  // namespace
