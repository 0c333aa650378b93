/* immintrin.h - the AVX-512 instructions of cpu_vec_avx512.h, spelled out for machines without them.
 *
 * The kernels for AVX-512 are compiled a second time with this header in front of the compiler's own,
 * so that the tests can run them anywhere. Each function says what Intel's manual (Software
 * Developer's Manual, volume 2) says of the instruction, over sixteen lanes as compiler vectors; what
 * the manual leaves to MXCSR (rounding, FTZ, DAZ) the machine's own float instructions obey too.
 * Only those instructions are here that the kernels use: another one fails to compile. Speed is
 * of no concern. */
#ifndef EMULATED_IMMINTRIN_H
#define EMULATED_IMMINTRIN_H

#include_next <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Which of the two tables: the compiler's own header forgets what the command line says of it. */
#ifdef EMULATED_BF16
#define __AVX512BF16__ 1
#endif

/* Some names are macros in the compiler's header already: no warnings of that. */
#pragma GCC system_header

typedef float emu_f32 __attribute__((vector_size(64)));
typedef int32_t emu_i32 __attribute__((vector_size(64)));
typedef uint32_t emu_u32 __attribute__((vector_size(64)));
typedef int16_t emu_i16 __attribute__((vector_size(64)));
typedef uint16_t emu_u16 __attribute__((vector_size(64)));
typedef int8_t emu_i8 __attribute__((vector_size(64)));
typedef uint8_t emu_u8 __attribute__((vector_size(64)));

/* Calls: inlined into the unrolled tiles of the kernels they would take minutes to compile. */
#define EMU static __attribute__((noinline, unused))
#define EACH(i, n) for (int i = 0; i < (n); i++)

/* ---- moving ----------------------------------------------------------------------------------- */

EMU emu_f32 emu_load_f32(const void *p)
{
    emu_f32 a;
    memcpy(&a, p, sizeof a);
    return a;
}
EMU emu_i32 emu_load_i32(const void *p)
{
    emu_i32 a;
    memcpy(&a, p, sizeof a);
    return a;
}
EMU void emu_store_f32(void *p, emu_f32 a)
{
    memcpy(p, &a, sizeof a);
}
EMU void emu_store_i32(void *p, emu_i32 a)
{
    memcpy(p, &a, sizeof a);
}
EMU emu_f32 emu_set_f32(float x)
{
    emu_f32 a;
    EACH(i, 16)
    a[i] = x;
    return a;
}
EMU emu_i32 emu_set_i32(int32_t x)
{
    emu_i32 a;
    EACH(i, 16)
    a[i] = x;
    return a;
}
EMU emu_i32 emu_set_i8(int8_t x)
{
    emu_i8 a;
    EACH(i, 64)
    a[i] = x;
    return (emu_i32)a;
}
/* The lower or, at 1, the upper eight lanes. */
EMU __m256 emu_half_f32(emu_f32 a, int at)
{
    __m256 h;
    memcpy(&h, (const char *)&a + 32 * at, sizeof h);
    return h;
}
EMU __m256i emu_half_i32(emu_i32 a, int at)
{
    __m256i h;
    memcpy(&h, (const char *)&a + 32 * at, sizeof h);
    return h;
}

/* ---- floats ----------------------------------------------------------------------------------- */

/* One rounding: the compiler's fmaf is FMA's instruction. */
EMU emu_f32 emu_fma(emu_f32 a, emu_f32 b, emu_f32 c)
{
    EACH(i, 16)
    a[i] = fmaf(a[i], b[i], c[i]);
    return a;
}
/* MAXPS and MINPS give the second operand where one is NaN, and where both are zeros. */
EMU emu_f32 emu_max(emu_f32 a, emu_f32 b)
{
    EACH(i, 16)
    a[i] = a[i] > b[i] ? a[i] : b[i];
    return a;
}
EMU emu_f32 emu_min(emu_f32 a, emu_f32 b)
{
    EACH(i, 16)
    a[i] = a[i] < b[i] ? a[i] : b[i];
    return a;
}
EMU __mmask16 emu_at_least__CMP_GE_OQ(emu_f32 a, emu_f32 b)
{
    unsigned mask = 0;
    EACH(i, 16)
    mask |= (unsigned)(a[i] >= b[i]) << i;
    return (__mmask16)mask;
}
/* Lanes of b where the mask is set, else of a. */
EMU emu_f32 emu_blend(__mmask16 mask, emu_f32 a, emu_f32 b)
{
    EACH(i, 16)
    a[i] = mask >> i & 1 ? b[i] : a[i];
    return a;
}
/* CVTPS2DQ rounds as MXCSR says; what does not fit, and NaN, become the least integer. */
EMU emu_i32 emu_to_i32(emu_f32 a)
{
    emu_i32 out;
    EACH(i, 16)
    out[i] = _mm_cvtss_si32(_mm_set_ss(a[i]));
    return out;
}
EMU emu_f32 emu_from_i32(emu_i32 a)
{
    emu_f32 out;
    EACH(i, 16)
    out[i] = (float)a[i];
    return out;
}
EMU emu_f32 emu_from_half(__m256i a)
{
    __m256 halves[2] = {_mm256_cvtph_ps(_mm256_castsi256_si128(a)),
                        _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1))};
    return emu_load_f32(halves);
}

/* ---- integers --------------------------------------------------------------------------------- */

EMU emu_i32 emu_add(emu_i32 a, emu_i32 b) /* wraps */
{
    return (emu_i32)((emu_u32)a + (emu_u32)b);
}
EMU emu_i32 emu_sub(emu_i32 a, emu_i32 b)
{
    return (emu_i32)((emu_u32)a - (emu_u32)b);
}
EMU emu_i32 emu_abs_i8(emu_i32 a)
{
    emu_i8 x = (emu_i8)a, out;
    EACH(i, 64)
    out[i] = (int8_t)(x[i] < 0 ? -x[i] : x[i]);
    return (emu_i32)out;
}
EMU __mmask64 emu_negative_i8(emu_i32 a)
{
    emu_i8 x = (emu_i8)a;
    __mmask64 mask = 0;
    EACH(i, 64)
    mask |= (__mmask64)(x[i] < 0) << i;
    return mask;
}
/* a - b in the bytes whose bit is set, else the byte of keep. */
EMU emu_i32 emu_mask_sub_i8(emu_i32 keep, __mmask64 mask, emu_i32 a, emu_i32 b)
{
    emu_u8 x = (emu_u8)a, y = (emu_u8)b, out = (emu_u8)keep;
    EACH(i, 64)
    if (mask >> i & 1)
        out[i] = (uint8_t)(x[i] - y[i]);
    return (emu_i32)out;
}
EMU emu_i32 emu_widen_u16(__m256i a)
{
    uint16_t x[16];
    emu_i32 out;
    memcpy(x, &a, sizeof x);
    EACH(i, 16)
    out[i] = x[i];
    return out;
}
/* VPMOVDW truncates, VPMOVSDB saturates. */
EMU __m256i emu_truncate_i16(emu_i32 a)
{
    uint16_t x[16];
    __m256i out;
    EACH(i, 16)
    x[i] = (uint16_t)a[i];
    memcpy(&out, x, sizeof out);
    return out;
}
EMU __m128i emu_saturate_i8(emu_i32 a)
{
    int8_t x[16];
    __m128i out;
    EACH(i, 16)
    x[i] = (int8_t)(a[i] < -128 ? -128 : a[i] > 127 ? 127 : a[i]);
    memcpy(&out, x, sizeof out);
    return out;
}
EMU int32_t emu_sum(emu_i32 a)
{
    uint32_t sum = 0;
    EACH(i, 16)
    sum += (uint32_t)a[i];
    return (int32_t)sum;
}

/* ---- dot products ----------------------------------------------------------------------------- */

/* Unsigned bytes of a by signed ones of b, four to a lane; wraps, does not saturate. */
EMU emu_i32 emu_dpbusd(emu_i32 sum, emu_i32 a, emu_i32 b)
{
    emu_u8 x = (emu_u8)a;
    emu_i8 y = (emu_i8)b;
    EACH(i, 16)
    {
        int32_t dot = 0;
        EACH(j, 4)
        dot += x[4 * i + j] * y[4 * i + j];
        sum[i] = (int32_t)((uint32_t)sum[i] + (uint32_t)dot);
    }
    return sum;
}
/* Signed words by signed words, two to a lane. */
EMU emu_i32 emu_dpwssd(emu_i32 sum, emu_i32 a, emu_i32 b)
{
    emu_i16 x = (emu_i16)a, y = (emu_i16)b;
    EACH(i, 16)
    {
        uint32_t dot = (uint32_t)(x[2 * i] * y[2 * i]) + (uint32_t)(x[2 * i + 1] * y[2 * i + 1]);
        sum[i] = (int32_t)((uint32_t)sum[i] + dot);
    }
    return sum;
}
/* The pair's upper product first, then the lower one, each fused with its sum. (VDPBF16PS always
 * flushes denormals and rounds to nearest; so do our threads.) */
EMU emu_f32 emu_dpbf16(emu_f32 sum, emu_i32 a, emu_i32 b)
{
    emu_f32 a_high = (emu_f32)(a & (int32_t)0xffff0000),
            b_high = (emu_f32)(b & (int32_t)0xffff0000);
    emu_f32 a_low = (emu_f32)((emu_u32)a << 16), b_low = (emu_f32)((emu_u32)b << 16);
    return emu_fma(a_low, b_low, emu_fma(a_high, b_high, sum));
}

/* ---- their names ------------------------------------------------------------------------------ */

#define __m512 emu_f32
#define __m512i emu_i32
#define __m512bh emu_i32

#define _mm512_loadu_ps(p) emu_load_f32(p)
#define _mm512_loadu_si512(p) emu_load_i32(p)
#define _mm512_storeu_ps(p, a) emu_store_f32(p, a)
#define _mm512_storeu_si512(p, a) emu_store_i32(p, a)
#define _mm512_set1_ps(x) emu_set_f32(x)
#define _mm512_set1_epi32(x) emu_set_i32(x)
#define _mm512_set1_epi8(x) emu_set_i8(x)
#define _mm512_setzero_si512() emu_set_i32(0)
#define _mm512_castps_si512(a) ((emu_i32)(a))
#define _mm512_castsi512_ps(a) ((emu_f32)(a))
#define _mm512_castps512_ps256(a) emu_half_f32(a, 0)
#define _mm512_extractf32x8_ps(a, at) emu_half_f32(a, at)
#define _mm512_castsi512_si256(a) emu_half_i32(a, 0)
#define _mm512_extracti64x4_epi64(a, at) emu_half_i32(a, at)

#define _mm512_add_ps(a, b) ((a) + (b))
#define _mm512_sub_ps(a, b) ((a) - (b))
#define _mm512_mul_ps(a, b) ((a) * (b))
#define _mm512_div_ps(a, b) ((a) / (b))
#define _mm512_max_ps(a, b) emu_max(a, b)
#define _mm512_min_ps(a, b) emu_min(a, b)
#define _mm512_fmadd_ps(a, b, c) emu_fma(a, b, c)
#define _mm512_cmp_ps_mask(a, b, how) emu_at_least_##how(a, b)
#define _mm512_mask_blend_ps(mask, a, b) emu_blend(mask, a, b)
#define _mm512_maskz_mov_ps(mask, a) emu_blend(mask, emu_set_f32(0.f), a)
#define _mm512_cvtps_epi32(a) emu_to_i32(a)
#define _mm512_cvtepi32_ps(a) emu_from_i32(a)
#define _mm512_cvtph_ps(a) emu_from_half(a)

#define _mm512_add_epi32(a, b) emu_add(a, b)
#define _mm512_sub_epi32(a, b) emu_sub(a, b)
#define _mm512_and_si512(a, b) ((a) & (b))
#define _mm512_slli_epi32(a, n) ((emu_i32)((emu_u32)(a) << (n)))
#define _mm512_srli_epi32(a, n) ((emu_i32)((emu_u32)(a) >> (n)))
#define _mm512_slli_epi16(a, n) ((emu_i32)((emu_u16)(a) << (n)))
#define _mm512_srli_epi16(a, n) ((emu_i32)((emu_u16)(a) >> (n)))
#define _mm512_srai_epi16(a, n) ((emu_i32)((emu_i16)(a) >> (n)))
#define _mm512_abs_epi8(a) emu_abs_i8(a)
#define _mm512_movepi8_mask(a) emu_negative_i8(a)
#define _mm512_mask_sub_epi8(keep, mask, a, b) emu_mask_sub_i8(keep, mask, a, b)
#define _mm512_cvtepu16_epi32(a) emu_widen_u16(a)
#define _mm512_cvtepi32_epi16(a) emu_truncate_i16(a)
#define _mm512_cvtsepi32_epi8(a) emu_saturate_i8(a)
#define _mm512_reduce_add_epi32(a) emu_sum(a)
#define _mm512_dpbusd_epi32(sum, a, b) emu_dpbusd(sum, a, b)
#define _mm512_dpwssd_epi32(sum, a, b) emu_dpwssd(sum, a, b)
#define _mm512_dpbf16_ps(sum, a, b) emu_dpbf16(sum, a, b)

/* What follows, the kernels: unrolled tiles of calls take minutes to optimise. */
#ifndef __clang__
#pragma GCC optimize("O1")
#endif

#endif
