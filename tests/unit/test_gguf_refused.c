/* test_gguf_refused.c - the GGUF reader against files that are wrong, hostile and cut.
 *
 * A refusal must be one line that names what is wrong: the tests look for the words. What other
 * readers got wrong (the counts that wrap of CVE-2024-21836, -23605, -23496, -21825, -21802, and
 * the tensor of CVE-2026-33298 whose bytes wrap) has a test each: counts of tensors, keys and array
 * elements, lengths of strings, dimensions, rows of part blocks, headers, twins, alignments, offsets,
 * files cut anywhere. Arrays of another type are refused by the getters: test_gguf.c. */
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <time.h>
#include "tests/unit/gguf_bytes.h"

/* ---- wild counts and lengths --------------------------------------------------------------- */

static const uint64_t wild[] = {UINT64_C(1) << 60, UINT64_C(1) << 61, UINT64_C(1) << 62,
                                UINT64_C(1) << 63, UINT64_MAX - 1,    UINT64_MAX};
enum { N_WILD = sizeof wild / sizeof wild[0] };

static void test_tensor_counts_that_wrap_are_refused(void **state)
{
    for (int i = 0; i < N_WILD; i++) {
        struct str s = {0};
        header(&s, 3, wild[i], 0);
        data(&s, 4096);
        assert_refused(&s, "tensors do not fit into the");
    }
}

static void test_key_counts_that_wrap_are_refused(void **state)
{
    for (int i = 0; i < N_WILD; i++) {
        struct str s = {0};
        header(&s, 3, 0, wild[i]);
        data(&s, 4096);
        assert_refused(&s, "keys do not fit into the");
    }
}

static void test_counts_above_the_limits_are_refused(void **state)
{
    struct str s = {0};
    header(&s, 3, GGUF_MAX_TENSORS + 1, 0);
    data(&s, 100 * (GGUF_MAX_TENSORS + 1));
    assert_refused(&s, "4097 tensors, at most 4096 are supported");
    header(&s, 3, 0, GGUF_MAX_KEYS + 1);
    data(&s, 100 * (GGUF_MAX_KEYS + 1));
    assert_refused(&s, "1025 keys, at most 1024 are supported");
}

static void test_string_lengths_that_wrap_are_refused(void **state)
{
    for (int i = 0; i < N_WILD + 1; i++) {
        uint64_t len = i < N_WILD ? wild[i] : 24 + 8 + 64 + 1; /* the size of the file and one */
        struct str s = {0};
        header(&s, 3, 0, 1);
        u64(&s, len);
        str_append(&s, (char[64]){0}, 64);
        assert_refused(&s, "key number 0: needs");
        header(&s, 3, 0, 1);
        text(&s, "k");
        u32(&s, GGUF_STRING);
        u64(&s, len);
        str_append(&s, (char[64]){0}, 64);
        assert_refused(&s, "key k: needs");
    }
}

static void test_array_counts_that_wrap_are_refused(void **state)
{
    for (int type = 0; type < GGUF_N_TYPES; type++) {
        for (int i = 0; i < N_WILD; i++) {
            struct str s = {0};
            header(&s, 3, 0, 1);
            text(&s, "k");
            u32(&s, GGUF_ARRAY);
            u32(&s, (uint32_t)type);
            u64(&s, wild[i]);
            str_append(&s, (char[64]){0}, 64);
            assert_refused(&s, type == GGUF_ARRAY ? "key k: arrays of arrays" : "does not fit");
        }
    }
}

static void test_a_string_inside_an_array_may_not_leave_the_file(void **state)
{
    struct str s = {0};
    header(&s, 3, 0, 1);
    text(&s, "k");
    u32(&s, GGUF_ARRAY);
    u32(&s, GGUF_STRING);
    u64(&s, 2);
    text(&s, "ok");
    u64(&s, UINT64_MAX);
    assert_refused(&s, "key k: needs 18446744073709551615 bytes");
}

/* ---- keys ---------------------------------------------------------------------------------- */

static void test_broken_headers_are_refused(void **state)
{
    static const uint32_t versions[] = {0, 1, 4, 1000, 0x03000000};
    struct str s = {0};
    assert_refused(&s, "header: needs 4 bytes");
    str_append_str(&s, "GGUX");
    data(&s, 64);
    assert_refused(&s, "no GGUF file: begins with 47 47 55 58");
    for (int i = 0; i < 5; i++) {
        header(&s, versions[i], 0, 0);
        assert_refused(&s, i == 4 ? "(a big-endian file?), expected 2 or 3" : ", expected 2 or 3");
    }
}

static void test_broken_keys_are_refused_by_name(void **state)
{
    struct str s = {0};
    header(&s, 3, 0, 2);
    for (int i = 0; i < 2; i++) {
        text(&s, "twin");
        u32(&s, GGUF_U32);
        u32(&s, 1);
    }
    assert_refused(&s, "key twin: appears twice");
    header(&s, 3, 0, 1);
    text(&s, "k");
    u32(&s, 13);
    u64(&s, 0);
    assert_refused(&s, "key k: value type 13 is unknown");
    header(&s, 3, 0, 1);
    text(&s, "");
    u32(&s, GGUF_U32);
    u64(&s, 0);
    assert_refused(&s, "key number 0: a name of 0 bytes");
    header(&s, 3, 0, 1);
    text(&s, "flag");
    u32(&s, GGUF_BOOL);
    str_append_char(&s, 2);
    assert_refused(&s, "key flag: a bool of value 2");
    header(&s, 3, 0, 1);
    text(&s, "new\nline");
    u32(&s, 99);
    u64(&s, 0);
    assert_refused(&s, "key new?line: value type 99");
}

static void test_a_broken_alignment_is_refused(void **state)
{
    static const struct {
        uint32_t value;
        const char *words;
    } cases[] = {
        {0, "general.alignment: 0 is not a power of two"},
        {3, "general.alignment: 3 is not a power of two"},
        {33, "general.alignment: 33 is not a power of two"},
        {4, "general.alignment: 4 is not between 8 and 2097152"},
        {UINT32_C(1) << 31, "general.alignment: 2147483648 is not between"},
    };
    struct str s = {0};
    for (int i = 0; i < 5; i++) {
        header(&s, 3, 0, 1);
        text(&s, "general.alignment");
        u32(&s, GGUF_U32);
        u32(&s, cases[i].value);
        data(&s, 64);
        assert_refused(&s, cases[i].words);
    }
    header(&s, 3, 0, 1);
    text(&s, "general.alignment");
    u32(&s, GGUF_STRING);
    text(&s, "32");
    assert_refused(&s, "key general.alignment: type string, expected an integer");
}

/* ---- tensors ------------------------------------------------------------------------------- */

/* A file with one tensor t, and room for its data. */
static void refuse_tensor(uint32_t n_dims, const uint64_t *dims, enum tensor_type type,
                          size_t n_data, const char *words)
{
    struct str s = {0};
    header(&s, 3, 1, 0);
    info(&s, "t", n_dims, dims, type, 0);
    data(&s, n_data);
    assert_refused(&s, words);
}

static void test_dimensions_are_one_to_four_and_positive(void **state)
{
    static const uint32_t counts[] = {0, 5, 255, UINT32_MAX};
    static const uint64_t zero[2] = {32, 0}, negative[2] = {(uint64_t)-32, 1};
    struct str s = {0};
    for (int i = 0; i < 4; i++) {
        header(&s, 3, 1, 0);
        text(&s, "t");
        u32(&s, counts[i]);
        data(&s, 4096);
        assert_refused(&s, "dimensions, expected 1 to 4");
    }
    refuse_tensor(2, zero, TENSOR_F32, 4096, "tensor t: dimension 1 is 0");
    refuse_tensor(2, negative, TENSOR_F32, 4096, "tensor t: dimension 0 is -32");
}

static void test_tensors_whose_bytes_wrap_are_refused(void **state)
{
    static const uint64_t square[2] = {UINT64_C(1) << 31, UINT64_C(1) << 31};
    static const uint64_t wide[1] = {UINT64_C(1) << 62};
    static const uint64_t deep[4] = {1, UINT64_C(1) << 31, UINT64_C(1) << 31, 2};
    static const uint64_t large[2] = {UINT64_C(1) << 20, UINT64_C(1) << 20};
    refuse_tensor(2, square, TENSOR_F32, 64,
                  "tensor t: 2147483648 x 2147483648 values of F32 overflow");
    refuse_tensor(1, wide, TENSOR_F32, 64, "tensor t: ");
    refuse_tensor(4, deep, TENSOR_F32, 64, "tensor t: dimension 3 of 2 overflows");
    refuse_tensor(2, large, TENSOR_Q4_K, 64,
                  "tensor t: 618475290624 bytes at offset 0 end behind the data's 64 bytes");
}

static void test_rows_are_whole_blocks(void **state)
{
    static const int quantised[] = {TENSOR_Q8_0, TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0,
                                    TENSOR_Q5_1, TENSOR_Q4_K, TENSOR_Q5_K, TENSOR_Q6_K};
    for (int i = 0; i < 8; i++) {
        uint64_t dims[2] = {(uint64_t)tensor_block(quantised[i]) + 16, 2};
        struct str s = {0};
        char words[80];
        header(&s, 3, 1, 0);
        info(&s, "t", 2, dims, (uint32_t)quantised[i], 0);
        data(&s, 4096);
        snprintf(words, sizeof words, "tensor t: rows of %" PRIu64 " values are no multiple of %d",
                 dims[0], tensor_block(quantised[i]));
        assert_refused(&s, words);
    }
}

static void test_types_that_we_lack_are_named(void **state)
{
    static const struct {
        uint32_t type;
        const char *words;
    } cases[] = {
        {10, "tensor t: type Q2_K is not supported"},
        {39, "tensor t: type MXFP4 is not supported"},
        {4, "tensor t: tensor type 4 is unknown"},
        {31, "tensor t: tensor type 31 is unknown"},
        {UINT32_MAX, "tensor t: tensor type 4294967295 is unknown"},
        {UINT32_C(1) << 31, "tensor t: tensor type 2147483648 is unknown"},
    };
    static const uint64_t dims[1] = {256};
    for (int i = 0; i < 6; i++) {
        struct str s = {0};
        header(&s, 3, 1, 0);
        info(&s, "t", 1, dims, cases[i].type, 0);
        data(&s, 4096);
        assert_refused(&s, cases[i].words);
    }
}

static void test_offsets_are_aligned_inside_and_apart(void **state)
{
    static const uint64_t dims[1] = {16}; /* 64 bytes of F32 */
    static const struct {
        uint64_t first, second;
        const char *words;
    } cases[] = {
        {0, 65, "tensor b: offset 65 is no multiple of the alignment 32"},
        {0, 96, "tensor b: 64 bytes at offset 96 end behind the data's 128 bytes"},
        {0, UINT64_MAX - 31, "tensor b: 64 bytes at offset 18446744073709551584"},
        {0, UINT64_C(1) << 63, "tensor b: 64 bytes at offset 9223372036854775808"},
        {0, 32, "tensor a: overlaps tensor b"},
        {64, 32, "tensor b: overlaps tensor a"},
        {64, 64, "overlaps tensor"},
    };
    for (int i = 0; i < 7; i++) {
        struct str s = {0};
        header(&s, 3, 2, 0);
        info(&s, "a", 1, dims, TENSOR_F32, cases[i].first);
        info(&s, "b", 1, dims, TENSOR_F32, cases[i].second);
        data(&s, 128);
        assert_refused(&s, cases[i].words);
    }
}

/* 68 bytes, of which the next tensor begins at 64: the smallest overlap that alignment allows. */
static void test_an_overlap_of_four_bytes_is_seen(void **state)
{
    static const uint64_t dims[1] = {17};
    struct str s = {0};
    header(&s, 3, 2, 0);
    info(&s, "a", 1, dims, TENSOR_F32, 0);
    info(&s, "b", 1, dims, TENSOR_F32, 64);
    data(&s, 132);
    assert_refused(&s, "tensor a: overlaps tensor b");
}

static void test_tensor_names_are_short_and_single(void **state)
{
    static const uint64_t dims[1] = {8};
    char name[66];
    struct str s = {0};
    header(&s, 3, 2, 0);
    info(&s, "twin", 1, dims, TENSOR_F32, 0);
    info(&s, "twin", 1, dims, TENSOR_F32, 32);
    data(&s, 64);
    assert_refused(&s, "tensor twin: appears twice");
    memset(name, 'x', 65);
    name[65] = 0;
    header(&s, 3, 1, 0);
    info(&s, name, 1, dims, TENSOR_F32, 0);
    data(&s, 64);
    assert_refused(&s, "tensor number 0: a name of 65 bytes, expected 1 to 64");
}

/* ---- cut files and cost -------------------------------------------------------------------- */

static void test_a_file_cut_anywhere_is_refused(void **state)
{
    struct str s = {0};
    build_valid(&s);
    for (size_t len = 0; len < s.len; len++) {
        struct str part = {0};
        str_append(&part, s.data, len);
        assert_refused(&part, ": ");
    }
    str_free(&s);
}

/* Every single bit flipped: opened or refused, never a crash. */
static void test_a_flipped_bit_never_crashes(void **state)
{
    struct str s = {0};
    struct err err;
    build_valid(&s);
    for (size_t bit = 0; bit < s.len * 8; bit++) {
        s.data[bit / 8] ^= (char)(1 << bit % 8);
        gguf_close(open_exact(s.data, s.len, &err));
        s.data[bit / 8] ^= (char)(1 << bit % 8);
    }
    str_free(&s);
}

/* n_keys and n_tensors, each as short as can be; the last tensor lies at an offset that is refused.
 * Returns where that offset stands. */
static size_t short_ones(struct str *s, int n_keys, int n_tensors)
{
    static const uint64_t dims[1] = {8};
    char name[16];
    header(s, 3, (uint64_t)n_tensors, (uint64_t)n_keys);
    for (int i = 0; i < n_keys; i++) {
        snprintf(name, sizeof name, "%x", i);
        text(s, name);
        u32(s, GGUF_U8);
        str_append_char(s, 0);
    }
    for (int i = 0; i < n_tensors; i++) {
        snprintf(name, sizeof name, "%x", i);
        info(s, name, 1, dims, TENSOR_F32, i + 1 < n_tensors ? (uint64_t)i * 32 : 1);
    }
    size_t last_offset = s->len - 8;
    data(s, (size_t)n_tensors * 32);
    return last_offset;
}

static void test_opening_as_much_as_is_allowed_costs_little_memory(void **state)
{
    struct str s = {0};
    struct err err = {{0}};
    uint64_t good = (GGUF_MAX_TENSORS - 1) * 32;
    size_t last_offset = short_ones(&s, GGUF_MAX_KEYS, GGUF_MAX_TENSORS);
    memcpy(s.data + last_offset, &good, sizeof good);
    size_t before = mallinfo2().uordblks; /* stands still under asan, which has its own heap */
    struct gguf *g = open_exact(s.data, s.len, &err);
    assert_non_null(g);
    assert_true(mallinfo2().uordblks - before < 1 << 20);
    gguf_close(g);
    str_free(&s);
}

/* Of the longest way to a refusal: the least of a few runs, in time of the processor. */
static clock_t time_to_refuse(int n_keys, int n_tensors)
{
    struct str s = {0};
    clock_t least = 0;
    (void)short_ones(&s, n_keys, n_tensors);
    for (int i = 0; i < 5; i++) {
        struct err err = {{0}};
        clock_t begin = clock();
        assert_null(open_exact(s.data, s.len, &err));
        clock_t took = clock() - begin;
        assert_non_null(strstr(err.text, "offset 1 is no multiple"));
        least = i == 0 || took < least ? took : least;
    }
    str_free(&s);
    return least;
}

/* Four times as much takes four times as long; were each name compared with all before it, sixteen
 * times. A ratio, and a millisecond for what is too short to measure: no bound in seconds holds on
 * every machine and under every sanitizer. */
static void test_time_of_opening_is_linear(void **state)
{
    clock_t quarter = time_to_refuse(GGUF_MAX_KEYS / 4, GGUF_MAX_TENSORS / 4);
    clock_t whole = time_to_refuse(GGUF_MAX_KEYS, GGUF_MAX_TENSORS);
    if (whole > 10 * quarter + CLOCKS_PER_SEC / 1000)
        fail_msg("a quarter takes %ld us, the whole %ld us", (long)quarter, (long)whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_counts_that_wrap_are_refused),
        cmocka_unit_test(test_key_counts_that_wrap_are_refused),
        cmocka_unit_test(test_counts_above_the_limits_are_refused),
        cmocka_unit_test(test_string_lengths_that_wrap_are_refused),
        cmocka_unit_test(test_array_counts_that_wrap_are_refused),
        cmocka_unit_test(test_a_string_inside_an_array_may_not_leave_the_file),
        cmocka_unit_test(test_broken_headers_are_refused),
        cmocka_unit_test(test_broken_keys_are_refused_by_name),
        cmocka_unit_test(test_a_broken_alignment_is_refused),
        cmocka_unit_test(test_dimensions_are_one_to_four_and_positive),
        cmocka_unit_test(test_tensors_whose_bytes_wrap_are_refused),
        cmocka_unit_test(test_rows_are_whole_blocks),
        cmocka_unit_test(test_types_that_we_lack_are_named),
        cmocka_unit_test(test_offsets_are_aligned_inside_and_apart),
        cmocka_unit_test(test_an_overlap_of_four_bytes_is_seen),
        cmocka_unit_test(test_tensor_names_are_short_and_single),
        cmocka_unit_test(test_a_file_cut_anywhere_is_refused),
        cmocka_unit_test(test_a_flipped_bit_never_crashes),
        cmocka_unit_test(test_opening_as_much_as_is_allowed_costs_little_memory),
        cmocka_unit_test(test_time_of_opening_is_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
