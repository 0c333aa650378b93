/* test_golden_model.c - stored types and the real SmolLM2-135M-Instruct file, as others see them.
 *
 * quant-vectors.jsonl has random blocks of each type and their values, to the bit, from the Python
 * package gguf 0.19.0 (its numpy dequantisation, MIT). The model's figures are from its
 * configuration on its card and from the tensor table that llama.cpp prints for this file; skipped
 * aloud where the file is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "model/gguf.h"
#include "model/model.h"
#include "tests/golden/golden.h"

/* "0aff" -> bytes; returns their number. */
static size_t from_hex(struct bytes hex, uint8_t *out, size_t room)
{
    assert_true(hex.len % 2 == 0 && hex.len / 2 <= room);
    for (size_t i = 0; i < hex.len / 2; i++) {
        char pair[3] = {hex.data[2 * i], hex.data[2 * i + 1], 0};
        out[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return hex.len / 2;
}

static void check_vector(const json_t *line)
{
    uint8_t bytes[1024];
    float values[1024];
    struct bytes name = golden_text(line, "type");
    const json_t *expected = json_object_get(line, "values");
    int type = tensor_type_find(name.data);
    assert_true(type >= 0);
    size_t n = json_array_size(expected);
    size_t len = from_hex(golden_text(line, "bytes"), bytes, sizeof bytes);
    assert_in_range(n, 1, 1024);
    assert_int_equal(len, tensor_row_bytes(type, (int64_t)n));
    struct tensor t = {.type = (enum tensor_type)type, .n = 1, .k = (int64_t)n, .data = bytes};
    tensor_row_unpack(&t, 0, values);
    for (size_t i = 0; i < n; i++) {
        float want = (float)json_number_value(json_array_get(expected, i));
        if (values[i] != want)
            fail_msg("%s value %zu: %.9g, expected %.9g", name.data, i, (double)values[i],
                     (double)want);
    }
}

static void test_every_type_unpacks_as_elsewhere(void **state)
{
    char path[GOLDEN_PATH_MAX];
    snprintf(path, sizeof path, "%s/tests/golden/quant-vectors.jsonl",
             getenv("KVASIR_SRC") != NULL ? getenv("KVASIR_SRC") : ".");
    json_t *lines = golden_read_lines(path);
    assert_int_equal(json_array_size(lines), 11);
    for (size_t i = 0; i < json_array_size(lines); i++)
        check_vector(json_array_get(lines, i));
    json_decref(lines);
}

static struct model *open_model(void)
{
    char path[GOLDEN_PATH_MAX];
    struct err err;
    if (!golden_find_model(path))
        skip();
    struct model *m = model_open(path, &err);
    if (m == NULL)
        fail_msg("%s", err.text);
    return m;
}

static void test_smollm2_has_its_figures(void **state)
{
    struct model *m = open_model();
    assert_string_equal(m->architecture, "llama");
    assert_int_equal(m->n_layers, 30);
    assert_int_equal(m->n_context, 8192);
    assert_int_equal(m->width, 576);
    assert_int_equal(m->n_heads, 9);
    assert_int_equal(m->n_kv_heads, 3);
    assert_int_equal(m->head_dim, 64);
    assert_int_equal(m->inner, 1536);
    assert_int_equal(m->n_vocab, 49152);
    assert_int_equal(m->rope_dim, 64);
    assert_false(m->rope_neox);
    assert_true(m->rope_base == 100000 && m->rope_scale == 1);
    assert_true(m->norm_eps == 1e-5f);
    assert_true(m->tied);
    assert_null(m->rope_factors.data);
    assert_non_null(memmem(m->chat_template.data, m->chat_template.len, "named SmolLM", 12));
    model_close(m);
}

static void test_smollm2_has_its_tensors(void **state)
{
    struct model *m = open_model();
    const struct model_layer *last = &m->layers[29];
    assert_int_equal(gguf_n_tensors(m->gguf), 272);
    assert_int_equal(m->embedding.type, TENSOR_Q8_0);
    assert_int_equal(last->k.type, TENSOR_Q4_1);
    assert_true(last->k.n == 192 && last->k.k == 576);
    assert_true(last->down.n == 576 && last->down.k == 1536);
    assert_null(last->q_bias.data);
    model_close(m);
}

/* The weights are what a trained model's are: finite, small, and not all alike. Pages may be dropped
 * in between: what is read again is the same. */
static void test_smollm2_unpacks_to_weights(void **state)
{
    struct model *m = open_model();
    float row[1536], again[1536];
    for (int i = 0; i < 30; i++) {
        float low = 0, high = 0;
        tensor_row_unpack(&m->layers[i].down, 575, row);
        for (int k = 0; k < 1536; k++) {
            low = row[k] < low ? row[k] : low;
            high = row[k] > high ? row[k] : high;
        }
        assert_true(low < -0.01f && low > -10 && high > 0.01f && high < 10);
    }
    model_drop_pages(m);
    tensor_row_unpack(&m->layers[29].down, 575, again);
    assert_memory_equal(row, again, sizeof row);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_unpacks_as_elsewhere),
        cmocka_unit_test(test_smollm2_has_its_figures),
        cmocka_unit_test(test_smollm2_has_its_tensors),
        cmocka_unit_test(test_smollm2_unpacks_to_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
