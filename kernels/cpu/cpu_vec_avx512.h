/* cpu_vec_avx512.h - the vector words of the kernel bodies on AVX-512 F, BW, VL, DQ and VNNI: sixteen
 * lanes. With AVX512_BF16 (the compiler's __AVX512BF16__) pairs of bf16 go through VDPBF16PS, without
 * it through two FMAs: the two tables differ in nothing else and in no bit.
 * What each word means is written in cpu_vec_scalar.h. */
#ifndef CPU_VEC_H
#define CPU_VEC_H

#include <immintrin.h>
#include <stdint.h>

#ifdef __AVX512BF16__
#define CPU_ISA avx512
#define CPU_ISA_NAME "avx512"
#define BF16_NATIVE 1
#else
#define CPU_ISA avx512_fma
#define CPU_ISA_NAME "avx512 without bf16"
#define BF16_NATIVE 0
#endif
#define VL 16
#define BYTE_OFFSET 128 /* VPDPBUSD wants one unsigned operand */
#define WIDE_ROWS 6     /* 32 registers: 6 rows x 2 vectors, integer and float */
#define TILE_VECTORS(R) ((R) <= 3 ? 4 : 2)
#define TILE8_VECTORS(R) ((R) <= 3 ? 4 : 2)

typedef __m512 vf;
typedef __m512i vi;

#define UNROLL _Pragma("GCC unroll 16")
/* Macros: the instructions want constants even in builds that do not inline. */
#define vi_shl(a, n) _mm512_slli_epi32(a, n)
#define vi_shr(a, n) _mm512_srli_epi32(a, n)
#define AI static inline __attribute__((always_inline))

// clang-format off
AI vf vf_set(float x) { return _mm512_set1_ps(x); }
AI vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
AI void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
AI vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
AI vf vf_fma_to(vf sum, vf a, vf b) { return _mm512_fmadd_ps(a, b, sum); }
AI vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
AI vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
AI vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
AI vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
AI vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
AI vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
AI vi vi_bits(vf a) { return _mm512_castps_si512(a); }
AI vf vf_bits(vi a) { return _mm512_castsi512_ps(a); }
AI vf vf_abs(vf a) { return vf_bits(_mm512_and_si512(vi_bits(a), _mm512_set1_epi32(0x7fffffff))); }
AI vf vf_from(vi a) { return _mm512_cvtepi32_ps(a); }
AI vi vi_from(vf a) { return _mm512_cvtps_epi32(a); }
AI vf vf_half(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
AI vi vi_set(int32_t x) { return _mm512_set1_epi32(x); }
AI vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
AI void vi_store(int32_t *p, vi a) { _mm512_storeu_si512(p, a); }
AI vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
AI vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
AI vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
AI vi vi_low4(vi a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
AI vi vi_high4(vi a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
AI vi vi_dot4(vi sum, vi w, vi x) { return _mm512_dpbusd_epi32(sum, w, x); }
AI vi vi_dot4_end(vi sum) { return sum; }
AI vi vi_dot8(vi sum, vi w, vi x) { return _mm512_dpbusd_epi32(sum, w, x); }
AI vi vi_dot8u(vi sum, vi w, vi x) { return _mm512_dpbusd_epi32(sum, w, x); }
// clang-format on

AI vi vi_dot8s(vi sum, vi w, vi x)
{
    __mmask64 negative = _mm512_movepi8_mask(w);
    vi signed_x = _mm512_mask_sub_epi8(x, negative, _mm512_setzero_si512(), x);
    return _mm512_dpbusd_epi32(sum, _mm512_abs_epi8(w), signed_x);
}
AI vi vi_dot16(vi sum, vi w, vi x)
{
    return _mm512_dpwssd_epi32(sum, w, x);
}
AI vi vi_even16(vi a)
{
    return _mm512_srai_epi16(_mm512_slli_epi16(a, 8), 8);
}
AI vi vi_odd16(vi a)
{
    return _mm512_srai_epi16(a, 8);
}
AI void vi_join16(const vi *q, int32_t *out)
{
    __m256i low = _mm512_castsi512_si256(q[0]), high = _mm512_extracti64x4_epi64(q[0], 1);
    _mm256_storeu_si256((__m256i *)out, _mm256_or_si256(low, _mm256_slli_epi32(high, 16)));
}
AI vf vf_bf16(const uint16_t *p)
{
    vi words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return vf_bits(_mm512_slli_epi32(words, 16));
}
AI void vi_pack8(const vi *q, int8_t *out)
{
    _mm_storeu_si128((__m128i *)out, _mm512_cvtsepi32_epi8(q[0]));
    _mm_storeu_si128((__m128i *)(out + 16), _mm512_cvtsepi32_epi8(q[1]));
}
AI vf vf_first(vf a, int n, vf b)
{
    uint32_t lanes = n >= 16 ? 0xffff : n <= 0 ? 0 : (1u << n) - 1;
    return _mm512_mask_blend_ps((__mmask16)lanes, b, a);
}
AI vf vf_keep_ge(vf x, vf bound, vf v)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_GE_OQ), v);
}
AI float vf_hmax(vf a)
{
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 g = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    g = _mm_max_ps(g, _mm_movehl_ps(g, g));
    return _mm_cvtss_f32(_mm_max_ss(g, _mm_movehdup_ps(g)));
}
AI int32_t vi_hsum(vi a)
{
    return _mm512_reduce_add_epi32(a);
}
AI float vf_tree(const vf lanes[16 / VL])
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(*lanes), _mm512_extractf32x8_ps(*lanes, 1));
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}
AI void vi_store_high(uint16_t *p, vi a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(a, 16)));
}
#if BF16_NATIVE
AI vf vf_dot_bf16(vf acc, vi w, vi x)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x);
}
#else
AI vf vf_dot_bf16(vf acc, vi w, vi x)
{
    vi high = vi_set((int32_t)0xffff0000);
    acc = vf_fma(vf_bits(vi_and(w, high)), vf_bits(vi_and(x, high)), acc);
    return vf_fma(vf_bits(vi_shl(w, 16)), vf_bits(vi_shl(x, 16)), acc);
}
#endif

#endif
