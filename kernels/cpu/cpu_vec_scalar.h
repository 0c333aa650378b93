/* cpu_vec_scalar.h - the vector words of the kernel bodies for a machine without vectors: one lane.
 *
 * The bodies (cpu_body_*.h) are written over these words alone. A lane is an output element, never a
 * part of one, so that one lane gives the bits that eight or sixteen give. Each word here spells out
 * what the instruction of the same place in cpu_vec_avx2.h does, NaN and ties included. */
#ifndef CPU_VEC_H
#define CPU_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define CPU_ISA scalar
#define CPU_ISA_NAME "scalar"
#define VL 1          /* lanes */
#define BF16_NATIVE 0 /* 1: VDPBF16PS; pairs stay packed in the activation streams */
#define BYTE_OFFSET 0 /* added to the signed bytes of P8 panels */
#define WIDE_ROWS 6   /* up to so many rows a tile takes the wider columns: there are registers */
#define TILE_VECTORS(R) 1  /* vectors of an attention tile of R rows: what the registers hold */
#define TILE8_VECTORS(R) 1 /* the same over bytes */

typedef float vf;
typedef int32_t vi;

#define UNROLL _Pragma("GCC unroll 1") /* sums stay in memory: size before speed here */
/* Macros: the instructions want constants even in builds that do not inline. */
#define vi_shl(a, n) ((vi)((uint32_t)(a) << (n)))
#define vi_shr(a, n) ((vi)((uint32_t)(a) >> (n)))
#define AI static inline __attribute__((always_inline))

AI vf vf_set(float x)
{
    return x;
}
AI vf vf_load(const float *p)
{
    return *p;
}
AI void vf_store(float *p, vf a)
{
    *p = a;
}
AI vf vf_fma(vf a, vf b, vf c)
{
    return fmaf(a, b, c);
}
AI vf vf_fma_to(vf sum, vf a, vf b)
{
    return fmaf(a, b, sum);
}
AI vf vf_mul(vf a, vf b)
{
    return a * b;
}
AI vf vf_add(vf a, vf b)
{
    return a + b;
}
AI vf vf_sub(vf a, vf b)
{
    return a - b;
}
AI vf vf_div(vf a, vf b)
{
    return a / b;
}
/* The second operand where one is NaN, as MAXPS and MINPS do. */
AI vf vf_max(vf a, vf b)
{
    return a > b ? a : b;
}
AI vf vf_min(vf a, vf b)
{
    return a < b ? a : b;
}
AI vi vi_bits(vf a)
{
    vi b;
    memcpy(&b, &a, 4);
    return b;
}
AI vf vf_bits(vi a)
{
    vf b;
    memcpy(&b, &a, 4);
    return b;
}
AI vf vf_abs(vf a)
{
    return vf_bits(vi_bits(a) & 0x7fffffff);
}
AI vf vf_from(vi a)
{
    return (float)a;
}
/* Nearest, ties to even. Callers keep |a| below 2^31. */
AI vi vi_from(vf a)
{
    return (vi)lrintf(a);
}
AI vf vf_half(const void *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
    if (exponent == 0)
        return vf_bits((vi)sign | vi_bits((float)mantissa * 0x1p-24f));
    uint32_t biased = exponent == 31 ? 255 : exponent + 112;
    return vf_bits((vi)(sign | biased << 23 | mantissa << 13));
}
AI vi vi_set(int32_t x)
{
    return x;
}
AI vi vi_load(const void *p)
{
    vi a;
    memcpy(&a, p, 4);
    return a;
}
AI void vi_store(int32_t *p, vi a)
{
    *p = a;
}
AI vi vi_add(vi a, vi b)
{
    return (vi)((uint32_t)a + (uint32_t)b);
}
AI vi vi_sub(vi a, vi b)
{
    return (vi)((uint32_t)a - (uint32_t)b);
}
AI vi vi_and(vi a, vi b)
{
    return a & b;
}
/* The four low, the four high nibbles of a word as bytes. */
AI vi vi_low4(vi a)
{
    return a & 0x0f0f0f0f;
}
AI vi vi_high4(vi a)
{
    return vi_shr(a, 4) & 0x0f0f0f0f;
}
AI int32_t dot_bytes(uint32_t w, uint32_t x, const int is_signed)
{
    int32_t sum = 0;
    for (int j = 0; j < 32; j += 8) {
        int32_t a = is_signed ? (int8_t)(w >> j) : (uint8_t)(w >> j);
        sum += a * (int8_t)(x >> j);
    }
    return sum;
}
/* Sums of four byte products. dot4: w is 0..15, at most eight calls before dot4_end. dot8: signed w
 * of P8 panels. dot8u: w is 0..31. dot8s: signed w in every path. x is never -128. */
AI vi vi_dot4(vi sum, vi w, vi x)
{
    return sum + dot_bytes((uint32_t)w, (uint32_t)x, 0);
}
AI vi vi_dot4_end(vi sum)
{
    return sum;
}
AI vi vi_dot8(vi sum, vi w, vi x)
{
    return sum + dot_bytes((uint32_t)w, (uint32_t)x, 1);
}
AI vi vi_dot8u(vi sum, vi w, vi x)
{
    return sum + dot_bytes((uint32_t)w, (uint32_t)x, 0);
}
AI vi vi_dot8s(vi sum, vi w, vi x)
{
    return sum + dot_bytes((uint32_t)w, (uint32_t)x, 1);
}
/* Sum of the two products of signed halves. */
AI vi vi_dot16(vi sum, vi w, vi x)
{
    return sum + (int16_t)w * (int16_t)x + (w >> 16) * (x >> 16);
}
/* The even, the odd ones of four signed bytes, as signed halves. */
AI vi vi_even16(vi a)
{
    uint32_t low = (uint16_t)(int8_t)a, high = (uint16_t)(int8_t)(a >> 16);
    return (vi)(low | high << 16);
}
AI vi vi_odd16(vi a)
{
    return vi_even16(vi_shr(a, 8));
}
/* 16 integers, each 0..32767, as 8 words: number i low, number i + 8 high. */
AI void vi_join16(const vi *q, int32_t *out)
{
    for (int i = 0; i < 8; i++)
        out[i] = q[i] | q[i + 8] << 16;
}
/* VL bf16 as floats. */
AI vf vf_bf16(const uint16_t *p)
{
    return vf_bits((vi)((uint32_t)*p << 16));
}
/* The 32 integers of a block, each within int8, as bytes. */
AI void vi_pack8(const vi *q, int8_t *out)
{
    for (int i = 0; i < 32; i++)
        out[i] = (int8_t)q[i];
}
/* a in the first n lanes (n may be below 0 or above VL), b in the others. */
AI vf vf_first(vf a, int n, vf b)
{
    return n > 0 ? a : b;
}
/* v where x >= bound, +0 elsewhere (NaN too). */
AI vf vf_keep_ge(vf x, vf bound, vf v)
{
    return x >= bound ? v : 0.f;
}
AI float vf_hmax(vf a)
{
    return a;
}
AI int32_t vi_hsum(vi a)
{
    return a;
}
/* The sum of 16 lanes: each of the first half plus its fellow of the second, and so on. */
AI float vf_tree(const vf lanes[16 / VL])
{
    float l[16];
    memcpy(l, lanes, sizeof l);
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; i++)
            l[i] = l[i] + l[i + half];
    }
    return l[0];
}
/* The high halves of the words. */
AI void vi_store_high(uint16_t *p, vi a)
{
    *p = (uint16_t)((uint32_t)a >> 16);
}
/* acc + pair products, high element first; only called where BF16_NATIVE. */
AI vf vf_dot_bf16(vf acc, vi w, vi x)
{
    acc = fmaf(vf_bits(w & (vi)0xffff0000), vf_bits(x & (vi)0xffff0000), acc);
    return fmaf(vf_bits(vi_shl(w, 16)), vf_bits(vi_shl(x, 16)), acc);
}

#endif
