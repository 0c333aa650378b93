/* test_model.c - a model's numbers and tensors: taken from right files, refused from wrong ones.
 *
 * The files are kvasir-mkmodel's. A fault is made by changing a number or a letter of a name in
 * place, or by adding a key or a tensor; each must be refused with a line that names the place and
 * what was expected, since a model that is computed wrongly still talks. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/table.h"
#include "model/gguf.h"
#include "model/gguf_write.h"
#include "model/model.h"
#include "utils/mkmodel_build.h"

/* ---- helpers ------------------------------------------------------------------------------- */

static struct str build(const struct mkmodel_options *o)
{
    struct str file = {0};
    struct err err;
    if (mkmodel_build(o, &file, &err) != 0)
        fail_msg("%s", err.text);
    return file;
}

static struct mkmodel_options small(void)
{
    struct mkmodel_options o = mkmodel_defaults();
    o.layers = 2;
    o.width = 64;
    o.heads = 4;
    o.inner = 96;
    return o;
}

static struct model *open_file(const struct str *file, struct err *err)
{
    struct gguf *g = gguf_open_memory("m.gguf", file->data, file->len, err);
    return g != NULL ? model_from_gguf(g, err) : NULL;
}

/* Frees the file. */
static void assert_refused(struct str *file, const char *message)
{
    struct err err = {{0}};
    struct model *m = open_file(file, &err);
    if (m != NULL)
        fail_msg("was opened, expected: %s", message);
    if (strncmp(err.text, "m.gguf: ", 8) != 0 || strcmp(err.text + 8, message) != 0)
        fail_msg("said \"%s\", expected \"%s\"", err.text, message);
    str_free(file);
}

static void assert_opens(struct str *file)
{
    struct err err;
    struct model *m = open_file(file, &err);
    if (m == NULL)
        fail_msg("%s", err.text);
    model_close(m);
    str_free(file);
}

/* The place behind a name of the tables, where a key has its type and a tensor its n_dims. */
static char *behind(struct str *file, const char *name)
{
    uint64_t len = strlen(name);
    struct str needle = {0};
    str_append(&needle, &len, sizeof len);
    str_append_str(&needle, name);
    char *at = memmem(file->data, file->len, needle.data, needle.len);
    if (at == NULL)
        fail_msg("no %s in the file", name);
    at += needle.len;
    str_free(&needle);
    return at;
}

static void patch_u32(struct str *file, const char *key, uint32_t value)
{
    memcpy(behind(file, key) + 4, &value, sizeof value);
}

static void patch_dim(struct str *file, const char *tensor, int dim, int64_t value)
{
    memcpy(behind(file, tensor) + 4 + dim * 8, &value, sizeof value);
}

/* Changes the last letter of a name, so that it is another one. */
static void spoil_name(struct str *file, const char *name)
{
    behind(file, name)[-1] = 'X';
}

/* A key that is added to an else valid file: one number in the type that the key has in files. */
struct extra {
    const char *key;
    enum gguf_type type;
    double value;
    const char *text; /* GGUF_STRING */
};

static void add_key(struct gguf_writer *w, const void *arg)
{
    const struct extra *extra = arg;
    if (extra->type == GGUF_U32)
        gguf_write_u32(w, extra->key, (uint32_t)extra->value);
    else if (extra->type == GGUF_F32)
        gguf_write_f32(w, extra->key, (float)extra->value);
    else if (extra->type == GGUF_BOOL)
        gguf_write_bool(w, extra->key, extra->value != 0);
    else
        gguf_write_string(w, extra->key, bytes_from(extra->text));
}

static struct str build_with(const struct extra *extra)
{
    struct mkmodel_options o = small();
    o.extra = add_key;
    o.extra_arg = extra;
    return build(&o);
}

static void assert_shape(const struct tensor *t, int type, int64_t n, int64_t k)
{
    assert_non_null(t->data);
    assert_int_equal(t->type, type);
    assert_int_equal(t->n, n);
    assert_int_equal(t->k, k);
}

/* ---- what is right ------------------------------------------------------------------------- */

static void test_a_model_has_its_numbers_and_tensors(void **state)
{
    struct mkmodel_options o = mkmodel_defaults();
    struct str file = build(&o);
    struct err err;
    struct model *m = open_file(&file, &err);
    assert_non_null(m);
    assert_string_equal(m->architecture, "llama");
    assert_string_equal(m->name, "tiny");
    assert_int_equal(m->n_layers, 4);
    assert_int_equal(m->n_context, 2048);
    assert_int_equal(m->width, 96);
    assert_int_equal(m->n_heads, 6);
    assert_int_equal(m->n_kv_heads, 2);
    assert_int_equal(m->head_dim, 32);
    assert_int_equal(m->inner, 288);
    assert_int_equal(m->n_vocab, 323);
    assert_int_equal(m->rope_dim, 32);
    assert_false(m->rope_neox);
    assert_true(m->rope_base == 10000 && m->rope_scale == 1 && m->temperature == -1);
    assert_true(m->norm_eps == 1e-5f);
    assert_true(m->chat_template.len > 100 && m->chat_template.data[0] == '{');
    for (int i = 0; i < 4; i++) {
        const struct model_layer *l = &m->layers[i];
        assert_shape(&l->attn_norm, TENSOR_F32, 1, 96);
        assert_shape(&l->q, TENSOR_Q8_0, 192, 96);
        assert_shape(&l->k, TENSOR_Q8_0, 64, 96);
        assert_shape(&l->v, TENSOR_Q8_0, 64, 96);
        assert_shape(&l->o, TENSOR_Q8_0, 96, 192);
        assert_shape(&l->ffn_norm, TENSOR_F32, 1, 96);
        assert_shape(&l->gate, TENSOR_Q8_0, 288, 96);
        assert_shape(&l->up, TENSOR_Q8_0, 288, 96);
        assert_shape(&l->down, TENSOR_Q8_0, 96, 288);
        assert_null(l->q_bias.data);
    }
    assert_shape(&m->embedding, TENSOR_Q8_0, 323, 96);
    assert_shape(&m->output_norm, TENSOR_F32, 1, 96);
    assert_true(m->tied && m->head.data == m->embedding.data);
    assert_null(m->rope_factors.data);
    model_drop_pages(m); /* not a map: nothing to drop, nothing to break */
    model_close(m);
    str_free(&file);
}

static void test_bias_head_and_factors_are_found(void **state)
{
    struct mkmodel_options o = small();
    o.architecture = "qwen2";
    o.untied = o.rope_factors = true;
    struct str file = build(&o);
    struct err err;
    struct model *m = open_file(&file, &err);
    assert_non_null(m);
    assert_true(m->rope_neox);
    assert_shape(&m->layers[1].q_bias, TENSOR_F32, 1, 128);
    assert_shape(&m->layers[1].k_bias, TENSOR_F32, 1, 64);
    assert_shape(&m->layers[1].v_bias, TENSOR_F32, 1, 64);
    assert_shape(&m->rope_factors, TENSOR_F32, 1, 16);
    assert_shape(&m->head, TENSOR_Q8_0, 323, 64);
    assert_false(m->tied);
    assert_ptr_not_equal(m->head.data, m->embedding.data);
    model_close(m);
    str_free(&file);
}

static void test_every_type_loads(void **state)
{
    static const int types[] = {TENSOR_F32,  TENSOR_F16,  TENSOR_BF16, TENSOR_Q8_0,
                                TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0, TENSOR_Q5_1,
                                TENSOR_Q4_K, TENSOR_Q5_K, TENSOR_Q6_K};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct mkmodel_options o = small();
        struct err err;
        o.type = types[i];
        o.layers = 1;
        if (tensor_block(types[i]) == 256)
            o.width = o.inner = 256, o.heads = 8;
        struct str file = build(&o);
        struct model *m = open_file(&file, &err);
        if (m == NULL)
            fail_msg("%s: %s", tensor_type_name(types[i]), err.text);
        assert_int_equal(m->layers[0].down.type, types[i]);
        model_close(m);
        str_free(&file);
    }
}

/* The number is this program's own, of the first build: the same on every machine since. */
static void test_equal_options_make_equal_bytes(void **state)
{
    struct mkmodel_options o = mkmodel_defaults();
    struct str a = build(&o), b = build(&o);
    assert_true(bytes_equal(bytes_of(&a), bytes_of(&b)));
    assert_int_equal(hash_bytes(a.data, a.len, 0), UINT64_C(0x6d0352d254b80900));
    o.seed = 2;
    str_free(&b);
    b = build(&o);
    assert_int_equal(a.len, b.len);
    assert_false(bytes_equal(bytes_of(&a), bytes_of(&b)));
    str_free(&a);
    str_free(&b);
}

static void test_the_digest_follows_the_metadata(void **state)
{
    struct mkmodel_options o = small();
    struct str file = build(&o);
    struct err err;
    struct model *a = open_file(&file, &err), *b = open_file(&file, &err);
    assert_true(a->digest == b->digest);
    model_close(b);
    patch_u32(&file, "llama.rope.freq_base", 0x461c4400); /* 10001 as a float */
    b = open_file(&file, &err);
    assert_true(a->digest != b->digest);
    model_close(a);
    model_close(b);
    str_free(&file);
}

static void test_the_temperature_comes_from_the_metadata(void **state)
{
    const struct extra extra = {"general.sampling.temp", GGUF_F32, 0.5, NULL};
    struct str file = build_with(&extra);
    struct err err;
    struct model *m = open_file(&file, &err);
    assert_true(m->temperature == 0.5f);
    model_close(m);
    str_free(&file);
}

/* ---- wrong numbers ------------------------------------------------------------------------- */

static void test_missing_keys_are_named(void **state)
{
    static const char *const required[] = {
        "llama.block_count",          "llama.context_length",
        "llama.embedding_length",     "llama.feed_forward_length",
        "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon",
        "general.architecture",
    };
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        struct mkmodel_options o = small();
        struct str file = build(&o);
        char message[80];
        snprintf(message, sizeof message, "key %s: missing", required[i]);
        spoil_name(&file, required[i]);
        assert_refused(&file, message);
    }
}

static void test_numbers_outside_their_range_are_refused(void **state)
{
    static const struct {
        const char *key;
        uint32_t value;
        const char *message;
    } cases[] = {
        {"llama.block_count", 0, "key llama.block_count: 0 is not between 1 and 1024"},
        {"llama.block_count", 1u << 30,
         "key llama.block_count: 1073741824 is not between 1 and 1024"},
        {"llama.block_count", UINT32_MAX, "key llama.block_count: 4294967295 is above 2147483647"},
        {"llama.context_length", 1u << 25,
         "key llama.context_length: 33554432 is not between 1 and 16777216"},
        {"llama.attention.head_count", 0,
         "key llama.attention.head_count: 0 is not between 1 and 4096"},
        {"llama.attention.head_count_kv", 3, "4 heads are no multiple of 3 key/value heads"},
        {"llama.attention.key_length", 2000,
         "key llama.attention.key_length: 2000 is not between 1 and 1024"},
        {"llama.attention.value_length", 16,
         "key llama.attention.value_length: 16, expected 32 as in attention.key_length"},
        {"llama.rope.dimension_count", 31,
         "31 rotated values of a head of 32: expected an even number of them"},
        {"llama.rope.dimension_count", 64,
         "64 rotated values of a head of 32: expected an even number of them"},
        {"llama.rope.freq_base", 0, "key llama.rope.freq_base: 0 is not above 0 and at most 1e+12"},
        {"llama.rope.freq_base", 0x7fc00000, "key llama.rope.freq_base: nan is no finite number"},
        {"llama.attention.layer_norm_rms_epsilon", 0,
         "key llama.attention.layer_norm_rms_epsilon: 0 is not above 0 and at most 1"},
        {"llama.vocab_size", 300, "key llama.vocab_size: 300, but token_embd.weight has 323 rows"},
        {"general.quantization_version", 1, "key general.quantization_version: 1, expected 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mkmodel_options o = small();
        struct str file = build(&o);
        patch_u32(&file, cases[i].key, cases[i].value);
        assert_refused(&file, cases[i].message);
    }
}

static void test_a_vocabulary_of_another_size_is_refused(void **state)
{
    struct mkmodel_options o = small();
    struct str file = build(&o);
    patch_u32(&file, "llama.vocab_size", 322);
    patch_dim(&file, "token_embd.weight", 1, 322);
    assert_refused(&file, "key tokenizer.ggml.tokens: 323 tokens, but token_embd.weight has 322 "
                          "rows");
}

static void test_unknown_architectures_are_named(void **state)
{
    struct mkmodel_options o = small();
    struct str file = build(&o);
    memcpy(behind(&file, "general.architecture") + 4 + 8, "mamba", 5);
    assert_refused(&file, "architecture mamba is not supported, only llama and qwen2");
}

/* ---- features that would change the result ------------------------------------------------- */

static void test_features_that_are_not_computed_are_refused(void **state)
{
    static const struct {
        struct extra extra;
        const char *message;
    } cases[] = {
        {{"llama.expert_count", GGUF_U32, 8, NULL},
         "key llama.expert_count: 8 asks for what is not supported, expected 0"},
        {{"llama.attention.sliding_window", GGUF_U32, 1024, NULL},
         "key llama.attention.sliding_window: a window of 1024 in a context of 2048 is not "
         "supported"},
        {{"llama.logit_scale", GGUF_F32, 0.0625, NULL},
         "key llama.logit_scale: 0.0625 asks for what is not supported, expected 1"},
        {{"llama.final_logit_softcapping", GGUF_F32, 30, NULL},
         "key llama.final_logit_softcapping: 30 asks for what is not supported, expected 0"},
        {{"llama.attention.causal", GGUF_BOOL, 0, NULL},
         "key llama.attention.causal: 0 asks for what is not supported, expected 1"},
        {{"llama.rope.scaling.type", GGUF_STRING, 0, "yarn"},
         "key llama.rope.scaling.type: yarn is not supported, only none and linear"},
        {{"llama.rope.scaling.factor", GGUF_F32, -2, NULL},
         "key llama.rope.scaling.factor: -2 is not between 0 and 1e6"},
        {{"llama.attention.new_trick", GGUF_U32, 0, NULL},
         "key llama.attention.new_trick: unknown, and it may change what the model computes"},
        {{"split.count", GGUF_U32, 3, NULL}, "key split.count: one of 3 parts; join them first"},
        {{"llama.expert_used_count", GGUF_STRING, 0, "two"},
         "key llama.expert_used_count: type string, expected an integer"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct str file = build_with(&cases[i].extra);
        assert_refused(&file, cases[i].message);
    }
}

static void test_features_that_are_switched_off_do_not_matter(void **state)
{
    static const struct extra off[] = {
        {"llama.expert_count", GGUF_U32, 0, NULL},
        {"llama.attention.sliding_window", GGUF_U32, 2048, NULL},
        {"llama.attention.sliding_window", GGUF_U32, 0, NULL},
        {"llama.logit_scale", GGUF_F32, 1, NULL},
        {"llama.attention.causal", GGUF_BOOL, 1, NULL},
        {"llama.rope.scaling.type", GGUF_STRING, 0, "none"},
        {"llama.rope.scaling.finetuned", GGUF_BOOL, 1, NULL},
        {"llama.tensor_data_layout", GGUF_STRING, 0, "Meta AI original pth"},
        {"general.something", GGUF_U32, 1, NULL},
        {"split.count", GGUF_U32, 1, NULL},
        {"quantize.imatrix.file", GGUF_STRING, 0, "x"},
    };
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++) {
        struct str file = build_with(&off[i]);
        assert_opens(&file);
    }
}

static void test_an_adapter_is_no_model(void **state)
{
    struct mkmodel_options o = small();
    struct str file = build(&o);
    memcpy(behind(&file, "general.type") + 4 + 8, "vocab", 5);
    assert_refused(&file, "key general.type: vocab, expected model");
}

/* ---- tensors ------------------------------------------------------------------------------- */

static void test_missing_tensors_are_named(void **state)
{
    static const char *const required[] = {
        "token_embd.weight",     "output_norm.weight",    "blk.0.attn_q.weight",
        "blk.1.ffn_down.weight", "blk.1.ffn_norm.weight", "blk.0.attn_output.weight",
    };
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        struct mkmodel_options o = small();
        struct str file = build(&o);
        char message[80];
        snprintf(message, sizeof message, "tensor %s: missing", required[i]);
        spoil_name(&file, required[i]);
        assert_refused(&file, message);
    }
}

static void test_shapes_that_do_not_fit_are_told(void **state)
{
    struct mkmodel_options o = small();
    struct str file = build(&o);
    patch_u32(&file, "llama.attention.head_count_kv", 4);
    assert_refused(&file, "tensor blk.0.attn_k.weight: 64 x 64, expected 64 x 128");
    file = build(&o);
    patch_dim(&file, "blk.1.attn_q.weight", 1, 32);
    assert_refused(&file, "tensor blk.1.attn_q.weight: 64 x 32, expected 64 x 128");
    file = build(&o);
    patch_dim(&file, "output_norm.weight", 0, 63);
    assert_refused(&file, "tensor output_norm.weight: 63, expected 64");
    file = build(&o);
    patch_dim(&file, "blk.0.ffn_up.weight", 1, 95);
    assert_refused(&file, "tensor blk.0.ffn_up.weight: 64 x 95, expected 64 x 96");
}

/* Three dimensions whose product would fit, and two that fit with a third beside them. */
static void add_deep_head(struct gguf_writer *w, const void *arg)
{
    static const float values[64 * 323 * 2];
    gguf_write_tensor(w, "output.weight", TENSOR_F32, arg, 3, values, sizeof values);
}

static void test_a_matrix_has_two_dimensions(void **state)
{
    static const int64_t product[3] = {64, 17, 19}, beside[3] = {64, 323, 2};
    struct mkmodel_options o = small();
    o.extra = add_deep_head;
    o.extra_arg = product;
    struct str file = build(&o);
    assert_refused(&file, "tensor output.weight: 64 x 17 x 19, expected 64 x 323");
    o.extra_arg = beside;
    file = build(&o);
    assert_refused(&file, "tensor output.weight: 64 x 323 x 2, expected 64 x 323");
}

static void test_a_wild_projection_is_refused(void **state)
{
    struct mkmodel_options o = small();
    struct str file = build(&o);
    patch_u32(&file, "llama.attention.head_count", 4096);
    patch_u32(&file, "llama.attention.key_length", 1024);
    assert_refused(&file, "4096 heads of 1024 values are too many");
}

static void test_vectors_are_floats(void **state)
{
    struct mkmodel_options o = small();
    struct str file = build(&o);
    uint32_t type = TENSOR_F16;
    memcpy(behind(&file, "blk.1.attn_norm.weight") + 4 + 8, &type, 4);
    assert_refused(&file, "tensor blk.1.attn_norm.weight: type F16, expected F32");
}

static void add_tensor(struct gguf_writer *w, const void *arg)
{
    static const float values[128];
    static const int64_t dims[3] = {64, 1, 1};
    gguf_write_tensor(w, arg, TENSOR_F32, dims, 1, values, 64 * sizeof(float));
}

static void test_tensors_that_are_not_used_are_refused(void **state)
{
    struct mkmodel_options o = small();
    o.extra = add_tensor;
    o.extra_arg = "blk.0.attn_q_norm.weight";
    struct str file = build(&o);
    assert_refused(&file, "tensor blk.0.attn_q_norm.weight: not part of a llama model of 2 layers");
    o.extra_arg = "blk.2.attn_norm.weight";
    file = build(&o);
    assert_refused(&file, "tensor blk.2.attn_norm.weight: not part of a llama model of 2 layers");
    o.extra_arg = "blk.0.attn_rot_embd.weight"; /* old files have it; it follows from the base */
    file = build(&o);
    assert_opens(&file);
}

static void test_a_bias_is_everywhere_or_nowhere(void **state)
{
    struct mkmodel_options o = small();
    struct str file;
    o.qkv_bias = true;
    file = build(&o);
    spoil_name(&file, "blk.1.attn_v.bias");
    assert_refused(&file, "tensor blk.1.attn_v.bias: missing");
    file = build(&o);
    spoil_name(&file, "blk.0.attn_q.bias");
    assert_refused(&file, "tensor blk.0.attn_q.biaX: not part of a llama model of 2 layers");
    o.architecture = "qwen2";
    file = build(&o);
    spoil_name(&file, "blk.0.attn_q.bias");
    assert_refused(&file, "tensor blk.0.attn_q.bias: missing");
}

static void test_a_rotation_factor_of_zero_is_refused(void **state)
{
    struct mkmodel_options o = small();
    struct err err;
    o.rope_factors = true;
    struct str file = build(&o);
    struct model *m = open_file(&file, &err);
    size_t at = (size_t)((const char *)m->rope_factors.data - file.data);
    model_close(m);
    memset(file.data + at + 8, 0, 4);
    assert_refused(&file, "tensor rope_freqs.weight: factor 2 is 0");
}

static void test_a_model_cut_anywhere_is_refused(void **state)
{
    struct mkmodel_options o = small();
    struct err err;
    o.layers = 1;
    struct str file = build(&o);
    size_t len = file.len;
    for (size_t cut = 0; cut < len; cut += cut + 64 < len ? 61 : 1) { /* 61: every alignment */
        file.len = cut;
        assert_null(open_file(&file, &err));
    }
    file.len = len;
    assert_opens(&file);
}

/* ---- rotation ------------------------------------------------------------------------------ */

static void assert_near(float got, double expected)
{
    if (fabs((double)got - expected) > 6e-8) /* half a unit of a float below 1 */
        fail_msg("got %.9g, expected %.9g", (double)got, expected);
}

static void test_rotation_follows_base_scale_and_factors(void **state)
{
    const struct extra extra = {"llama.rope.scaling.factor", GGUF_F32, 4, NULL};
    struct mkmodel_options o = small();
    struct err err;
    static float cosines[2000 * 16], sines[2000 * 16];
    float factor;
    o.rope_factors = true;
    o.extra = add_key;
    o.extra_arg = &extra;
    struct str file = build(&o);
    struct model *m = open_file(&file, &err);
    assert_non_null(m);
    model_rope_table(m, 2000, cosines, sines);
    assert_true(cosines[0] == 1 && sines[15] == 0);
    for (int i = 0; i < 16; i += 5) {
        memcpy(&factor, (const char *)m->rope_factors.data + i * 4, 4);
        double angle = 1999 / 4.0 / pow(10000, i / 16.0) / (double)factor;
        assert_near(cosines[1999 * 16 + i], cos(angle));
        assert_near(sines[1999 * 16 + i], sin(angle));
    }
    model_close(m);
    str_free(&file);
}

static void test_options_that_do_not_go_together_are_refused(void **state)
{
    struct str file = {0};
    struct err err;
    struct mkmodel_options o = mkmodel_defaults();
    o.type = TENSOR_Q4_K;
    assert_int_equal(mkmodel_build(&o, &file, &err), -1);
    assert_string_equal(err.text, "width 96 is no multiple of 256, the block of Q4_K");
    o = mkmodel_defaults();
    o.kv_heads = 4;
    assert_int_equal(mkmodel_build(&o, &file, &err), -1);
    assert_string_equal(err.text, "heads 6 is no multiple of kv-heads 4");
    o = mkmodel_defaults();
    o.architecture = "gpt9";
    assert_int_equal(mkmodel_build(&o, &file, &err), -1);
    o = mkmodel_defaults();
    o.layers = 0;
    assert_int_equal(mkmodel_build(&o, &file, &err), -1);
    str_free(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_model_has_its_numbers_and_tensors),
        cmocka_unit_test(test_bias_head_and_factors_are_found),
        cmocka_unit_test(test_every_type_loads),
        cmocka_unit_test(test_equal_options_make_equal_bytes),
        cmocka_unit_test(test_the_digest_follows_the_metadata),
        cmocka_unit_test(test_the_temperature_comes_from_the_metadata),
        cmocka_unit_test(test_missing_keys_are_named),
        cmocka_unit_test(test_numbers_outside_their_range_are_refused),
        cmocka_unit_test(test_a_vocabulary_of_another_size_is_refused),
        cmocka_unit_test(test_unknown_architectures_are_named),
        cmocka_unit_test(test_features_that_are_not_computed_are_refused),
        cmocka_unit_test(test_features_that_are_switched_off_do_not_matter),
        cmocka_unit_test(test_an_adapter_is_no_model),
        cmocka_unit_test(test_missing_tensors_are_named),
        cmocka_unit_test(test_shapes_that_do_not_fit_are_told),
        cmocka_unit_test(test_a_matrix_has_two_dimensions),
        cmocka_unit_test(test_a_wild_projection_is_refused),
        cmocka_unit_test(test_vectors_are_floats),
        cmocka_unit_test(test_tensors_that_are_not_used_are_refused),
        cmocka_unit_test(test_a_bias_is_everywhere_or_nowhere),
        cmocka_unit_test(test_a_rotation_factor_of_zero_is_refused),
        cmocka_unit_test(test_a_model_cut_anywhere_is_refused),
        cmocka_unit_test(test_rotation_follows_base_scale_and_factors),
        cmocka_unit_test(test_options_that_do_not_go_together_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
