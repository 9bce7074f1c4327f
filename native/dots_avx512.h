/* Dot products of bytes: AVX-512 VNNI. One operand is unsigned: the weight, which is held as 128 more
 * than it is. */
#include "simd_avx512.h"

#define HEADWAY_DOTS avx512vnni

namespace headway { namespace avx512 { namespace {

enum { EIGHTS_ROWS = 6, WIDE_ROWS = 6, FOURS_ROWS = 6 };
typedef __m512i Ints;
typedef __m512i Bytes;
typedef __m512i Spread;

inline Bytes load(const int8_t *p) { return _mm512_loadu_si512(p); }
inline Bytes load_weights(const int8_t *p) { return load(p); }
/* What a sum starts from. */
inline Ints first_sum(int32_t offset) { return _mm512_set1_epi32(offset); }
inline Ints plus(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
/* Four inputs, for every lane. */
inline Bytes four_inputs(const int8_t *p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}
inline Spread spread(const int8_t *p) { return four_inputs(p); }
/* Not the intrinsic: GCC 12 then keeps copies of the sums on the stack, at half the speed. */
inline Ints dot(Ints sum, Bytes weight, Spread input) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weight), "v"(input));
    return sum;
}

/* Of weights of 4 bits, which are unsigned as they are. */
typedef Ints PartSums;
inline PartSums no_parts() { return _mm512_setzero_si512(); }
inline PartSums dot_parts(PartSums sum, Bytes weight, Bytes input) { return dot(sum, weight, input); }
inline Bytes low_halves(Bytes x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
inline Bytes high_halves(Bytes x) { return low_halves(_mm512_srli_epi16(x, 4)); }
inline Floats load_half(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
}

/* Whole numbers from -128 to 127. */
inline void store_bytes(int8_t *p, Floats x) {
    _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}
/* x where a < b, else y. */
inline Floats select_below(Floats a, Floats b, Floats x, Floats y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
/* Whether a magnitude is above the bound's. */
inline bool any_beyond(Floats x, Floats bound) { return _mm512_cmp_ps_mask(_mm512_abs_ps(x), bound, _CMP_GT_OQ); }

} } }  // namespace
