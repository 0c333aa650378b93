/* forward.c - one step of a Llama-family model, straight down the page.
 *
 *     embed -> x
 *     each layer:  x += delta; norm -> qkv -> rotate, write K and V -> attention -> o -> delta
 *                  x += delta; norm -> gate_up -> act -> down -> delta
 *     the rows of the samples:  x += delta; norm -> head -> logits -> choose
 *
 * The residual is added by the norm that follows, so that x is read and written once. Q, K and V
 * are one weight, gate and up another: one pass over the activations each. Weights are packed one
 * layer at a time and the file's pages given back at once, so that loading needs the packed weights
 * and one layer, not the model twice.
 *
 * The buffers are sized once, by the plan limits; a step allocates nothing. */
#include "runner/forward.h"

#include <math.h>
#include "base/log.h"
#include "base/mem.h"

struct layer {
    float *attn_norm, *ffn_norm; /* [C] device */
    float *qkv_bias;             /* [(H + 2G) D] device; NULL: none */
    struct weight *qkv;          /* [(H + 2G) D, C] */
    struct weight *o;            /* [C, H D] */
    struct weight *gate_up;      /* [2F, C] */
    struct weight *down;         /* [C, F] */
};

struct forward {
    const struct backend_ops *ops;
    struct backend *b; /* owns, and with it all device memory below */
    struct plan_limits limits;
    int32_t n_context;
    enum kv_type kv_type;       /* of the pool; never KV_AUTO */
    float *rope_cos, *rope_sin; /* [n_context, rope_dim / 2] host, owns */
    bool has_pool;

    int32_t n_layers, width, n_heads, n_kv_heads, head_dim, inner, n_vocab; /* C H G D F V */
    int32_t rope_dim;
    bool rope_neox;
    float norm_eps;

    struct layer *layers;     /* [n_layers] owns */
    struct weight *embedding; /* [V, C] */
    struct weight *head;      /* [V, C]; the embedding when tied */
    float *output_norm;       /* [C] device */

    /* device, T = max_rows, R = max_seqs */
    float *x, *delta;         /* [T, C] */
    float *qkv;               /* [T, (H + 2G) D] */
    float *gate_up;           /* [T, 2F] */
    float *out_x, *out_delta; /* [R, C] */
    float *logits;            /* [R, V] */
    void *act;                /* activations of T rows of C, H D or F */
    void *q;                  /* rotated queries of T rows */
};

static int32_t qkv_width(const struct forward *f)
{
    return (f->n_heads + 2 * f->n_kv_heads) * f->head_dim;
}

/* ---- loading -------------------------------------------------------------------------------- */

/* Device copy of the vectors `parts`, one after the other, as floats. */
static float *upload_vectors(struct forward *f, const struct tensor *parts, int n_parts)
{
    int64_t n = 0;
    for (int i = 0; i < n_parts; i++)
        n += parts[i].k;
    float *host = xmalloc((size_t)n * sizeof(*host)), *at = host;
    for (int i = 0; i < n_parts; at += parts[i++].k)
        tensor_row_unpack(&parts[i], 0, at);
    float *device = f->ops->alloc(f->b, (size_t)n * sizeof(*host));
    if (device != NULL)
        f->ops->upload(f->b, device, host, (size_t)n * sizeof(*host));
    xfree(host);
    return device;
}

static struct weight *pack_one(struct forward *f, struct tensor t, struct err *err)
{
    return f->ops->pack(f->b, &t, 1, WEIGHT_PLAIN, err);
}

/* Uploads have no error of their own: it comes out of the sync at the end of loading. */
static int load_layer(struct forward *f, const struct model_layer *m, struct layer *l,
                      struct err *err)
{
    const struct tensor qkv[] = {m->q, m->k, m->v}, gate_up[] = {m->gate, m->up};

    l->attn_norm = upload_vectors(f, &m->attn_norm, 1);
    l->ffn_norm = upload_vectors(f, &m->ffn_norm, 1);
    if (m->q_bias.data != NULL) {
        const struct tensor bias[] = {m->q_bias, m->k_bias, m->v_bias};
        l->qkv_bias = upload_vectors(f, bias, 3);
    }
    if ((l->qkv = f->ops->pack(f->b, qkv, 3, WEIGHT_PLAIN, err)) == NULL ||
        (l->o = pack_one(f, m->o, err)) == NULL ||
        (l->gate_up = f->ops->pack(f->b, gate_up, 2, WEIGHT_GATE_UP, err)) == NULL ||
        (l->down = pack_one(f, m->down, err)) == NULL)
        return -1;
    return 0;
}

static int load_weights(struct forward *f, struct model *m, struct err *err)
{
    f->layers = xcalloc((size_t)m->n_layers, sizeof(*f->layers));
    f->output_norm = upload_vectors(f, &m->output_norm, 1);
    if ((f->embedding = pack_one(f, m->embedding, err)) == NULL)
        return -1;
    f->head = m->tied ? f->embedding : pack_one(f, m->head, err);
    if (f->head == NULL)
        return -1;
    for (int32_t i = 0; i < m->n_layers; i++) {
        if (load_layer(f, &m->layers[i], &f->layers[i], err) != 0)
            return -1;
        model_drop_pages(m);
        /* about eight lines, however deep the model */
        if ((i + 1) % ((m->n_layers + 7) / 8) == 0)
            log_info(LOG_DEVICE, "packed %d of %d layers", i + 1, m->n_layers);
    }
    return f->ops->sync(f->b, err);
}

static size_t max_act_bytes(struct forward *f)
{
    const int32_t widths[] = {f->width, f->n_heads * f->head_dim, f->inner};
    size_t most = 0;
    for (int i = 0; i < 3; i++) {
        size_t size_bytes = f->ops->act_bytes(f->b, f->limits.max_rows, widths[i]);
        most = size_bytes > most ? size_bytes : most;
    }
    return most;
}

static float *alloc_rows(struct forward *f, int32_t rows, int64_t width)
{
    return f->ops->alloc(f->b, (size_t)rows * (size_t)width * sizeof(float));
}

/* Every pointer is set or the sync at the end tells why not. */
static int alloc_buffers(struct forward *f, struct err *err)
{
    int32_t t = f->limits.max_rows, r = f->limits.max_seqs;
    f->x = alloc_rows(f, t, f->width);
    f->delta = alloc_rows(f, t, f->width);
    f->qkv = alloc_rows(f, t, qkv_width(f));
    f->gate_up = alloc_rows(f, t, 2 * (int64_t)f->inner);
    f->out_x = alloc_rows(f, r, f->width);
    f->out_delta = alloc_rows(f, r, f->width);
    f->logits = alloc_rows(f, r, f->n_vocab);
    f->act = f->ops->alloc(f->b, max_act_bytes(f));
    return f->ops->sync(f->b, err);
}

static void copy_dimensions(struct forward *f, const struct model *m)
{
    f->n_layers = m->n_layers;
    f->width = m->width;
    f->n_heads = m->n_heads;
    f->n_kv_heads = m->n_kv_heads;
    f->head_dim = m->head_dim;
    f->inner = m->inner;
    f->n_vocab = m->n_vocab;
    f->rope_dim = m->rope_dim;
    f->rope_neox = m->rope_neox;
    f->norm_eps = m->norm_eps;
}

static void make_rope_tables(struct forward *f, const struct model *m)
{
    size_t n = (size_t)f->n_context * (size_t)(m->rope_dim / 2) + 1;
    f->rope_cos = xcalloc(n, sizeof(*f->rope_cos));
    f->rope_sin = xcalloc(n, sizeof(*f->rope_sin));
    model_rope_table(m, f->n_context, f->rope_cos, f->rope_sin);
}

struct forward *forward_open(struct model *model, const struct backend_ops *ops,
                             const struct backend_config *device, struct err *err)
{
    struct backend_config config = *device;
    struct forward *f = xcalloc(1, sizeof(*f));

    config.n_vocab = model->n_vocab;
    f->ops = ops;
    f->limits = config.limits;
    f->n_context = config.n_context;
    copy_dimensions(f, model);
    make_rope_tables(f, model);
    if (backend_kv_type(ops, config.kv_type, &f->kv_type, err) == 0)
        f->b = ops->open(&config, err);
    if (f->b == NULL || load_weights(f, model, err) != 0 || alloc_buffers(f, err) != 0) {
        forward_close(f);
        return NULL;
    }
    return f;
}

static void unpack_all(struct forward *f)
{
    for (int32_t i = 0; f->layers != NULL && i < f->n_layers; i++) {
        struct layer *l = &f->layers[i];
        void *const vectors[] = {l->attn_norm, l->ffn_norm, l->qkv_bias};
        struct weight *const weights[] = {l->qkv, l->o, l->gate_up, l->down};
        for (size_t k = 0; k < sizeof(vectors) / sizeof(vectors[0]); k++)
            f->ops->free(f->b, vectors[k]);
        for (size_t k = 0; k < sizeof(weights) / sizeof(weights[0]); k++)
            f->ops->unpack(f->b, weights[k]);
    }
    if (f->head != f->embedding)
        f->ops->unpack(f->b, f->head);
    f->ops->unpack(f->b, f->embedding);
}

static void close_device(struct forward *f)
{
    void *const buffers[] = {f->output_norm, f->x,         f->delta,  f->qkv, f->gate_up,
                             f->out_x,       f->out_delta, f->logits, f->act, f->q};
    unpack_all(f);
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++)
        f->ops->free(f->b, buffers[i]);
    if (f->has_pool)
        f->ops->pool_close(f->b);
    f->ops->close(f->b);
}

/* Every backend's free and unpack accept NULL, so a half-opened one is closed the same way. */
void forward_close(struct forward *f)
{
    if (f == NULL)
        return;
    if (f->b != NULL)
        close_device(f);
    xfree(f->layers);
    xfree(f->rope_cos);
    xfree(f->rope_sin);
    xfree(f);
}

/* ---- the pool ------------------------------------------------------------------------------- */

static struct attention_shape shape_of(const struct forward *f, int32_t n_blocks)
{
    return (struct attention_shape){
        .n_heads = f->n_heads,
        .n_kv_heads = f->n_kv_heads,
        .head_dim = f->head_dim,
        .rope_dim = f->rope_dim,
        .rope_neox = f->rope_neox,
        .scale = 1.0f / sqrtf((float)f->head_dim),
        .n_layers = f->n_layers,
        .n_blocks = n_blocks,
        .block_size = f->limits.block_size,
        .kv_type = f->kv_type,
        .rope_cos = f->rope_cos,
        .rope_sin = f->rope_sin,
    };
}

/* Asked before the pool is opened, to see how many blocks fit. */
size_t forward_block_bytes(struct forward *f)
{
    struct attention_shape shape = shape_of(f, 1);
    return f->ops->block_bytes(f->b, &shape);
}

int forward_pool_open(struct forward *f, int32_t n_blocks, struct err *err)
{
    struct attention_shape shape = shape_of(f, n_blocks);
    ASSERT(!f->has_pool);
    if (f->ops->pool_open(f->b, &shape, err) != 0)
        return -1;
    f->has_pool = true;
    f->q = f->ops->alloc(f->b, f->ops->q_bytes(f->b, f->limits.max_rows));
    return f->ops->sync(f->b, err);
}

/* Behind forward_pool_open; -1: there is none, the pool works without. */
int forward_host_open(struct forward *f, int32_t n_slots, struct err *err)
{
    ASSERT(f->has_pool);
    return f->ops->host_open(f->b, n_slots, err);
}

enum kv_type forward_kv_type(const struct forward *f)
{
    return f->kv_type;
}

const char *forward_describe(struct forward *f)
{
    return f->ops->describe(f->b);
}

/* ---- a step --------------------------------------------------------------------------------- */

/* x [T, C], delta [T, C] (NULL before the first layer) through layer number i. */
static void run_layer(struct forward *f, int32_t t, int32_t i, const float *delta)
{
    const struct backend_ops *ops = f->ops;
    struct backend *b = f->b;
    const struct layer *l = &f->layers[i];

    ops->norm(b, t, f->width, f->x, delta, l->attn_norm, f->norm_eps, f->act);
    ops->matmul(b, t, f->act, l->qkv, f->qkv);
    ops->rope_kv_write(b, i, f->qkv, l->qkv_bias, f->q);
    ops->attention(b, i, f->q, f->act);
    ops->matmul(b, t, f->act, l->o, f->delta);

    ops->norm(b, t, f->width, f->x, f->delta, l->ffn_norm, f->norm_eps, f->act);
    ops->matmul(b, t, f->act, l->gate_up, f->gate_up);
    ops->act(b, t, f->inner, f->gate_up, f->act);
    ops->matmul(b, t, f->act, l->down, f->delta);
}

/* The rows that something is drawn from, to ids. */
static void run_head(struct forward *f, int32_t r, struct chosen *chosen)
{
    const struct backend_ops *ops = f->ops;
    struct backend *b = f->b;

    ops->gather(b, f->width, f->x, f->delta, f->out_x, f->out_delta);
    ops->norm(b, r, f->width, f->out_x, f->out_delta, f->output_norm, f->norm_eps, f->act);
    ops->matmul(b, r, f->act, f->head, f->logits);
    ops->choose(b, f->logits, chosen);
}

int forward_run(struct forward *f, const struct plan *plan, struct chosen *chosen, float *logits,
                struct err *err)
{
    const struct backend_ops *ops = f->ops;
    struct backend *b = f->b;
    ASSERT(f->has_pool && plan->n_rows <= f->limits.max_rows);
    ASSERT(plan->n_samples <= f->limits.max_seqs);

    ops->step_begin(b, plan);
    ops->out(b);
    ops->in(b);
    ops->copy(b);
    if (plan->n_rows > 0) {
        ops->embed(b, f->embedding, 1.0f, f->x);
        for (int32_t i = 0; i < f->n_layers; i++)
            run_layer(f, plan->n_rows, i, i > 0 ? f->delta : NULL);
    }
    if (plan->n_samples > 0)
        run_head(f, plan->n_samples, chosen);
    ops->step_end(b);
    if (ops->sync(b, err) != 0)
        return -1;
    if (logits != NULL)
        ops->download(b, logits, f->logits,
                      (size_t)plan->n_samples * (size_t)f->n_vocab * sizeof(*logits));
    return 0;
}
