/* test_quant.c - the stored tensor types: every layout against blocks written out by hand.
 *
 * A hand-made block sets few fields and leaves the rest zero, so that a value can be computed on
 * paper from the format's description; positions are chosen so that a swapped nibble, a wrong shift
 * or a transposed bit changes one of them. quant_pack.c is tested through quant.c, with bounds that
 * follow from the step sizes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif
#include "base/rng.h"
#include "kernels/f16.h"
#include "kernels/tensor.h"

enum { ONE = 0x3c00, HALF = 0x3800, TWO = 0x4000, MINUS_ONE = 0xbc00 }; /* halves */

static void put_half(uint8_t *p, uint16_t h)
{
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

static void unpack(int type, const void *block, float *out)
{
    struct tensor t = {.type = type, .n = 1, .k = tensor_block(type), .data = block};
    tensor_row_unpack(&t, 0, out);
}

static void assert_value(float got, float expected)
{
    if (got != expected)
        fail_msg("got %.9g, expected %.9g", (double)got, (double)expected);
}

/* ---- halves -------------------------------------------------------------------------------- */

static void test_halves_have_their_ieee_values(void **state)
{
    assert_value(f16_to_float(ONE), 1);
    assert_value(f16_to_float(MINUS_ONE), -1);
    assert_value(f16_to_float(0x7bff), 65504);
    assert_value(f16_to_float(0x0400), 0x1p-14f);
    assert_value(f16_to_float(0x0001), 0x1p-24f);
    assert_value(f16_to_float(0x83ff), -1023 * 0x1p-24f);
    assert_true(f16_to_float(0x7c00) == INFINITY && f16_to_float(0xfc00) == -INFINITY);
    assert_true(isnan(f16_to_float(0x7e01)));
}

static void test_every_half_survives_a_round_trip(void **state)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        if ((h & 0x7fff) > 0x7c00)
            assert_true(isnan(f16_to_float(f16_from_float(f16_to_float((uint16_t)h)))));
        else
            assert_int_equal(f16_from_float(f16_to_float((uint16_t)h)), h);
    }
}

static void test_halves_round_to_the_nearest_and_ties_to_even(void **state)
{
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float low = f16_to_float((uint16_t)h), high = f16_to_float((uint16_t)(h + 1));
        float middle = (low + high) / 2; /* exact in a float */
        assert_int_equal(f16_from_float(middle), h + (h & 1));
        assert_int_equal(f16_from_float(nextafterf(middle, 0)), h);
        assert_int_equal(f16_from_float(nextafterf(middle, INFINITY)), h + 1);
    }
    assert_int_equal(f16_from_float(65519.996f), 0x7bff);
    assert_int_equal(f16_from_float(65520), 0x7c00);
    assert_int_equal(f16_from_float(-1e30f), 0xfc00);
}

static void test_bfloat_is_the_rounded_upper_half(void **state)
{
    assert_value(bf16_to_float(0x3f80), 1);
    assert_value(bf16_to_float(0xc049), -3.140625f);
    assert_int_equal(bf16_from_float(1 + 0x1p-8f), 0x3f80); /* tie to even */
    assert_int_equal(bf16_from_float(1 + 3 * 0x1p-8f), 0x3f82);
    assert_int_equal(bf16_from_float(1 + 0x1.02p-8f), 0x3f81);
    assert_true(isnan(bf16_to_float(bf16_from_float(f32_from_bits(0x7f800001)))));
}

/* ---- blocks by hand ------------------------------------------------------------------------ */

static void test_plain_types_are_their_numbers(void **state)
{
    float f = 0.1f, out[1];
    uint8_t bytes[4];
    unpack(TENSOR_F32, &f, out);
    assert_value(out[0], 0.1f);
    put_half(bytes, 0x4248);
    unpack(TENSOR_F16, bytes, out);
    assert_value(out[0], 3.140625f);
    put_half(bytes, 0x4049);
    unpack(TENSOR_BF16, bytes, out);
    assert_value(out[0], 3.140625f);
}

static void test_q8_0_is_scale_times_signed_byte(void **state)
{
    uint8_t block[34] = {0};
    float out[32];
    put_half(block, HALF);
    block[2] = 127;
    block[2 + 1] = 0x80; /* -128 */
    block[2 + 31] = 0xff;
    unpack(TENSOR_Q8_0, block, out);
    assert_value(out[0], 63.5f);
    assert_value(out[1], -64);
    assert_value(out[2], 0);
    assert_value(out[31], -0.5f);
}

static void test_q4_0_is_scale_times_nibble_less_8(void **state)
{
    uint8_t block[18] = {0};
    float out[32];
    put_half(block, TWO);
    block[2] = 0xf1; /* value 0: 1, value 16: 15 */
    block[2 + 15] = 0x8a;
    unpack(TENSOR_Q4_0, block, out);
    assert_value(out[0], 2 * (1 - 8));
    assert_value(out[16], 2 * (15 - 8));
    assert_value(out[15], 2 * (10 - 8));
    assert_value(out[31], 0);
    assert_value(out[1], -16);
}

static void test_q4_1_is_scale_times_nibble_plus_minimum(void **state)
{
    uint8_t block[20] = {0};
    float out[32];
    put_half(block, HALF);
    put_half(block + 2, MINUS_ONE);
    block[4 + 3] = 0x2f;
    unpack(TENSOR_Q4_1, block, out);
    assert_value(out[3], 0.5f * 15 - 1);
    assert_value(out[19], 0);
    assert_value(out[0], -1);
}

static void test_q5_0_takes_its_fifth_bit_from_the_word(void **state)
{
    uint8_t block[22] = {0};
    float out[32];
    put_half(block, ONE);
    block[2] = 0x02;     /* bit 1: value 1 */
    block[2 + 3] = 0x80; /* bit 31: value 31 */
    block[6 + 1] = 0x43; /* value 1: 3 + 16, value 17: 4 */
    block[6 + 15] = 0xf0;
    unpack(TENSOR_Q5_0, block, out);
    assert_value(out[1], 3);
    assert_value(out[17], 4 - 16);
    assert_value(out[31], 15);
    assert_value(out[15], -16);
}

static void test_q5_1_adds_the_minimum(void **state)
{
    uint8_t block[24] = {0};
    float out[32];
    put_half(block, TWO);
    put_half(block + 2, ONE);
    block[4 + 2] = 0x01; /* bit 16 */
    block[8] = 0x5c;     /* value 0: 12, value 16: 5 + 16 */
    unpack(TENSOR_Q5_1, block, out);
    assert_value(out[0], 2 * 12 + 1);
    assert_value(out[16], 2 * 21 + 1);
    assert_value(out[31], 1);
}

/* scales: sub-block 1 has scale 33 = 100001b and minimum 7, sub-block 6 scale 57 = 11 1001b and
 * minimum 45 = 10 1101b. */
static void put_k_scales(uint8_t *packed)
{
    packed[1] = 33;
    packed[5] = 7;
    packed[10] = 0xd9;  /* low nibbles: minimum 1101, scale 1001 */
    packed[2] = 3 << 6; /* upper bits of scale 6 */
    packed[6] = 2 << 6; /* upper bits of minimum 6 */
}

static void test_q4_k_scales_and_minima_have_six_bits(void **state)
{
    uint8_t block[144] = {0};
    float out[256];
    put_half(block, HALF);
    put_half(block + 2, TWO);
    put_k_scales(block + 4);
    block[16 + 4] = 0xb0;       /* first group of 64: value 4: 0, value 36 (sub-block 1): 11 */
    block[16 + 96 + 31] = 0x2e; /* last group: value 223 (sub-block 6): 14, value 255: 2 */
    unpack(TENSOR_Q4_K, block, out);
    assert_value(out[36], 0.5f * 33 * 11 - 2 * 7);
    assert_value(out[37], -14);
    assert_value(out[223], 0.5f * 57 * 14 - 2 * 45);
    assert_value(out[222], -90);
    assert_value(out[255], 0); /* sub-block 7 has no scale */
    assert_value(out[4], 0);
}

static void test_q5_k_high_bits_lie_across(void **state)
{
    uint8_t block[176] = {0};
    float out[256];
    put_half(block, ONE);
    put_half(block + 2, ONE);
    put_k_scales(block + 4);
    block[16 + 4] = 1 << 1;  /* value 4 of sub-block 1 */
    block[16 + 31] = 1 << 6; /* value 31 of sub-block 6 */
    block[48 + 4] = 0x90;    /* value 36: 9 */
    block[48 + 96 + 31] = 0x05;
    unpack(TENSOR_Q5_K, block, out);
    assert_value(out[36], 33 * (9 + 16) - 7);
    assert_value(out[35], -7);
    assert_value(out[223], 57 * (5 + 16) - 45);
    assert_value(out[192], -45);
}

static void test_q6_k_joins_nibbles_and_bit_pairs(void **state)
{
    uint8_t block[210] = {0};
    float out[256];
    put_half(block + 208, HALF);
    for (int s = 0; s < 16; s++)
        block[192 + s] = (uint8_t)(int8_t)(s % 2 ? -s : s + 1);
    block[5] = 0x3c;             /* half 0: value 5 low nibble 12, value 69 low nibble 3 */
    block[128 + 5] = 0x12;       /* value 5: 2, value 37: 0, value 69: 1 */
    block[64 + 32 + 17] = 0xa0;  /* half 1: value 128 + 96 + 17 low nibble 10 */
    block[128 + 32 + 17] = 0xc0; /* its bits: 3 */
    unpack(TENSOR_Q6_K, block, out);
    assert_value(out[5], 0.5f * 1 * (12 + 32 - 32));
    assert_value(out[69], 0.5f * 5 * (3 + 16 - 32));
    assert_value(out[37], 0.5f * 3 * -32);
    assert_value(out[241], 0.5f * -15 * (10 + 48 - 32));
    assert_value(out[255], 0.5f * -15 * -32);
}

static void test_rows_follow_each_other_without_padding(void **state)
{
    uint8_t rows[3 * 2 * 34] = {0};
    float out[64];
    for (int block = 0; block < 6; block++) {
        put_half(rows + block * 34, ONE);
        rows[block * 34 + 2] = (uint8_t)(block + 1);
    }
    struct tensor t = {.type = TENSOR_Q8_0, .n = 3, .k = 64, .data = rows};
    tensor_row_unpack(&t, 2, out);
    assert_value(out[0], 5);
    assert_value(out[32], 6);
}

/* ---- names and sizes ----------------------------------------------------------------------- */

static const struct {
    int type;
    const char *name;
    int block, bytes;
} sizes[] = {
    {TENSOR_F32, "F32", 1, 4},       {TENSOR_F16, "F16", 1, 2},
    {TENSOR_BF16, "BF16", 1, 2},     {TENSOR_Q8_0, "Q8_0", 32, 34},
    {TENSOR_Q4_0, "Q4_0", 32, 18},   {TENSOR_Q4_1, "Q4_1", 32, 20},
    {TENSOR_Q5_0, "Q5_0", 32, 22},   {TENSOR_Q5_1, "Q5_1", 32, 24},
    {TENSOR_Q4_K, "Q4_K", 256, 144}, {TENSOR_Q5_K, "Q5_K", 256, 176},
    {TENSOR_Q6_K, "Q6_K", 256, 210},
};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

static void test_types_have_gguf_sizes(void **state)
{
    for (int i = 0; i < N_SIZES; i++) {
        assert_string_equal(tensor_type_name(sizes[i].type), sizes[i].name);
        assert_int_equal(tensor_type_find(sizes[i].name), sizes[i].type);
        assert_int_equal(tensor_block(sizes[i].type), sizes[i].block);
        assert_int_equal(tensor_row_bytes(sizes[i].type, 3 * sizes[i].block), 3 * sizes[i].bytes);
    }
    assert_int_equal(tensor_type_find("q4_k"), TENSOR_Q4_K);
}

static void test_unsupported_types_and_lengths_have_no_size(void **state)
{
    static const int unknown[] = {-1, 4, 5, 9, 10, 11, 15, 29, 31, 1 << 30};
    for (int i = 0; i < (int)(sizeof unknown / sizeof unknown[0]); i++) {
        assert_null(tensor_type_name(unknown[i]));
        assert_int_equal(tensor_block(unknown[i]), 0);
        assert_int_equal(tensor_row_bytes(unknown[i], 256), 0);
    }
    assert_int_equal(tensor_type_find("q3_k"), -1);
    assert_int_equal(tensor_row_bytes(TENSOR_Q4_1, 48), 0);
    assert_int_equal(tensor_row_bytes(TENSOR_Q4_K, 128), 0);
    assert_int_equal(tensor_row_bytes(TENSOR_F32, 0), 0);
    assert_int_equal(tensor_row_bytes(TENSOR_F32, -32), 0);
    assert_int_equal(tensor_row_bytes(TENSOR_F32, INT64_MAX), 0);
    assert_int_equal(tensor_row_bytes(TENSOR_Q8_0, INT64_MAX / 32 * 32), 0);
}

/* ---- packing ------------------------------------------------------------------------------- */

/* The error of a value in units of the span (largest minus smallest value, and zero) of its block:
 * half a step, where steps are span / 15 and so on, and as much again for what the 11 bits of a
 * half and, in k-quants, the 6 or 8 bits of a sub-block's scale lose. */
static const struct {
    int type;
    float bound;
} bounds[] = {
    {TENSOR_F32, 0},          {TENSOR_F16, 0x1p-11f},  {TENSOR_BF16, 0x1p-8f},
    {TENSOR_Q8_0, 1 / 250.f}, {TENSOR_Q4_0, 1 / 8.f},  {TENSOR_Q4_1, 1 / 29.f},
    {TENSOR_Q5_0, 1 / 16.f},  {TENSOR_Q5_1, 1 / 60.f}, {TENSOR_Q4_K, 1 / 15.f},
    {TENSOR_Q5_K, 1 / 25.f},  {TENSOR_Q6_K, 1 / 30.f},
};

/* Blocks of every kind of content: both signs, one sign, all equal, one spike, zeros. */
static void fill(float *values, int kind, struct rng *rng)
{
    for (int i = 0; i < 256; i++) {
        float u = rng_unit(rng_next(rng));
        values[i] = kind == 0   ? u * 2 - 1
                    : kind == 1 ? u + 3
                    : kind == 2 ? -u
                    : kind == 3 ? 0.25f
                    : kind == 4 ? (i == 77 ? -4.f : u * 0.01f)
                                : 0;
    }
}

static float span_of(const float *values, int at, int n)
{
    float low = 0, high = 0;
    for (int i = at / n * n; i < at / n * n + n; i++) {
        low = fminf(low, values[i]);
        high = fmaxf(high, values[i]);
    }
    return high - low;
}

static void test_packing_loses_no_more_than_its_step(void **state)
{
    struct rng rng = rng_from(11);
    for (int b = 0; b < (int)(sizeof bounds / sizeof bounds[0]); b++) {
        int n = tensor_block(bounds[b].type);
        float slack = bounds[b].type == TENSOR_F16 ? 0x1p-25f : 0; /* half a subnormal step */
        for (int round = 0; round < 60; round++) {
            float in[256], out[256];
            uint8_t bytes[1024];
            struct tensor t = {.type = bounds[b].type, .n = 1, .k = 256, .data = bytes};
            fill(in, round % 6, &rng);
            tensor_row_pack(bounds[b].type, 256, in, bytes);
            tensor_row_unpack(&t, 0, out);
            for (int i = 0; i < 256; i++)
                if (!(fabsf(in[i] - out[i]) <= bounds[b].bound * span_of(in, i, n) + slack))
                    fail_msg("%s kind %d value %d: %g became %g", tensor_type_name(t.type),
                             round % 6, i, (double)in[i], (double)out[i]);
        }
    }
}

/* Compute threads flush denormal floats; scales below 2^-14 must come through all the same. */
static void test_halves_are_read_where_denormals_are_flushed(void **state)
{
#ifdef __SSE2__
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040); /* FTZ and DAZ */
#endif
    int n_wrong = 0;
    for (int h = 0; h < 0x7c00; h++) {
        int exponent = h >> 10, fraction = h & 1023;
        float want = exponent ? ldexpf((float)(1024 + fraction), exponent - 25)
                              : ldexpf((float)fraction, -24);
        n_wrong += f16_to_float((uint16_t)h) != want;
        n_wrong += f16_to_float((uint16_t)(h | 0x8000)) != -want;
    }
#ifdef __SSE2__
    _mm_setcsr(before);
#endif
    assert_int_equal(n_wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_halves_are_read_where_denormals_are_flushed),
        cmocka_unit_test(test_halves_have_their_ieee_values),
        cmocka_unit_test(test_every_half_survives_a_round_trip),
        cmocka_unit_test(test_halves_round_to_the_nearest_and_ties_to_even),
        cmocka_unit_test(test_bfloat_is_the_rounded_upper_half),
        cmocka_unit_test(test_plain_types_are_their_numbers),
        cmocka_unit_test(test_q8_0_is_scale_times_signed_byte),
        cmocka_unit_test(test_q4_0_is_scale_times_nibble_less_8),
        cmocka_unit_test(test_q4_1_is_scale_times_nibble_plus_minimum),
        cmocka_unit_test(test_q5_0_takes_its_fifth_bit_from_the_word),
        cmocka_unit_test(test_q5_1_adds_the_minimum),
        cmocka_unit_test(test_q4_k_scales_and_minima_have_six_bits),
        cmocka_unit_test(test_q5_k_high_bits_lie_across),
        cmocka_unit_test(test_q6_k_joins_nibbles_and_bit_pairs),
        cmocka_unit_test(test_rows_follow_each_other_without_padding),
        cmocka_unit_test(test_types_have_gguf_sizes),
        cmocka_unit_test(test_unsupported_types_and_lengths_have_no_size),
        cmocka_unit_test(test_packing_loses_no_more_than_its_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
