/* quant_pack.c - floats to the stored types, plainly: the inverse of quant.c for tests and tools.
 *
 * Scales come from the extremes of each block and every value is rounded to its nearest step, which
 * bounds the error per value (tests/unit/test_quant.c states the bounds). Real quantisers search
 * for scales that lose less on average, or weigh values by their use; the server never quantises,
 * so the plain rule is enough here. Only IEEE operations in a fixed order and lrintf: the same
 * bytes on every machine.
 *
 * Scales are rounded to half first and values are divided by the rounded scale, or the error of the
 * scale would be added to that of each value. in must be finite. Any thread; no state. */
#include "kernels/tensor.h"

#include <math.h>
#include "base/err.h"
#include "kernels/f16.h"

static void store_u16(uint8_t *p, uint16_t v)
{
    memcpy(p, &v, sizeof v);
}

/* Stores a half and returns what a reader will see. */
static float store_f16(uint8_t *p, float f)
{
    uint16_t h = f16_from_float(f);
    store_u16(p, h);
    return f16_to_float(h);
}

/* x / step to the nearest integer within [low, high], low <= 0; step 0: all values are alike. */
static int step_of(float x, float step, int low, int high)
{
    if (step == 0)
        return 0;
    float q = x / step;
    if (q <= (float)low)
        return low;
    return q >= (float)high ? high : (int)lrintf(q);
}

/* The value of the largest magnitude, with its sign. */
static float extreme_of(const float *in, int n)
{
    float best = 0;
    for (int i = 0; i < n; i++)
        best = fabsf(in[i]) > fabsf(best) ? in[i] : best;
    return best;
}

static void range_of(const float *in, int n, float *min, float *max)
{
    *min = *max = in[0];
    for (int i = 1; i < n; i++) {
        *min = in[i] < *min ? in[i] : *min;
        *max = in[i] > *max ? in[i] : *max;
    }
}

static void pack_f32(const float *in, uint8_t *out)
{
    memcpy(out, in, sizeof *in);
}

static void pack_f16(const float *in, uint8_t *out)
{
    store_u16(out, f16_from_float(*in));
}

static void pack_bf16(const float *in, uint8_t *out)
{
    store_u16(out, bf16_from_float(*in));
}

static void pack_q8_0(const float *in, uint8_t *out)
{
    float d = store_f16(out, fabsf(extreme_of(in, 32)) / 127);
    for (int i = 0; i < 32; i++)
        out[2 + i] = (uint8_t)(int8_t)step_of(in[i], d, -127, 127);
}

/* Nibbles and, where high is not NULL, the word of fifth bits. */
static void store_steps(const int *q, uint8_t *nibbles, uint8_t *high)
{
    uint32_t bits = 0;
    for (int i = 0; i < 16; i++)
        nibbles[i] = (uint8_t)((q[i] & 15) | (q[i + 16] & 15) << 4);
    for (int i = 0; i < 32; i++)
        bits |= (uint32_t)(q[i] >> 4) << i;
    if (high != NULL)
        memcpy(high, &bits, sizeof bits);
}

/* d * (q - half): the extreme value takes the one step more that the negative side has, so d has
 * the opposite sign of it. */
static void pack_signed(const float *in, uint8_t *out, int half, uint8_t *nibbles, uint8_t *high)
{
    int q[32];
    float d = store_f16(out, extreme_of(in, 32) / (float)-half);
    for (int i = 0; i < 32; i++)
        q[i] = step_of(in[i], d, -half, half - 1) + half;
    store_steps(q, nibbles, high);
}

/* d * q + m */
static void pack_affine(const float *in, uint8_t *out, int top, uint8_t *nibbles, uint8_t *high)
{
    int q[32];
    float min, max;
    range_of(in, 32, &min, &max);
    float d = store_f16(out, (max - min) / (float)top), m = store_f16(out + 2, min);
    for (int i = 0; i < 32; i++)
        q[i] = step_of(in[i] - m, d, 0, top);
    store_steps(q, nibbles, high);
}

static void pack_q4_0(const float *in, uint8_t *out)
{
    pack_signed(in, out, 8, out + 2, NULL);
}

static void pack_q4_1(const float *in, uint8_t *out)
{
    pack_affine(in, out, 15, out + 4, NULL);
}

static void pack_q5_0(const float *in, uint8_t *out)
{
    pack_signed(in, out, 16, out + 6, out + 2);
}

static void pack_q5_1(const float *in, uint8_t *out)
{
    pack_affine(in, out, 31, out + 8, out + 4);
}

/* 6-bit scales and minima of 8 sub-blocks into 12 bytes; see k_scale in quant.c. */
static void store_k_scales(const int *scale, const int *min, uint8_t *packed)
{
    for (int s = 0; s < 4; s++) {
        packed[s] = (uint8_t)(scale[s] | scale[s + 4] >> 4 << 6);
        packed[s + 4] = (uint8_t)(min[s] | min[s + 4] >> 4 << 6);
        packed[s + 8] = (uint8_t)((scale[s + 4] & 15) | (min[s + 4] & 15) << 4);
    }
}

/* The head of Q4_K and Q5_K (d, dmin, scales) and q [256] in 0 .. top. */
static void pack_k(const float *in, uint8_t *out, int top, int *q)
{
    float scale[8], min[8], max_scale = 0, max_min = 0;
    int scale_q[8], min_q[8];
    for (int s = 0; s < 8; s++) {
        float low, high;
        range_of(in + s * 32, 32, &low, &high);
        min[s] = low < 0 ? -low : 0; /* the format can only lower values */
        scale[s] = (high + min[s]) / (float)top;
        scale[s] = scale[s] < 0 ? 0 : scale[s];
        max_scale = scale[s] > max_scale ? scale[s] : max_scale;
        max_min = min[s] > max_min ? min[s] : max_min;
    }
    float d = store_f16(out, max_scale / 63), dmin = store_f16(out + 2, max_min / 63);
    for (int s = 0; s < 8; s++) {
        scale_q[s] = step_of(scale[s], d, 0, 63);
        min_q[s] = step_of(min[s], dmin, 0, 63);
        float step = d * (float)scale_q[s], m = dmin * (float)min_q[s];
        for (int i = s * 32; i < s * 32 + 32; i++)
            q[i] = step_of(in[i] + m, step, 0, top);
    }
    store_k_scales(scale_q, min_q, out + 4);
}

static void store_k_nibbles(const int *q, uint8_t *nibbles)
{
    for (int i = 0; i < 128; i++) {
        const int *pair = q + i / 32 * 64 + i % 32;
        nibbles[i] = (uint8_t)((pair[0] & 15) | (pair[32] & 15) << 4);
    }
}

static void pack_q4_k(const float *in, uint8_t *out)
{
    int q[256];
    pack_k(in, out, 15, q);
    store_k_nibbles(q, out + 16);
}

static void pack_q5_k(const float *in, uint8_t *out)
{
    int q[256];
    uint8_t *high = out + 16;
    pack_k(in, out, 31, q);
    memset(high, 0, 32);
    for (int i = 0; i < 256; i++)
        high[i % 32] |= (uint8_t)(q[i] >> 4 << i / 32);
    store_k_nibbles(q, out + 48);
}

static void pack_q6_k(const float *in, uint8_t *out)
{
    float scale[16];
    for (int s = 0; s < 16; s++)
        scale[s] = extreme_of(in + s * 16, 16) / -32;
    float d = store_f16(out + 208, fabsf(extreme_of(scale, 16)) / 127);
    memset(out, 0, 192);
    for (int s = 0; s < 16; s++)
        out[192 + s] = (uint8_t)(int8_t)step_of(scale[s], d, -127, 127);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, r = i % 128 / 32, at = i % 32;
        float step = d * (float)(int8_t)out[192 + i / 16];
        int q = step_of(in[i], step, -32, 31) + 32;
        out[half * 64 + r % 2 * 32 + at] |= (uint8_t)((q & 15) << r / 2 * 4);
        out[128 + half * 32 + at] |= (uint8_t)(q >> 4 << 2 * r);
    }
}

static void (*const packers[])(const float *in, uint8_t *out) = {
    [TENSOR_F32] = pack_f32,   [TENSOR_F16] = pack_f16,   [TENSOR_Q4_0] = pack_q4_0,
    [TENSOR_Q4_1] = pack_q4_1, [TENSOR_Q5_0] = pack_q5_0, [TENSOR_Q5_1] = pack_q5_1,
    [TENSOR_Q8_0] = pack_q8_0, [TENSOR_Q4_K] = pack_q4_k, [TENSOR_Q5_K] = pack_q5_k,
    [TENSOR_Q6_K] = pack_q6_k, [TENSOR_BF16] = pack_bf16,
};

/* out [tensor_row_bytes(type, k)] = in [K]. type is supported and k a multiple of its block. */
void tensor_row_pack(int type, int64_t k, const float *in, void *out)
{
    int values = tensor_block(type);
    size_t row_bytes = tensor_row_bytes(type, k);
    ASSERT(row_bytes != 0);
    size_t block_bytes = tensor_row_bytes(type, values);
    uint8_t *at = out;
    for (int64_t i = 0; i < k; i += values, at += block_bytes)
        packers[type](in + i, at);
}
