/* model.c - what a GGUF file says about its model, checked, and its tensors put in their places.
 *
 * A Llama-family model is one computation with a handful of numbers (widths, heads, rotation) and a
 * fixed list of tensors whose shapes follow from them. Two tables say so: `numbers`, the keys with
 * their ranges, and `layer_tensors`, the tensors with their shapes. Architectures differ in how the
 * halves of a rotated pair lie (llama's converter permutes the rows of q and k so that pairs are
 * neighbours; qwen2 keeps them half a head apart) and in whether q, k and v have a bias.
 *
 * The danger is a file that opens and computes something else than was trained: experts, a sliding
 * window, a logit scale, another rotation. A wrong model talks nearly as well as the right one, so
 * nobody would notice. Hence the rule: **nothing that could change the result is ignored.** Every
 * key under the architecture's name is read, known to be harmless, or required to have the value
 * that means "off" (`key_rules`); an unknown one is refused by name. So is every tensor that the
 * computation does not use.
 *
 * Weights stay views into the map. Runs at start, on the thread that opens the model; afterwards
 * the model is immutable. */
#include "model/model.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "base/table.h"
#include "model/gguf.h"

enum {
    MAX_LAYERS = 1024,
    MAX_CONTEXT = 1 << 24,
    MAX_WIDTH = 1 << 17,
    MAX_INNER = 1 << 20,
    MAX_HEADS = 4096,
    MAX_HEAD_DIM = 1024,
    MAX_PROJECTION = 1 << 20, /* H * D: with it every product of two sizes fits in 64 bits */
    MAX_VOCAB = 1 << 24,
};

struct architecture {
    const char *name;
    bool rope_neox;
    bool has_bias; /* q, k and v must have one; else they may */
};
static const struct architecture architectures[] = {
    {.name = "llama"}, /* Mistral and SmolLM2 files call themselves so as well */
    {.name = "qwen2", .rope_neox = true, .has_bias = true},
};
enum { N_ARCHITECTURES = sizeof architectures / sizeof architectures[0] };

struct loader {
    struct model *m;
    const struct gguf *g;
    const struct architecture *arch;
    bool *is_used; /* [n_tensors] by the computation */
    struct err *err;
};

/* A short text for messages and look-ups. */
struct key {
    char text[128];
};

/* "llama.block_count" */
static struct key key_of(const struct loader *l, const char *suffix)
{
    struct key key;
    snprintf(key.text, sizeof key.text, "%s.%s", l->arch->name, suffix);
    return key;
}

#define FAULT(l, format, ...) err_set((l)->err, "%s: " format, gguf_path((l)->g), __VA_ARGS__)

/* ---- what the metadata may say ------------------------------------------------------------- */

enum rule {
    RULE_READ,     /* read_numbers, read_rope, check_vocab look at it */
    RULE_HARMLESS, /* does not change the result */
    RULE_OFF,      /* a number or bool that must have one of two values */
    RULE_WINDOW,   /* 0, or not below the context */
};

static const struct {
    const char *suffix;
    enum rule rule;
    float off[2]; /* RULE_OFF: the values that mean "does nothing" */
} key_rules[] = {
    {"block_count", RULE_READ, {0}},
    {"context_length", RULE_READ, {0}},
    {"embedding_length", RULE_READ, {0}},
    {"feed_forward_length", RULE_READ, {0}},
    {"vocab_size", RULE_READ, {0}},
    {"attention.head_count", RULE_READ, {0}},
    {"attention.head_count_kv", RULE_READ, {0}},
    {"attention.key_length", RULE_READ, {0}},
    {"attention.value_length", RULE_READ, {0}},
    {"attention.layer_norm_rms_epsilon", RULE_READ, {0}},
    {"rope.dimension_count", RULE_READ, {0}},
    {"rope.freq_base", RULE_READ, {0}},
    {"rope.scale_linear", RULE_READ, {0}},
    {"rope.scaling.type", RULE_READ, {0}},
    {"rope.scaling.factor", RULE_READ, {0}},
    {"rope.scaling.original_context_length", RULE_HARMLESS, {0}},
    {"rope.scaling.finetuned", RULE_HARMLESS, {0}},
    {"attention.layer_norm_epsilon", RULE_HARMLESS, {0}}, /* of the norm that is not used */
    {"tensor_data_layout", RULE_HARMLESS, {0}},
    {"attention.sliding_window", RULE_WINDOW, {0}},
    {"attention.causal", RULE_OFF, {1, 1}},
    {"attention.scale", RULE_OFF, {0, 0}},
    {"attention.clamp_kqv", RULE_OFF, {0, 0}},
    {"attention.max_alibi_bias", RULE_OFF, {0, 0}},
    {"rope.scaling.attn_factor", RULE_OFF, {0, 1}},
    {"rope.scaling.yarn_log_multiplier", RULE_OFF, {0, 0}},
    {"attn_logit_softcapping", RULE_OFF, {0, 0}},
    {"final_logit_softcapping", RULE_OFF, {0, 0}},
    {"logit_scale", RULE_OFF, {0, 1}},
    {"residual_scale", RULE_OFF, {0, 1}},
    {"embedding_scale", RULE_OFF, {0, 1}},
    {"use_parallel_residual", RULE_OFF, {0, 0}},
    {"pooling_type", RULE_OFF, {0, 0}},
    {"expert_count", RULE_OFF, {0, 0}},
    {"expert_used_count", RULE_OFF, {0, 0}},
    {"expert_shared_count", RULE_OFF, {0, 0}},
    {"expert_feed_forward_length", RULE_OFF, {0, 0}},
    {"leading_dense_block_count", RULE_OFF, {0, 0}},
    {"nextn_predict_layers", RULE_OFF, {0, 0}},
};
enum { N_KEY_RULES = sizeof key_rules / sizeof key_rules[0] };

/* A number or bool of any type as a float: enough to tell "off" from anything else. */
static int get_any_number(const struct loader *l, const char *key, enum gguf_type type, float *out)
{
    bool yes;
    int32_t i;
    if (type == GGUF_F32 || type == GGUF_F64)
        return gguf_get_f32(l->g, key, out, l->err);
    if (type == GGUF_BOOL) {
        int status = gguf_get_bool(l->g, key, &yes, l->err);
        *out = status == 1 && yes;
        return status;
    }
    int status = gguf_get_i32(l->g, key, &i, l->err);
    *out = status == 1 ? (float)i : 0;
    return status;
}

static int check_off(const struct loader *l, const char *key, enum gguf_type type,
                     const float off[2])
{
    float value;
    if (get_any_number(l, key, type, &value) < 0)
        return -1;
    if (value != off[0] && value != off[1])
        return FAULT(l, "key %s: %g asks for what is not supported, expected %g", key,
                     (double)value, (double)off[1]);
    return 0;
}

static int check_window(const struct loader *l, const char *key)
{
    uint32_t window = 0;
    if (gguf_get_u32(l->g, key, &window, l->err) < 0)
        return -1;
    if (window != 0 && window < (uint32_t)l->m->n_context)
        return FAULT(l,
                     "key %s: a window of %" PRIu32 " in a context of %" PRId32 " is not supported",
                     key, window, l->m->n_context);
    return 0;
}

/* key begins with the architecture's name and a dot. */
static int check_key(const struct loader *l, struct bytes name, enum gguf_type type)
{
    char key[128];
    size_t prefix = strlen(l->arch->name) + 1;
    snprintf(key, sizeof key, "%.*s", (int)name.len, name.data);
    for (int i = 0; i < N_KEY_RULES && strlen(key) == name.len; i++) {
        if (strcmp(key + prefix, key_rules[i].suffix) != 0)
            continue;
        if (key_rules[i].rule == RULE_OFF)
            return check_off(l, key, type, key_rules[i].off);
        return key_rules[i].rule == RULE_WINDOW ? check_window(l, key) : 0;
    }
    for (char *c = key; *c != 0; c++)
        *c = *c > ' ' && *c < 127 ? *c : '?';
    return FAULT(l, "key %s: unknown, and it may change what the model computes", key);
}

static int check_keys(const struct loader *l)
{
    struct key prefix = key_of(l, "");
    size_t len = strlen(prefix.text);
    for (size_t i = 0; i < gguf_n_keys(l->g); i++) {
        enum gguf_type type;
        struct bytes name = gguf_key(l->g, i, &type);
        bool is_ours = name.len > len && memcmp(name.data, prefix.text, len) == 0;
        if (is_ours && check_key(l, name, type) != 0)
            return -1;
    }
    return 0;
}

/* ---- general keys -------------------------------------------------------------------------- */

/* Copies text, cut and with odd bytes masked: it is shown in INFO and in the log. */
static void copy_text(struct bytes text, char *out, size_t room)
{
    size_t n = text.len < room - 1 ? text.len : room - 1;
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)text.data[i] < ' ' || text.data[i] == 127 ? '?' : text.data[i];
    out[n] = 0;
}

static struct key masked(struct bytes text)
{
    struct key shown;
    copy_text(text, shown.text, 40);
    return shown;
}

static int find_architecture(struct loader *l)
{
    struct bytes name;
    int status = gguf_get_string(l->g, "general.architecture", &name, l->err);
    if (status < 0)
        return -1;
    if (status == 0)
        return FAULT(l, "key %s: missing", "general.architecture");
    copy_text(name, l->m->architecture, sizeof l->m->architecture);
    for (int i = 0; i < N_ARCHITECTURES; i++)
        if (bytes_equal(name, bytes_from(architectures[i].name)))
            l->arch = &architectures[i];
    if (l->arch == NULL)
        return FAULT(l, "architecture %s is not supported, only llama and qwen2",
                     l->m->architecture);
    l->m->rope_neox = l->arch->rope_neox;
    return 0;
}

static int read_general(struct loader *l)
{
    struct model *m = l->m;
    struct bytes text;
    float temperature = -1;
    uint32_t parts = 1, version = 2;
    if (find_architecture(l) != 0 || gguf_get_u32(l->g, "split.count", &parts, l->err) < 0 ||
        gguf_get_u32(l->g, "general.quantization_version", &version, l->err) < 0 ||
        gguf_get_f32(l->g, "general.sampling.temp", &temperature, l->err) < 0)
        return -1;
    if (parts > 1)
        return FAULT(l, "key split.count: one of %" PRIu32 " parts; join them first", parts);
    if (version != 2)
        return FAULT(l, "key general.quantization_version: %" PRIu32 ", expected 2", version);
    m->temperature = temperature >= 0 ? temperature : -1;
    int status = gguf_get_string(l->g, "general.type", &text, l->err);
    if (status < 0)
        return -1;
    if (status == 1 && !bytes_equal(text, BYTES("model")))
        return FAULT(l, "key general.type: %s, expected model", masked(text).text);
    status = gguf_get_string(l->g, "general.name", &text, l->err);
    if (status == 1)
        copy_text(text, m->name, sizeof m->name);
    return status < 0 ? -1 : 0;
}

/* ---- numbers ------------------------------------------------------------------------------- */

static const struct {
    const char *suffix;
    size_t offset; /* of the int32_t in struct model */
    int32_t max;   /* the least is 1 */
    bool may_miss; /* then the field stays 0 and gets its default */
} numbers[] = {
    {"block_count", offsetof(struct model, n_layers), MAX_LAYERS, false},
    {"context_length", offsetof(struct model, n_context), MAX_CONTEXT, false},
    {"embedding_length", offsetof(struct model, width), MAX_WIDTH, false},
    {"feed_forward_length", offsetof(struct model, inner), MAX_INNER, false},
    {"attention.head_count", offsetof(struct model, n_heads), MAX_HEADS, false},
    {"attention.head_count_kv", offsetof(struct model, n_kv_heads), MAX_HEADS, true},
    {"attention.key_length", offsetof(struct model, head_dim), MAX_HEAD_DIM, true},
    {"rope.dimension_count", offsetof(struct model, rope_dim), MAX_HEAD_DIM, true},
};
enum { N_NUMBERS = sizeof numbers / sizeof numbers[0] };

static int read_numbers(const struct loader *l)
{
    for (int i = 0; i < N_NUMBERS; i++) {
        int32_t *field = (int32_t *)((char *)l->m + numbers[i].offset);
        struct key key = key_of(l, numbers[i].suffix);
        int status = gguf_get_i32(l->g, key.text, field, l->err);
        if (status < 0)
            return -1;
        if (status == 0 && !numbers[i].may_miss)
            return FAULT(l, "key %s: missing", key.text);
        if (status == 1 && (*field < 1 || *field > numbers[i].max))
            return FAULT(l, "key %s: %" PRId32 " is not between 1 and %" PRId32, key.text, *field,
                         numbers[i].max);
    }
    return 0;
}

/* Defaults for what was missing, and how the numbers must go together. */
static int check_heads(const struct loader *l)
{
    struct model *m = l->m;
    int32_t value_length;
    if (m->n_kv_heads == 0)
        m->n_kv_heads = m->n_heads;
    if (m->n_heads % m->n_kv_heads != 0)
        return FAULT(l, "%" PRId32 " heads are no multiple of %" PRId32 " key/value heads",
                     m->n_heads, m->n_kv_heads);
    if (m->head_dim == 0 && m->width % m->n_heads != 0)
        return FAULT(l, "a width of %" PRId32 " is no multiple of %" PRId32 " heads", m->width,
                     m->n_heads);
    if (m->head_dim == 0)
        m->head_dim = m->width / m->n_heads;
    if (m->head_dim > MAX_HEAD_DIM || m->head_dim > MAX_PROJECTION / m->n_heads)
        return FAULT(l, "%" PRId32 " heads of %" PRId32 " values are too many", m->n_heads,
                     m->head_dim);
    value_length = m->head_dim;
    struct key key = key_of(l, "attention.value_length");
    if (gguf_get_i32(l->g, key.text, &value_length, l->err) < 0)
        return -1;
    if (value_length != m->head_dim)
        return FAULT(l, "key %s: %" PRId32 ", expected %" PRId32 " as in attention.key_length",
                     key.text, value_length, m->head_dim);
    return 0;
}

/* A finite float above 0 and at most max; *out keeps its default when the key is missing. */
static int get_positive(const struct loader *l, const char *suffix, float max, float *out)
{
    struct key key = key_of(l, suffix);
    int status = gguf_get_f32(l->g, key.text, out, l->err);
    if (status == 1 && !(*out > 0 && *out <= max))
        return FAULT(l, "key %s: %g is not above 0 and at most %g", key.text, (double)*out,
                     (double)max);
    return status;
}

/* The factor by which positions are divided. Files may name it in two ways; the type may be missing
 * and is linear then; a factor of 0 means none. */
static int read_rope_scale(const struct loader *l)
{
    struct key key = key_of(l, "rope.scaling.type");
    struct key factor_key = key_of(l, "rope.scaling.factor");
    struct key old_key = key_of(l, "rope.scale_linear");
    struct bytes type = BYTES("linear");
    float factor = 0;
    if (gguf_get_string(l->g, key.text, &type, l->err) < 0)
        return -1;
    bool is_none = bytes_equal(type, BYTES("none"));
    if (!is_none && !bytes_equal(type, BYTES("linear")))
        return FAULT(l, "key %s: %s is not supported, only none and linear", key.text,
                     masked(type).text);
    int status = gguf_get_f32(l->g, factor_key.text, &factor, l->err);
    if (status == 0)
        status = gguf_get_f32(l->g, old_key.text, &factor, l->err);
    if (status < 0)
        return -1;
    if (factor < 0 || factor > 1e6f)
        return FAULT(l, "key %s: %g is not between 0 and 1e6", factor_key.text, (double)factor);
    l->m->rope_scale = is_none || factor == 0 ? 1 : (double)factor;
    return 0;
}

static int read_rope(const struct loader *l)
{
    struct model *m = l->m;
    float base = 10000;
    if (m->rope_dim == 0)
        m->rope_dim = m->head_dim;
    if (m->rope_dim % 2 != 0 || m->rope_dim > m->head_dim)
        return FAULT(l,
                     "%" PRId32 " rotated values of a head of %" PRId32 ": expected an even "
                     "number of them",
                     m->rope_dim, m->head_dim);
    if (get_positive(l, "rope.freq_base", 1e12f, &base) < 0)
        return -1;
    m->rope_base = (double)base;
    return read_rope_scale(l);
}

static int read_config(struct loader *l)
{
    if (read_general(l) != 0 || read_numbers(l) != 0 || check_heads(l) != 0 || read_rope(l) != 0)
        return -1;
    int status = get_positive(l, "attention.layer_norm_rms_epsilon", 1, &l->m->norm_eps);
    if (status == 0)
        return FAULT(l, "key %s.attention.layer_norm_rms_epsilon: missing", l->arch->name);
    if (status < 0 || check_keys(l) != 0)
        return -1;
    return gguf_get_string(l->g, "tokenizer.chat_template", &l->m->chat_template, l->err) < 0 ? -1
                                                                                              : 0;
}

/* ---- tensors ------------------------------------------------------------------------------- */

enum dim { DIM_ONE, DIM_WIDTH, DIM_QUERY, DIM_KV, DIM_INNER, DIM_VOCAB, DIM_ROPE };

static int64_t dim_of(const struct model *m, enum dim dim)
{
    const int64_t sizes[] = {
        [DIM_ONE] = 1,
        [DIM_WIDTH] = m->width,
        [DIM_QUERY] = (int64_t)m->n_heads * m->head_dim,
        [DIM_KV] = (int64_t)m->n_kv_heads * m->head_dim,
        [DIM_INNER] = m->inner,
        [DIM_VOCAB] = m->n_vocab,
        [DIM_ROPE] = m->rope_dim / 2,
    };
    return sizes[dim];
}

#define LAYER(member) offsetof(struct model_layer, member)
static const struct {
    const char *suffix;
    size_t offset; /* of the struct tensor in struct model_layer */
    enum dim n, k; /* n DIM_ONE: a vector, stored as F32 */
    bool is_bias;  /* of q, k, v: see has_bias */
} layer_tensors[] = {
    {"attn_norm.weight", LAYER(attn_norm), DIM_ONE, DIM_WIDTH, false},
    {"attn_q.weight", LAYER(q), DIM_QUERY, DIM_WIDTH, false},
    {"attn_k.weight", LAYER(k), DIM_KV, DIM_WIDTH, false},
    {"attn_v.weight", LAYER(v), DIM_KV, DIM_WIDTH, false},
    {"attn_q.bias", LAYER(q_bias), DIM_ONE, DIM_QUERY, true},
    {"attn_k.bias", LAYER(k_bias), DIM_ONE, DIM_KV, true},
    {"attn_v.bias", LAYER(v_bias), DIM_ONE, DIM_KV, true},
    {"attn_output.weight", LAYER(o), DIM_WIDTH, DIM_QUERY, false},
    {"ffn_norm.weight", LAYER(ffn_norm), DIM_ONE, DIM_WIDTH, false},
    {"ffn_gate.weight", LAYER(gate), DIM_INNER, DIM_WIDTH, false},
    {"ffn_up.weight", LAYER(up), DIM_INNER, DIM_WIDTH, false},
    {"ffn_down.weight", LAYER(down), DIM_WIDTH, DIM_INNER, false},
};
enum { N_LAYER_TENSORS = sizeof layer_tensors / sizeof layer_tensors[0] };

/* "576 x 192", fastest first, as the file has it. */
static struct key shape_of(const struct gguf_tensor *t)
{
    struct key shape;
    int n = 0;
    for (int i = 0; i < t->n_dims; i++)
        n += snprintf(shape.text + n, sizeof shape.text - (size_t)n, "%s%" PRId64,
                      i > 0 ? " x " : "", t->dims[i]);
    return shape;
}

/* Finds a tensor and checks its shape; n DIM_ONE: a vector of F32. Not there: *out stays empty, and
 * that is a fault unless may_miss. */
static int take_tensor(struct loader *l, const char *name, enum dim n, enum dim k, bool may_miss,
                       struct tensor *out)
{
    const struct gguf_tensor *t = gguf_tensor_find(l->g, name);
    int64_t rows = dim_of(l->m, n), columns = dim_of(l->m, k);
    if (t == NULL)
        return may_miss ? 0 : FAULT(l, "tensor %s: missing", name);
    struct key shape = shape_of(t);
    if (n == DIM_ONE && (t->tensor.n != 1 || t->tensor.k != columns))
        return FAULT(l, "tensor %s: %s, expected %" PRId64, name, shape.text, columns);
    if (t->dims[0] != columns || t->dims[1] != rows || t->tensor.n != rows)
        return FAULT(l, "tensor %s: %s, expected %" PRId64 " x %" PRId64, name, shape.text, columns,
                     rows);
    if (n == DIM_ONE && t->tensor.type != TENSOR_F32)
        return FAULT(l, "tensor %s: type %s, expected F32", name, tensor_type_name(t->tensor.type));
    l->is_used[t - gguf_tensor_at(l->g, 0)] = true;
    *out = t->tensor;
    return 0;
}

/* A bias in the first layer says that there is one everywhere: all or none. */
static bool has_bias(const struct loader *l)
{
    return l->arch->has_bias || gguf_tensor_find(l->g, "blk.0.attn_q.bias") != NULL;
}

static int take_layer(struct loader *l, int32_t layer)
{
    char name[64];
    bool with_bias = has_bias(l);
    for (int i = 0; i < N_LAYER_TENSORS; i++) {
        struct tensor *t =
            (struct tensor *)((char *)&l->m->layers[layer] + layer_tensors[i].offset);
        if (layer_tensors[i].is_bias && !with_bias)
            continue;
        snprintf(name, sizeof name, "blk.%" PRId32 ".%s", layer, layer_tensors[i].suffix);
        if (take_tensor(l, name, layer_tensors[i].n, layer_tensors[i].k, false, t) != 0)
            return -1;
    }
    return 0;
}

/* The rows of the embedding are the vocabulary; what else counts tokens must agree. */
static int check_vocab(struct loader *l)
{
    struct gguf_array tokens;
    const struct gguf_tensor *t = gguf_tensor_find(l->g, "token_embd.weight");
    struct key key = key_of(l, "vocab_size");
    if (t == NULL)
        return FAULT(l, "tensor %s: missing", "token_embd.weight");
    if (t->tensor.n > MAX_VOCAB)
        return FAULT(l, "tensor token_embd.weight: %" PRId64 " tokens, at most %d", t->tensor.n,
                     MAX_VOCAB);
    l->m->n_vocab = (int32_t)t->tensor.n;
    int32_t n = l->m->n_vocab;
    if (gguf_get_i32(l->g, key.text, &n, l->err) < 0)
        return -1;
    if (n != l->m->n_vocab)
        return FAULT(l, "key %s: %" PRId32 ", but token_embd.weight has %" PRId32 " rows", key.text,
                     n, l->m->n_vocab);
    int status = gguf_get_array(l->g, "tokenizer.ggml.tokens", GGUF_STRING, &tokens, l->err);
    if (status == 1 && tokens.n != (uint64_t)n)
        return FAULT(l,
                     "key tokenizer.ggml.tokens: %" PRIu64 " tokens, but token_embd.weight has "
                     "%" PRId32 " rows",
                     tokens.n, n);
    return status < 0 ? -1 : 0;
}

/* Divisors of the frequencies; one that is 0 or not finite would make every rotation NaN. */
static int check_factors(const struct loader *l)
{
    const struct tensor *t = &l->m->rope_factors;
    for (int64_t i = 0; t->data != NULL && i < t->k; i++) {
        float f;
        memcpy(&f, (const char *)t->data + i * 4, sizeof f);
        if (!(f > 0) || !isfinite(f))
            return FAULT(l, "tensor rope_freqs.weight: factor %" PRId64 " is %g", i, (double)f);
    }
    return 0;
}

/* Old converters stored the rotation's frequencies in each layer; they follow from the metadata. */
static bool is_redundant(struct bytes name)
{
    static const char end[] = ".attn_rot_embd.weight";
    size_t n = sizeof end - 1;
    return name.len > n && memcmp(name.data + name.len - n, end, n) == 0;
}

static int check_all_used(const struct loader *l)
{
    for (size_t i = 0; i < gguf_n_tensors(l->g); i++) {
        struct bytes name = gguf_tensor_at(l->g, i)->name;
        if (!l->is_used[i] && !is_redundant(name))
            return FAULT(l, "tensor %s: not part of a %s model of %" PRId32 " layers",
                         masked(name).text, l->arch->name, l->m->n_layers);
    }
    return 0;
}

static int take_tensors(struct loader *l)
{
    struct model *m = l->m;
    if (check_vocab(l) != 0 ||
        take_tensor(l, "token_embd.weight", DIM_VOCAB, DIM_WIDTH, false, &m->embedding) != 0 ||
        take_tensor(l, "output_norm.weight", DIM_ONE, DIM_WIDTH, false, &m->output_norm) != 0 ||
        take_tensor(l, "output.weight", DIM_VOCAB, DIM_WIDTH, true, &m->head) != 0 ||
        take_tensor(l, "rope_freqs.weight", DIM_ONE, DIM_ROPE, true, &m->rope_factors) != 0 ||
        check_factors(l) != 0)
        return -1;
    m->tied = m->head.data == NULL;
    if (m->tied)
        m->head = m->embedding;
    m->layers = xcalloc((size_t)m->n_layers, sizeof *m->layers);
    for (int32_t i = 0; i < m->n_layers; i++)
        if (take_layer(l, i) != 0)
            return -1;
    return check_all_used(l);
}

/* ---- life ---------------------------------------------------------------------------------- */

/* Takes g over, also on error. */
struct model *model_from_gguf(struct gguf *g, struct err *err)
{
    struct model *m = xcalloc(1, sizeof *m);
    struct loader l = {.m = m, .g = g, .err = err};
    m->gguf = g;
    l.is_used = xcalloc(gguf_n_tensors(g) + 1, sizeof *l.is_used);
    int status = read_config(&l) == 0 && take_tensors(&l) == 0 ? 0 : -1;
    xfree(l.is_used);
    if (status != 0) {
        model_close(m);
        return NULL;
    }
    struct bytes metadata = gguf_metadata(g);
    m->digest = hash_bytes(metadata.data, metadata.len, gguf_size_bytes(g));
    return m;
}

struct model *model_open(const char *path, struct err *err)
{
    struct gguf *g = gguf_open(path, err);
    return g != NULL ? model_from_gguf(g, err) : NULL;
}

/* Accepts NULL. */
void model_close(struct model *m)
{
    if (m == NULL)
        return;
    xfree(m->layers);
    gguf_close(m->gguf);
    xfree(m);
}

/* Called when the weights have been packed. */
void model_drop_pages(struct model *m)
{
    gguf_drop_pages(m->gguf);
}

/* ---- rotation ------------------------------------------------------------------------------ */

/* cos, sin [n_context, rope_dim/2]: pair i turns by position / scale * base^(-2i / rope_dim) /
 * factor[i]. In double: at position 100,000 a float angle would be off by 0.004. */
void model_rope_table(const struct model *m, int32_t n_context, float *cos_out, float *sin_out)
{
    int32_t half = m->rope_dim / 2;
    double frequency[MAX_HEAD_DIM / 2];
    for (int32_t i = 0; i < half; i++) {
        float factor = 1;
        if (m->rope_factors.data != NULL)
            memcpy(&factor, (const char *)m->rope_factors.data + i * 4, sizeof factor);
        frequency[i] = pow(m->rope_base, -2.0 * i / m->rope_dim) / m->rope_scale / (double)factor;
    }
    for (int32_t position = 0; position < n_context; position++) {
        for (int32_t i = 0; i < half; i++) {
            double angle = position * frequency[i];
            *cos_out++ = (float)cos(angle);
            *sin_out++ = (float)sin(angle);
        }
    }
}
