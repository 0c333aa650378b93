/* test_gguf.c - the GGUF reader against files that are right: values, arrays, tensors, and getters
 * that say what does not fit. */
#include "tests/unit/gguf_bytes.h"

/* ---- right files --------------------------------------------------------------------------- */

static void test_values_come_back(void **state)
{
    struct str s = {0};
    struct err err;
    build_valid(&s);
    struct gguf *g = open_exact(s.data, s.len, &err);
    assert_non_null(g);
    uint32_t a = 0;
    int32_t b = 0;
    float f = 0;
    bool yes = false;
    struct bytes name;
    assert_int_equal(gguf_get_u32(g, "a.u32", &a, &err), 1);
    assert_int_equal(a, 4000000000u);
    assert_int_equal(gguf_get_i32(g, "a.i16", &b, &err), 1);
    assert_int_equal(b, -3);
    assert_int_equal(gguf_get_i32(g, "a.i64", &b, &err), 1);
    assert_int_equal(b, -5);
    assert_int_equal(gguf_get_f32(g, "a.f32", &f, &err), 1);
    assert_true(f == 1.5f);
    assert_int_equal(gguf_get_f32(g, "a.f64", &f, &err), 1);
    assert_true(f == 3.25f);
    assert_int_equal(gguf_get_bool(g, "a.bool", &yes, &err), 1);
    assert_true(yes);
    assert_int_equal(gguf_get_string(g, "general.architecture", &name, &err), 1);
    assert_true(bytes_equal(name, BYTES("llama")));
    assert_int_equal(gguf_n_keys(g), 11);
    assert_true(bytes_equal(gguf_key(g, 2, NULL), BYTES("a.i16")));
    gguf_close(g);
    str_free(&s);
}

static void test_arrays_come_back(void **state)
{
    struct str s = {0};
    struct err err;
    struct gguf_array array;
    struct bytes word;
    build_valid(&s);
    struct gguf *g = open_exact(s.data, s.len, &err);
    assert_int_equal(gguf_get_array(g, "a.ints", GGUF_I32, &array, &err), 1);
    assert_int_equal(array.n, 3);
    assert_int_equal(gguf_array_i32(&array, 1), -8);
    assert_int_equal(gguf_get_array(g, "a.floats", GGUF_F32, &array, &err), 1);
    assert_int_equal(array.n, 2);
    assert_memory_equal(array.at, ((float[]){0.5f, -2}), 2 * sizeof(float));
    assert_int_equal(gguf_get_array(g, "a.words", GGUF_STRING, &array, &err), 1);
    assert_int_equal(array.n, 3);
    assert_true(gguf_array_next_string(&array, &word) && bytes_equal(word, BYTES("a")));
    assert_true(gguf_array_next_string(&array, &word) && word.len == 0);
    assert_true(gguf_array_next_string(&array, &word) && bytes_equal(word, BYTES("b\0c")));
    assert_false(gguf_array_next_string(&array, &word));
    gguf_close(g);
    str_free(&s);
}

static void test_tensors_point_at_their_data(void **state)
{
    struct str s = {0};
    struct err err;
    float row[32];
    build_valid(&s);
    struct gguf *g = open_exact(s.data, s.len, &err);
    const struct gguf_tensor *first = gguf_tensor_find(g, "first");
    const struct gguf_tensor *second = gguf_tensor_find(g, "second");
    assert_int_equal(gguf_n_tensors(g), 2);
    assert_ptr_equal(gguf_tensor_at(g, 1), second);
    assert_null(gguf_tensor_find(g, "third"));
    assert_true(first->tensor.n == 1 && first->tensor.k == 5 && first->n_dims == 1);
    assert_true(second->tensor.n == 3 && second->tensor.k == 32 && second->n_dims == 2);
    tensor_row_unpack(&first->tensor, 0, row);
    assert_true(row[4] == 5);
    tensor_row_unpack(&second->tensor, 0, row);
    assert_true(row[0] == 1 && row[1] == 0);
    gguf_close(g);
    str_free(&s);
}

static void test_an_own_alignment_is_kept_and_version_2_read(void **state)
{
    struct gguf_writer w = {.alignment = 128};
    struct str s = {0};
    struct err err;
    static const int64_t dims[1] = {3};
    static const float values[] = {1, 2, 3};
    gguf_write_u32(&w, "general.alignment", 128);
    gguf_write_tensor(&w, "a", TENSOR_F32, dims, 1, values, sizeof values);
    gguf_write_tensor(&w, "b", TENSOR_F32, dims, 1, values, sizeof values);
    gguf_write_finish(&w, &s);
    s.data[4] = 2;
    struct gguf *g = open_exact(s.data, s.len, &err);
    assert_non_null(g);
    const char *b = gguf_tensor_find(g, "b")->tensor.data;
    assert_int_equal(b - (const char *)gguf_tensor_find(g, "a")->tensor.data, 128);
    assert_int_equal(gguf_metadata(g).len % 128, 0);
    gguf_close(g);
    str_free(&s);
}

static void test_a_file_without_keys_and_tensors_opens(void **state)
{
    struct str s = {0};
    struct err err;
    header(&s, 3, 0, 0);
    struct gguf *g = open_exact(s.data, s.len, &err);
    assert_non_null(g);
    assert_int_equal(gguf_metadata(g).len, 24);
    gguf_close(g);
    str_free(&s);
}

/* ---- getters say what does not fit --------------------------------------------------------- */

static void test_getters_refuse_wrong_types_and_values(void **state)
{
    struct str s = {0};
    struct err err;
    build_valid(&s);
    struct gguf *g = open_exact(s.data, s.len, &err);
    uint32_t a = 77;
    int32_t b = 77;
    float f = 77;
    bool yes;
    struct bytes name;
    struct gguf_array array;
    assert_int_equal(gguf_get_u32(g, "absent", &a, &err), 0);
    assert_int_equal(a, 77);
    assert_int_equal(gguf_get_u32(g, "a.u64", &a, &err), -1);
    assert_string_equal(err.text, "m.gguf: key a.u64: 1099511627776 is above 4294967295");
    assert_int_equal(gguf_get_u32(g, "a.i16", &a, &err), -1);
    assert_string_equal(err.text, "m.gguf: key a.i16: -3 is below 0");
    assert_int_equal(gguf_get_i32(g, "a.u32", &b, &err), -1);
    assert_int_equal(gguf_get_u32(g, "a.f32", &a, &err), -1);
    assert_string_equal(err.text, "m.gguf: key a.f32: type f32, expected an integer");
    assert_int_equal(gguf_get_f32(g, "a.u32", &f, &err), -1);
    assert_int_equal(gguf_get_bool(g, "a.u32", &yes, &err), -1);
    assert_int_equal(gguf_get_string(g, "a.words", &name, &err), -1);
    assert_string_equal(err.text, "m.gguf: key a.words: an array of string, expected string");
    assert_int_equal(gguf_get_array(g, "a.f32", GGUF_F32, &array, &err), -1);
    assert_int_equal(gguf_get_array(g, "a.words", GGUF_I32, &array, &err), -1);
    assert_true(a == 77 && b == 77 && f == 77);
    gguf_close(g);
    str_free(&s);
}

/* An array declared u8 and read as f32 or i32 ran past its end elsewhere. */
static void test_an_array_of_bytes_is_no_array_of_scores(void **state)
{
    struct gguf_writer w = {0};
    struct str s = {0};
    struct err err;
    struct gguf_array array;
    static const uint8_t bytes[100];
    gguf_write_array(&w, "tokenizer.ggml.scores", GGUF_U8, bytes, 100, 1);
    gguf_write_array(&w, "tokenizer.ggml.token_type", GGUF_U8, bytes, 100, 1);
    gguf_write_finish(&w, &s);
    struct gguf *g = open_exact(s.data, s.len, &err);
    assert_int_equal(gguf_get_array(g, "tokenizer.ggml.scores", GGUF_F32, &array, &err), -1);
    assert_string_equal(err.text, "m.gguf: key tokenizer.ggml.scores: an array of u8, expected an "
                                  "array of f32");
    assert_int_equal(gguf_get_array(g, "tokenizer.ggml.token_type", GGUF_I32, &array, &err), -1);
    gguf_close(g);
    str_free(&s);
}

static void test_a_float_that_is_not_finite_is_refused(void **state)
{
    struct gguf_writer w = {0};
    struct str s = {0};
    struct err err;
    double huge = 1e300;
    float f;
    gguf_write_value(&w, "d", GGUF_F64, &huge, 8);
    gguf_write_finish(&w, &s);
    struct gguf *g = open_exact(s.data, s.len, &err);
    assert_int_equal(gguf_get_f32(g, "d", &f, &err), -1);
    gguf_close(g);
    str_free(&s);
}

static void test_a_missing_file_is_named(void **state)
{
    struct err err;
    assert_null(gguf_open("/nonexistent/m.gguf", &err));
    assert_non_null(strstr(err.text, "/nonexistent/m.gguf"));
    gguf_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_come_back),
        cmocka_unit_test(test_arrays_come_back),
        cmocka_unit_test(test_tensors_point_at_their_data),
        cmocka_unit_test(test_an_own_alignment_is_kept_and_version_2_read),
        cmocka_unit_test(test_a_file_without_keys_and_tensors_opens),
        cmocka_unit_test(test_getters_refuse_wrong_types_and_values),
        cmocka_unit_test(test_an_array_of_bytes_is_no_array_of_scores),
        cmocka_unit_test(test_a_float_that_is_not_finite_is_refused),
        cmocka_unit_test(test_a_missing_file_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
