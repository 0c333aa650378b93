/* f16.h - the two 16-bit floats of model files, to and from float, without hardware support.
 *
 * Exact on the way in; rounded to the nearest even on the way out. Infinities and NaN pass. Kernels
 * that have instructions for this use them; the results are the same bits (NaN payloads aside). */
#ifndef KERNELS_F16_H
#define KERNELS_F16_H

#include <stdint.h>
#include <string.h>

static inline float f32_from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static inline uint32_t f32_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* IEEE half: 1 sign, 5 exponent (bias 15), 10 fraction bits. */
static inline float f16_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff;
    if (magnitude >= 0x7c00) /* infinity, NaN */
        return f32_from_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    /* A subnormal, by its integer fraction: as the bits of a float it would be a denormal, and compute
     * threads flush those. Real files hold such scales (below 2^-14). */
    if (magnitude < 0x400)
        return f32_from_bits(sign | f32_bits((float)magnitude * 0x1p-24f));
    /* Multiplying by 2^112 rebiases the exponent: exact. */
    return f32_from_bits(sign | f32_bits(f32_from_bits(magnitude << 13) * 0x1p112f));
}

static inline uint16_t f16_from_float(float f)
{
    uint32_t bits = f32_bits(f), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) /* 65520, half way from the largest half to 2^16: rounds up */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) { /* below 2^-14: subnormal, in steps of 2^-24 */
        /* Adding 0.5 makes the float unit round at 2^-24, ties to even. */
        uint32_t steps = f32_bits(f32_from_bits(magnitude) + 0.5f) - 0x3f000000;
        return (uint16_t)(sign | steps);
    }
    uint32_t odd = magnitude >> 13 & 1;
    return (uint16_t)(sign | (magnitude - 0x38000000 + 0xfff + odd) >> 13);
}

/* bfloat16: the upper half of a float. */
static inline float bf16_to_float(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t bf16_from_float(float f)
{
    uint32_t bits = f32_bits(f);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40); /* stays a NaN when its low half held the payload */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The least bfloat16 that is not below f; f is not negative. */
static inline uint16_t bf16_from_float_up(float f)
{
    return (uint16_t)((f32_bits(f) + 0xffff) >> 16);
}

#endif
