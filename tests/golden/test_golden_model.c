/* test_golden_model.c - the real SmolLM2-135M-Instruct file: its figures as its makers state them.
 *
 * From the model's configuration on its card and from the tensor table that llama.cpp prints for
 * this file. Skipped aloud where the file is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "model/gguf.h"
#include "model/model.h"
#include "tests/golden/golden.h"

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
        cmocka_unit_test(test_smollm2_has_its_figures),
        cmocka_unit_test(test_smollm2_has_its_tensors),
        cmocka_unit_test(test_smollm2_unpacks_to_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
