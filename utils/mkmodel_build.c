/* mkmodel_build.c - builds a small Llama-family model: random weights, a real vocabulary.
 *
 * Tests need a model that everybody has, that runs in a blink and whose answers depend on every part
 * of the computation. So the vocabulary is a working byte-level BPE (all 256 bytes in GPT-2's
 * alphabet, some merges, ChatML's marks), the metadata is what SmolLM2's is, and the weights are
 * random but scaled with thought:
 *
 *   embedding   small beside what the layers add, or the likeliest next token would always be the
 *               last one (it is the head as well); the output norm makes up for it, so that logits
 *               spread by about 2 units, as a trained model's do
 *   rare rows   those of control tokens and of bytes that are no printable ASCII are a tenth of
 *               that: their logits stay near 0, so an answer is mostly text and all but never ends
 *               by itself (a logit bias brings them up)
 *   q, k        large: scores spread by several units, so attention picks tokens, and a K or V that
 *               is wrong in one slot shows in the ids
 *   o           large: what attention brings outweighs the last token, without which greedy answers
 *               get stuck on one token
 *   the rest    keeps the variance of what passes through
 *
 * So greedy answers wander: 200 tokens have some 70 distinct ones and few immediate repetitions.
 *
 * The default shapes are awkward on purpose: an odd vocabulary, widths that are odd multiples of 32,
 * a query projection wider than the model, three query heads to a K/V head.
 *
 * Each tensor's numbers are a stream of their own, keyed by seed and name: changing one option does
 * not move the others' weights. Uniform numbers, integers scaled by powers and one multiplication:
 * nothing that is rounded differently elsewhere: the bytes are the same on every machine. */
#include "utils/mkmodel_build.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "base/rng.h"
#include "base/table.h"
#include "kernels/tensor.h"
#include "model/gguf_write.h"

/* In GPT-2's alphabet, where "Ġ" is a blank; best first, each of parts that exist by then. */
static const char *const merges[] = {
    "Ġ t",  "Ġ a",   "h e",  "i n",  "r e",   "o n",  "Ġt he", "e r",  "Ġ s",  "a t",  "Ġ w",
    "Ġ o",  "e n",   "Ġ c",  "i t",  "i s",   "a n",  "o r",   "e s",  "Ġ b",  "e d",  "Ġ f",
    "in g", "Ġ p",   "o u",  "Ġa n", "a l",   "a r",  "Ġt o",  "Ġ m",  "Ġo f", "Ġ in", "Ġ d",
    "Ġ h",  "Ġan d", "i c",  "a s",  "l e",   "Ġt h", "i on",  "o m",  "l l",  "en t", "Ġ n",
    "Ġ l",  "s t",   "Ġ re", "v e",  "Ġ e",   "r o",  "l y",   "Ġb e", "Ġ g",  "c t",  "i d",
    "o t",  "Ġ I",   "Ġ is", "Ġ y",  "Ġy ou", "o w",  "Ġf or", "u r",  "Ġ Ġ",
};
enum { N_MERGES = sizeof merges / sizeof merges[0] };

static const char *const controls[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
enum { N_CONTROLS = 3, N_BYTES = 256, N_VOCAB = N_CONTROLS + N_BYTES + N_MERGES };

/* SmolLM2's. */
static const char chat_template[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
    "'<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
    "Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|im_start|>assistant\n' }}{% endif %}";

struct mkmodel_options mkmodel_defaults(void)
{
    return (struct mkmodel_options){
        .architecture = "llama",
        .type = TENSOR_Q8_0,
        .layers = 4,
        .width = 96,
        .heads = 6,
        .kv_heads = 2,
        .head_dim = 32,
        .inner = 288,
        .context = 2048,
        .seed = 1,
    };
}

/* ---- options ------------------------------------------------------------------------------- */

static int check_range(const char *name, int32_t value, int32_t max, struct err *err)
{
    if (value < 1 || value > max)
        return err_set(err, "%s %" PRId32 " is not between 1 and %" PRId32, name, value, max);
    return 0;
}

static int check_block(const char *name, int32_t value, int type, struct err *err)
{
    if (value % tensor_block(type) != 0)
        return err_set(err, "%s %" PRId32 " is no multiple of %d, the block of %s", name, value,
                       tensor_block(type), tensor_type_name(type));
    return 0;
}

static int check_options(const struct mkmodel_options *o, struct err *err)
{
    bool is_llama = strcmp(o->architecture, "llama") == 0;
    if (!is_llama && strcmp(o->architecture, "qwen2") != 0)
        return err_set(err, "architecture %s is unknown, expected llama or qwen2", o->architecture);
    /* The largest model is below 2 GiB: it is built in memory. */
    if (check_range("layers", o->layers, 64, err) != 0 ||
        check_range("width", o->width, 4096, err) != 0 ||
        check_range("heads", o->heads, 128, err) != 0 ||
        check_range("kv-heads", o->kv_heads, o->heads, err) != 0 ||
        check_range("head-dim", o->head_dim, 256, err) != 0 ||
        check_range("inner", o->inner, 16384, err) != 0 ||
        check_range("context", o->context, 1 << 24, err) != 0)
        return -1;
    if (o->heads % o->kv_heads != 0)
        return err_set(err, "heads %" PRId32 " is no multiple of kv-heads %" PRId32, o->heads,
                       o->kv_heads);
    if (o->head_dim % 2 != 0)
        return err_set(err, "head-dim %" PRId32 " is odd", o->head_dim);
    if (check_block("width", o->width, o->type, err) != 0 ||
        check_block("heads x head-dim", o->heads * o->head_dim, o->type, err) != 0 ||
        check_block("inner", o->inner, o->type, err) != 0)
        return -1;
    return 0;
}

/* ---- vocabulary ---------------------------------------------------------------------------- */

/* GPT-2's alphabet: a printable byte of Latin-1 is that character, the others follow from U+0100 on
 * in order. Returns the length of the UTF-8 text. */
static int byte_spelling(int byte, char out[4])
{
    uint32_t next = 256;
    for (int b = 0; b <= byte; b++) {
        bool is_itself = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte)
            return utf8_encode(is_itself ? (uint32_t)b : next, out);
        next += is_itself ? 0 : 1;
    }
    return 0;
}

/* Removes the blank between the two parts of a merge. */
static void append_merged(struct str *s, const char *merge)
{
    const char *blank = strchr(merge, ' ');
    str_append(s, merge, (size_t)(blank - merge));
    str_append_str(s, blank + 1);
}

static void write_vocabulary(struct gguf_writer *w)
{
    struct str all = {0}; /* the spellings one after the other */
    size_t ends[N_VOCAB];
    int32_t kinds[N_VOCAB];
    struct bytes tokens[N_VOCAB], merge_texts[N_MERGES];
    for (int i = 0; i < N_VOCAB; i++) {
        char spelling[4];
        kinds[i] = i < N_CONTROLS ? 3 : 1; /* control, normal */
        if (i < N_CONTROLS)
            str_append_str(&all, controls[i]);
        else if (i < N_CONTROLS + N_BYTES)
            str_append(&all, spelling, (size_t)byte_spelling(i - N_CONTROLS, spelling));
        else
            append_merged(&all, merges[i - N_CONTROLS - N_BYTES]);
        ends[i] = all.len;
    }
    for (int i = 0; i < N_VOCAB; i++) {
        size_t at = i > 0 ? ends[i - 1] : 0;
        tokens[i] = (struct bytes){all.data + at, ends[i] - at};
    }
    for (int i = 0; i < N_MERGES; i++)
        merge_texts[i] = bytes_from(merges[i]);
    gguf_write_string(w, "tokenizer.ggml.model", BYTES("gpt2"));
    gguf_write_string(w, "tokenizer.ggml.pre", BYTES("smollm"));
    gguf_write_strings(w, "tokenizer.ggml.tokens", tokens, N_VOCAB);
    gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, kinds, N_VOCAB, 4);
    gguf_write_strings(w, "tokenizer.ggml.merges", merge_texts, N_MERGES);
    gguf_write_u32(w, "tokenizer.ggml.bos_token_id", 1);
    gguf_write_u32(w, "tokenizer.ggml.eos_token_id", 2);
    gguf_write_u32(w, "tokenizer.ggml.unknown_token_id", 0);
    gguf_write_u32(w, "tokenizer.ggml.padding_token_id", 2);
    gguf_write_bool(w, "tokenizer.ggml.add_bos_token", false);
    gguf_write_bool(w, "tokenizer.ggml.add_space_prefix", false);
    gguf_write_string(w, "tokenizer.chat_template", BYTES(chat_template));
    str_free(&all);
}

/* ---- metadata ------------------------------------------------------------------------------ */

static void write_metadata(struct gguf_writer *w, const struct mkmodel_options *o)
{
    const struct {
        const char *suffix;
        int32_t value;
    } numbers[] = {
        {"block_count", o->layers},
        {"context_length", o->context},
        {"embedding_length", o->width},
        {"feed_forward_length", o->inner},
        {"attention.head_count", o->heads},
        {"attention.head_count_kv", o->kv_heads},
        {"attention.key_length", o->head_dim},
        {"attention.value_length", o->head_dim},
        {"rope.dimension_count", o->head_dim},
        {"vocab_size", N_VOCAB},
    };
    char key[64];
    gguf_write_string(w, "general.architecture", bytes_from(o->architecture));
    gguf_write_string(w, "general.type", BYTES("model"));
    gguf_write_string(w, "general.name", BYTES("tiny"));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        snprintf(key, sizeof key, "%s.%s", o->architecture, numbers[i].suffix);
        gguf_write_u32(w, key, (uint32_t)numbers[i].value);
    }
    snprintf(key, sizeof key, "%s.rope.freq_base", o->architecture);
    gguf_write_f32(w, key, 10000);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", o->architecture);
    gguf_write_f32(w, key, 1e-5f);
    gguf_write_u32(w, "general.quantization_version", 2);
}

/* ---- weights ------------------------------------------------------------------------------- */

struct builder {
    struct gguf_writer *w;
    const struct mkmodel_options *o;
};

static float uniform(struct rng *rng)
{
    return rng_unit(rng_next(rng)) * 2 - 1; /* exact; variance 1/3 */
}

static struct rng stream_of(const struct builder *b, const char *name)
{
    return rng_from(hash_bytes(name, strlen(name), b->o->seed));
}

/* A vector of F32 around `middle`, at most `spread` away. */
static void write_vector(const struct builder *b, const char *name, int32_t k, float middle,
                         float spread)
{
    struct rng rng = stream_of(b, name);
    float *values = xcalloc((size_t)k, sizeof *values);
    int64_t dims[1] = {k};
    for (int32_t i = 0; i < k; i++)
        values[i] = middle + uniform(&rng) * spread;
    gguf_write_tensor(b->w, name, TENSOR_F32, dims, 1, values, (size_t)k * sizeof *values);
    xfree(values);
}

/* Of the vocabulary: see above. */
static bool is_rare(int32_t token)
{
    int32_t byte = token - N_CONTROLS;
    bool is_text = (byte >= ' ' && byte <= '~') || byte == '\n';
    return token < N_CONTROLS || (byte < N_BYTES && !is_text);
}

/* A matrix [n, k] of values in [-spread, spread]. by_token: its rows are the vocabulary's. */
static void write_matrix(const struct builder *b, const char *name, int type, int32_t n, int32_t k,
                         float spread, bool by_token)
{
    struct rng rng = stream_of(b, name);
    size_t row_bytes = tensor_row_bytes(type, k);
    float *values = xcalloc((size_t)k, sizeof *values);
    uint8_t *data = xcalloc((size_t)n, row_bytes);
    int64_t dims[2] = {k, n};
    for (int32_t row = 0; row < n; row++) {
        float scale = by_token && is_rare(row) ? spread * 0.1f : spread;
        for (int32_t i = 0; i < k; i++)
            values[i] = uniform(&rng) * scale;
        tensor_row_pack(type, k, values, data + (size_t)row * row_bytes);
    }
    gguf_write_tensor(b->w, name, (uint32_t)type, dims, 2, data, (size_t)n * row_bytes);
    xfree(data);
    xfree(values);
}

/* Files that people quantise keep the embedding finer than the rest. */
static int embedding_type(const struct mkmodel_options *o)
{
    return tensor_block(o->type) > 1 ? TENSOR_Q8_0 : o->type;
}

static void write_layer(const struct builder *b, int32_t layer)
{
    const struct mkmodel_options *o = b->o;
    int32_t query = o->heads * o->head_dim, kv = o->kv_heads * o->head_dim;
    /* gain 1 keeps the variance of a sum of k products with uniform numbers */
    const struct {
        const char *suffix;
        int32_t n, k;
        float gain;
    } matrices[] = {
        {"attn_q.weight", query, o->width, 2},      {"attn_k.weight", kv, o->width, 2},
        {"attn_v.weight", kv, o->width, 1},         {"attn_output.weight", o->width, query, 4},
        {"ffn_gate.weight", o->inner, o->width, 1}, {"ffn_up.weight", o->inner, o->width, 1},
        {"ffn_down.weight", o->width, o->inner, 1},
    };
    const struct {
        const char *suffix;
        int32_t k;
    } biases[] = {{"attn_q.bias", query}, {"attn_k.bias", kv}, {"attn_v.bias", kv}};
    char name[64];
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
        float spread = matrices[i].gain * sqrtf(3 / (float)matrices[i].k);
        snprintf(name, sizeof name, "blk.%" PRId32 ".%s", layer, matrices[i].suffix);
        write_matrix(b, name, o->type, matrices[i].n, matrices[i].k, spread, false);
    }
    for (size_t i = 0; i < sizeof biases / sizeof biases[0] && o->qkv_bias; i++) {
        snprintf(name, sizeof name, "blk.%" PRId32 ".%s", layer, biases[i].suffix);
        write_vector(b, name, biases[i].k, 0, 0.5f);
    }
    snprintf(name, sizeof name, "blk.%" PRId32 ".attn_norm.weight", layer);
    write_vector(b, name, o->width, 1, 0.1f);
    snprintf(name, sizeof name, "blk.%" PRId32 ".ffn_norm.weight", layer);
    write_vector(b, name, o->width, 1, 0.1f);
}

int mkmodel_build(const struct mkmodel_options *options, struct str *out, struct err *err)
{
    struct mkmodel_options o = *options;
    struct gguf_writer w = {0};
    struct builder b = {.w = &w, .o = &o};
    if (check_options(&o, err) != 0)
        return -1;
    if (strcmp(o.architecture, "qwen2") == 0)
        o.qkv_bias = true;
    write_metadata(&w, &o);
    write_vocabulary(&w);
    write_matrix(&b, "token_embd.weight", embedding_type(&o), N_VOCAB, o.width, 0.1f, true);
    for (int32_t layer = 0; layer < o.layers; layer++)
        write_layer(&b, layer);
    float norm = 49 / sqrtf((float)o.width); /* logits spread alike at every width */
    write_vector(&b, "output_norm.weight", o.width, norm, norm / 10);
    if (o.untied)
        write_matrix(&b, "output.weight", embedding_type(&o), N_VOCAB, o.width, 0.1f, true);
    if (o.rope_factors)
        write_vector(&b, "rope_freqs.weight", o.head_dim / 2, 2, 1);
    if (o.extra != NULL)
        o.extra(&w, o.extra_arg);
    gguf_write_finish(&w, out);
    return 0;
}
