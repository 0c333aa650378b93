/* cpu_vec_avx2.h - the vector words of the kernel bodies on AVX2 with FMA and F16C: eight lanes.
 * What each word means is written in cpu_vec_scalar.h. */
#ifndef CPU_VEC_H
#define CPU_VEC_H

#include <immintrin.h>
#include <stdint.h>

#define CPU_ISA avx2
#define CPU_ISA_NAME "avx2"
#define VL 8
#define BF16_NATIVE 0
#define BYTE_OFFSET 0
#define WIDE_ROWS 3 /* 16 registers: two vectors of columns only up to three rows */
/* Vectors of an attention tile of R rows: R x C sums, C words and a query value in 16 registers. */
#define TILE_VECTORS(R) ((R) <= 2 ? 4 : (R) == 3 ? 3 : 2)
#define TILE8_VECTORS(R) ((R) <= 2 ? 4 : 2) /* the same over bytes */

typedef __m256 vf;
typedef __m256i vi;

#define UNROLL _Pragma("GCC unroll 16")
/* Macros: the instructions want constants even in builds that do not inline. */
#define vi_shl(a, n) _mm256_slli_epi32(a, n)
#define vi_shr(a, n) _mm256_srli_epi32(a, n)
#define AI static inline __attribute__((always_inline))

// clang-format off
AI vf vf_set(float x) { return _mm256_set1_ps(x); }
AI vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
AI void vf_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
AI vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
AI vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
AI vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
AI vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
AI vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
AI vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
AI vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
AI vi vi_bits(vf a) { return _mm256_castps_si256(a); }
AI vf vf_bits(vi a) { return _mm256_castsi256_ps(a); }
AI vf vf_abs(vf a) { return _mm256_and_ps(a, vf_bits(_mm256_set1_epi32(0x7fffffff))); }
AI vf vf_from(vi a) { return _mm256_cvtepi32_ps(a); }
AI vi vi_from(vf a) { return _mm256_cvtps_epi32(a); }
AI vf vf_half(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
AI vi vi_set(int32_t x) { return _mm256_set1_epi32(x); }
AI vi vi_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
AI void vi_store(int32_t *p, vi a) { _mm256_storeu_si256((__m256i *)p, a); }
AI vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
AI vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
AI vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
AI vi vi_low4(vi a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
AI vi vi_high4(vi a) { return _mm256_and_si256(_mm256_srli_epi16(a, 4), _mm256_set1_epi8(15)); }
// clang-format on

/* In place. Left to itself gcc lets the sums of a full tile wander through the registers of its
 * factors and spills three of twelve: a quarter of the time of six rows. */
AI vf vf_fma_to(vf sum, vf a, vf b)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
}
/* Eight pair sums fit 16 bits: 8 * 2 * 15 * 127 = 30480; the widening multiply comes once a block. */
AI vi vi_dot4(vi sum, vi w, vi x)
{
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x));
}
AI vi vi_dot4_end(vi sum)
{
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}
AI vi vi_dot8u(vi sum, vi w, vi x)
{
    vi pairs = _mm256_maddubs_epi16(w, x);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
/* Unsigned times signed is all there is: the sign of w moves to x. A pair is at most 2 * 128 * 127,
 * which fits 16 bits only because x is never -128. */
AI vi vi_dot8s(vi sum, vi w, vi x)
{
    return vi_dot8u(sum, _mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
}
AI vi vi_dot8(vi sum, vi w, vi x)
{
    return vi_dot8s(sum, w, x);
}
/* Two int16 products a lane. In place, too: gcc would add the products up first and then keep all of
 * them and the sums. */
AI vi vi_dot16(vi sum, vi w, vi x)
{
    vi products = _mm256_madd_epi16(w, x);
    __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(products));
    return sum;
}
AI vi vi_even16(vi a)
{
    return _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8);
}
AI vi vi_odd16(vi a)
{
    return _mm256_srai_epi16(a, 8);
}
AI void vi_join16(const vi *q, int32_t *out)
{
    _mm256_storeu_si256((__m256i *)out, _mm256_or_si256(q[0], _mm256_slli_epi32(q[1], 16)));
}
AI vf vf_bf16(const uint16_t *p)
{
    vi words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return vf_bits(_mm256_slli_epi32(words, 16));
}
AI void vi_pack8(const vi *q, int8_t *out)
{
    vi a = _mm256_packs_epi32(q[0], q[1]), b = _mm256_packs_epi32(q[2], q[3]);
    vi bytes = _mm256_packs_epi16(a, b); /* both packs work within halves: put the words in order */
    vi order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i *)out, _mm256_permutevar8x32_epi32(bytes, order));
}
AI vf vf_first(vf a, int n, vf b)
{
    vi lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_blendv_ps(b, a, vf_bits(_mm256_cmpgt_epi32(vi_set(n), lane)));
}
AI vf vf_keep_ge(vf x, vf bound, vf v)
{
    return _mm256_and_ps(_mm256_cmp_ps(x, bound, _CMP_GE_OQ), v);
}
AI float vf_hmax(vf a)
{
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}
AI int32_t vi_hsum(vi a)
{
    __m128i h = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}
AI float vf_tree(const vf lanes[16 / VL])
{
    vf a = _mm256_add_ps(lanes[0], lanes[1]);
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}
AI void vi_store_high(uint16_t *p, vi a)
{
    vi high = _mm256_srli_epi32(a, 16);
    vi packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(packed));
}
AI vf vf_dot_bf16(vf acc, vi w, vi x)
{
    vi high = vi_set((int32_t)0xffff0000);
    acc = vf_fma(vf_bits(vi_and(w, high)), vf_bits(vi_and(x, high)), acc);
    return vf_fma(vf_bits(vi_shl(w, 16)), vf_bits(vi_shl(x, 16)), acc);
}

#endif
