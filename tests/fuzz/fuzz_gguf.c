/* fuzz_gguf.c - any bytes as a model file: opened or refused, and what opens can be read through.
 *
 * Three readers of the same file in a row: the container, the model's configuration and weights, the
 * vocabulary. Whatever one of them accepts is then used as the server would use it: every string is
 * walked, a row of every tensor is unpacked, a text is tokenised. */
#include <stdint.h>
#include <stdlib.h>
#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/gguf.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "tests/fuzz/fuzz.h"
#include "utils/mkmodel_build.h"

static void read_through(const struct gguf *g)
{
    struct err err;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *t = &gguf_tensor_at(g, i)->tensor;
        float *row = xcalloc((size_t)t->k, sizeof *row);
        tensor_row_unpack(t, t->n - 1, row);
        xfree(row);
    }
    for (size_t i = 0; i < gguf_n_keys(g); i++) {
        struct str key = {0};
        struct bytes text, name = gguf_key(g, i, NULL);
        struct gguf_array array;
        str_append(&key, name.data, name.len);
        if (gguf_get_array(g, key.data, GGUF_STRING, &array, &err) == 1)
            while (gguf_array_next_string(&array, &text))
                (void)utf8_is_valid(text.data, text.len);
        if (gguf_get_array(g, key.data, GGUF_I32, &array, &err) == 1)
            for (uint64_t n = 0; n < array.n; n++)
                (void)gguf_array_i32(&array, n);
        str_free(&key);
    }
}

static void use_tokenizer(const struct gguf *g)
{
    struct err err;
    struct ids ids = {0};
    struct tokenizer *t = tokenizer_load(g, &err);
    if (t != NULL)
        tokenizer_encode(t, BYTES("<|im_start|>The cache\n 12"), true, &ids);
    ids_free(&ids);
    tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err = {{0}};
    struct gguf *g = gguf_open_memory("input", data, size, &err);
    if (g == NULL) {
        ASSERT(err.text[0] != 0);
        return 0;
    }
    read_through(g);
    use_tokenizer(g);
    err.text[0] = 0;
    struct model *m = model_from_gguf(g, &err);
    ASSERT((m == NULL) == (err.text[0] != 0));
    if (m != NULL) {
        float *table = xmalloc((size_t)m->rope_dim * 16 * sizeof *table);
        model_rope_table(m, 16, table, table + m->rope_dim / 2 * 16);
        xfree(table);
    }
    model_close(m);
    return 0;
}

/* Small whole models: as few weights as can be, so that mutations meet the tables. */
void fuzz_more_seeds(fuzz_add add, void *arg)
{
    struct mkmodel_options o = mkmodel_defaults();
    struct str file = {0};
    struct err err;
    o.layers = o.heads = o.kv_heads = 1;
    o.width = o.inner = o.head_dim = 32;
    if (mkmodel_build(&o, &file, &err) == 0)
        add(arg, "model llama", file.data, file.len);
    o.architecture = "qwen2";
    o.untied = o.rope_factors = true;
    if (mkmodel_build(&o, &file, &err) == 0)
        add(arg, "model qwen2", file.data, file.len);
    str_free(&file);
}
