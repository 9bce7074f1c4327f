/* Products of pairs of bf16 numbers, added to fp32: AVX-512 BF16 (vdpbf16ps). A lane's pair is the lower half's number
 * first. Included after simd_avx512.h. */
#define HEADWAY_PAIRS

namespace headway { namespace HEADWAY_LEVEL { namespace {

typedef __m512i Pairs;

inline Pairs load_pairs(const uint32_t *p) { return _mm512_loadu_si512(p); }
inline void store_pairs(uint32_t *p, Pairs x) { _mm512_storeu_si512(p, x); }
inline Pairs set1_pair(uint32_t x) { return _mm512_set1_epi32(static_cast<int32_t>(x)); }
inline Floats as_lanes(Pairs x) { return _mm512_castsi512_ps(x); }
/* Not the intrinsic, see dots_avx512.h. */
inline Floats dot_pairs(Floats sum, Pairs a, Pairs b) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}
/* The first `count` numbers of 32, the others zero. */
inline Pairs pairs_of(const uint16_t *p, int count) {
    return _mm512_maskz_loadu_epi16(count < 32 ? (1u << count) - 1 : 0xffffffffu, p);
}
inline Pairs pairs_of(const int8_t *p, int count) {
    const __m256i bytes = _mm256_maskz_loadu_epi8(count < 32 ? (1u << count) - 1 : 0xffffffffu, p);
    const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes)));
    const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1)));
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)); /* exact: 8 bits are enough */
}
/* Sixteen numbers, to the nearest bf16, ties to even; those below the smallest normal one become zero. */
inline void store_rounded(uint16_t *p, Floats x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
}
/* Pairs of a number of a and the one of b at its place: of the first sixteen, and of the others. */
inline void interleave(Pairs a, Pairs b, Pairs *low, Pairs *high) {
    const __m512i first = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                           5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    *low = _mm512_permutex2var_epi16(a, first, b);
    *high = _mm512_permutex2var_epi16(a, _mm512_add_epi16(first, _mm512_set1_epi16(16)), b);
}

} } }  // namespace
