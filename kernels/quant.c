/* quant.c - the stored types of GGUF tensors: names, sizes, and what their bytes mean.
 *
 * A row of K values is K / B blocks in order; a block of B values is self-contained. All numbers
 * are little-endian. Three families:
 *
 *   plain     F32 F16 BF16                 B = 1
 *   legacy    Q8_0 Q4_0 Q4_1 Q5_0 Q5_1     B = 32: one scale d (half), _1 has a minimum m as well
 *   k-quants  Q4_K Q5_K Q6_K               B = 256: halves over scales (and minima) of sub-blocks
 *
 * Nibbles pair values that are half a group apart, so that one mask yields a run of values: byte j
 * of a legacy block holds value j (low) and value j + 16 (high); byte j of a 64-value group of Q4_K
 * holds values j and j + 32. The fifth bit of Q5_0 and Q5_1 is bit i of a 32-bit word for value i;
 * in Q5_K it is transposed: bit s of byte j belongs to value j of sub-block s.
 *
 * tensor_row_unpack is the definition: every packed layout and every kernel is tested against it.
 * One value is at most two multiplications and one subtraction or addition, in the order written
 * here (the build has -ffp-contract=off), so it is the same float on every machine.
 *
 * The format is GGUF's, from the ggml project (specification: docs/gguf.md of ggml; k-quants by
 * Iwan Kawrakow). The bytes are read from mapped files of any alignment, hence memcpy.
 *
 * Any thread; no state. */
#include "kernels/tensor.h"

#include <string.h>
#include <strings.h>
#include "base/err.h"
#include "kernels/f16.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF files are read as they lie");

static uint16_t load_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint32_t load_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static float load_f16(const uint8_t *p)
{
    return f16_to_float(load_u16(p));
}

/* ---- one block each: `in` is the block's bytes, out its B values --------------------------- */

static void unpack_f32(const uint8_t *in, float *out)
{
    memcpy(out, in, sizeof *out);
}

static void unpack_f16(const uint8_t *in, float *out)
{
    *out = load_f16(in);
}

static void unpack_bf16(const uint8_t *in, float *out)
{
    *out = bf16_to_float(load_u16(in));
}

/* d[2] q[32]: d * q, q signed */
static void unpack_q8_0(const uint8_t *in, float *out)
{
    float d = load_f16(in);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(int8_t)in[2 + i];
}

/* d[2] nibbles[16]: d * (q - 8) */
static void unpack_q4_0(const uint8_t *in, float *out)
{
    float d = load_f16(in);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)((in[2 + i] & 15) - 8);
        out[i + 16] = d * (float)((in[2 + i] >> 4) - 8);
    }
}

/* d[2] m[2] nibbles[16]: d * q + m */
static void unpack_q4_1(const uint8_t *in, float *out)
{
    float d = load_f16(in), m = load_f16(in + 2);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)(in[4 + i] & 15) + m;
        out[i + 16] = d * (float)(in[4 + i] >> 4) + m;
    }
}

/* Value i of 32 from nibbles and the word of fifth bits. */
static int five_bits(const uint8_t *nibbles, uint32_t high, int i)
{
    int low = i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;
    return low | (int)(high >> i & 1) << 4;
}

/* d[2] high[4] nibbles[16]: d * (q - 16) */
static void unpack_q5_0(const uint8_t *in, float *out)
{
    float d = load_f16(in);
    uint32_t high = load_u32(in + 2);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(five_bits(in + 6, high, i) - 16);
}

/* d[2] m[2] high[4] nibbles[16]: d * q + m */
static void unpack_q5_1(const uint8_t *in, float *out)
{
    float d = load_f16(in), m = load_f16(in + 2);
    uint32_t high = load_u32(in + 4);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)five_bits(in + 8, high, i) + m;
}

/* The 6-bit scale and minimum of sub-block s (0..7) out of 12 bytes: those of 0..3 lie in the low
 * six bits of bytes 0..3 and 4..7; of 4..7 the low nibbles share bytes 8..11, and the upper two
 * bits fill the tops of bytes 0..7. */
static void k_scale(const uint8_t *packed, int s, int *scale, int *min)
{
    if (s < 4) {
        *scale = packed[s] & 63;
        *min = packed[s + 4] & 63;
        return;
    }
    *scale = (packed[s + 4] & 15) | (packed[s - 4] >> 6) << 4;
    *min = (packed[s + 4] >> 4) | (packed[s] >> 6) << 4;
}

/* d[2] dmin[2] scales[12] nibbles[128]: (d * scale) * q - dmin * min, 8 sub-blocks of 32 */
static void unpack_q4_k(const uint8_t *in, float *out)
{
    float d = load_f16(in), dmin = load_f16(in + 2);
    for (int s = 0; s < 8; s++) {
        const uint8_t *nibbles = in + 16 + s / 2 * 32;
        int scale, min, shift = s % 2 * 4;
        k_scale(in + 4, s, &scale, &min);
        float ds = d * (float)scale, m = dmin * (float)min;
        for (int i = 0; i < 32; i++)
            out[s * 32 + i] = ds * (float)(nibbles[i] >> shift & 15) - m;
    }
}

/* d[2] dmin[2] scales[12] high[32] nibbles[128]: as Q4_K with a fifth bit */
static void unpack_q5_k(const uint8_t *in, float *out)
{
    float d = load_f16(in), dmin = load_f16(in + 2);
    for (int s = 0; s < 8; s++) {
        const uint8_t *high = in + 16, *nibbles = in + 48 + s / 2 * 32;
        int scale, min, shift = s % 2 * 4;
        k_scale(in + 4, s, &scale, &min);
        float ds = d * (float)scale, m = dmin * (float)min;
        for (int i = 0; i < 32; i++) {
            int q = (nibbles[i] >> shift & 15) | (high[i] >> s & 1) << 4;
            out[s * 32 + i] = ds * (float)q - m;
        }
    }
}

/* low[128] high[64] scales[16] d[2]: (d * scale) * (q - 32), 16 sub-blocks of 16, scales signed. In
 * each half of 128 values, quarter r takes nibble r / 2 of byte (r % 2) * 32 + i and bits 2r, 2r +
 * 1 of high byte i. */
static void unpack_q6_k(const uint8_t *in, float *out)
{
    float d = load_f16(in + 208);
    for (int half = 0; half < 2; half++) {
        const uint8_t *low = in + half * 64, *high = in + 128 + half * 32;
        const uint8_t *scales = in + 192 + half * 8;
        for (int r = 0; r < 4; r++) {
            for (int i = 0; i < 32; i++) {
                int nibble = low[r % 2 * 32 + i] >> r / 2 * 4 & 15;
                int q = (nibble | (high[i] >> 2 * r & 3) << 4) - 32;
                float ds = d * (float)(int8_t)scales[r * 2 + i / 16];
                out[half * 128 + r * 32 + i] = ds * (float)q;
            }
        }
    }
}

/* ---- the table ----------------------------------------------------------------------------- */

struct layout {
    const char *name; /* NULL: a number that GGUF uses for a type that we do not compute with */
    int values;       /* of a block: B */
    int size_bytes;   /* of a block */
    void (*unpack)(const uint8_t *in, float *out);
};

// clang-format off
static const struct layout layouts[] = {
    [TENSOR_F32]  = {"F32",    1,   4, unpack_f32},
    [TENSOR_F16]  = {"F16",    1,   2, unpack_f16},
    [TENSOR_Q4_0] = {"Q4_0",  32,  18, unpack_q4_0},
    [TENSOR_Q4_1] = {"Q4_1",  32,  20, unpack_q4_1},
    [TENSOR_Q5_0] = {"Q5_0",  32,  22, unpack_q5_0},
    [TENSOR_Q5_1] = {"Q5_1",  32,  24, unpack_q5_1},
    [TENSOR_Q8_0] = {"Q8_0",  32,  34, unpack_q8_0},
    [TENSOR_Q4_K] = {"Q4_K", 256, 144, unpack_q4_k},
    [TENSOR_Q5_K] = {"Q5_K", 256, 176, unpack_q5_k},
    [TENSOR_Q6_K] = {"Q6_K", 256, 210, unpack_q6_k},
    [TENSOR_BF16] = {"BF16",   1,   2, unpack_bf16},
};
// clang-format on
enum { N_LAYOUTS = sizeof layouts / sizeof layouts[0] };

static const struct layout *layout_of(int type)
{
    if (type < 0 || type >= N_LAYOUTS || layouts[type].name == NULL)
        return NULL;
    return &layouts[type];
}

const char *tensor_type_name(int type)
{
    const struct layout *l = layout_of(type);
    return l ? l->name : NULL;
}

/* The inverse, for options and tools: a name in any case; -1 when there is none. */
int tensor_type_find(const char *name)
{
    for (int type = 0; type < N_LAYOUTS; type++)
        if (layouts[type].name != NULL && strcasecmp(layouts[type].name, name) == 0)
            return type;
    return -1;
}

/* 0 for a type that is not supported. */
int tensor_block(int type)
{
    const struct layout *l = layout_of(type);
    return l ? l->values : 0;
}

/* 0 when the type is not supported, when k is no positive multiple of its block, or when the row
 * does not fit in the address space: the one check that a reader of foreign files needs. */
size_t tensor_row_bytes(int type, int64_t k)
{
    const struct layout *l = layout_of(type);
    size_t bytes;
    if (l == NULL || k <= 0 || k % l->values != 0)
        return 0;
    if (__builtin_mul_overflow((uint64_t)(k / l->values), (uint64_t)l->size_bytes, &bytes) ||
        bytes > PTRDIFF_MAX)
        return 0;
    return bytes;
}

/* out [K] = row `row` of t [N, K]. */
void tensor_row_unpack(const struct tensor *t, int64_t row, float *out)
{
    const struct layout *l = layout_of(t->type);
    size_t row_bytes = tensor_row_bytes(t->type, t->k);
    ASSERT(l != NULL && row_bytes != 0 && row >= 0 && row < t->n);
    const uint8_t *in = (const uint8_t *)t->data + (size_t)row * row_bytes;
    for (int64_t i = 0; i < t->k; i += l->values, in += l->size_bytes)
        l->unpack(in, out + i);
}
