/* backend.h - the contract of a device: one small vtable, every member mandatory.
 *
 * Operations queue on the backend and return nothing; the first error is sticky and comes out of
 * `sync`. All of them are called from one thread, the rank's. Row-major, last index fastest. T rows
 * of the step, R sample rows, C model width, H query heads, G KV heads, D head size, F inner width,
 * V vocabulary.
 *
 * Memory is the backend's: `alloc` gives device addresses that only the backend may follow. Three
 * kinds of tensor meet here: float arrays (x, delta, qkv, gate_up, logits), activations (what norm,
 * attention and act write and matmul reads: the backend's own format, opaque to the caller, of
 * act_bytes) and packed weights. Sameness (DESIGN section 8): on ref and cpu a row's result never
 * depends on T, on other rows, on chunks or on the number of threads. */
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "kernels/plan.h"
#include "kernels/tensor.h"

struct backend;
struct weight; /* a packed matrix [N, K]; owned by the backend that packed it */

enum weight_shape {
    WEIGHT_PLAIN,   /* parts are stacked by rows: q, k, v become one [H*D + 2*G*D, K] */
    WEIGHT_GATE_UP, /* exactly two parts [F, K]; their product feeds only `act` */
};

/* How the pool holds K and V. */
enum kv_type {
    KV_AUTO, /* what the backend takes by itself */
    KV_F32,
    KV_BF16,
    KV_INT8, /* codes -127..127; for K and for V of each token and K/V head one scale, a bf16 */
    KV_N_TYPES
};
extern const char *const kv_type_names[]; /* [KV_N_TYPES], "auto" first; ends with NULL */

struct backend_config {
    int n_threads;             /* cpu, ref: at least 1 */
    const char *isa;           /* cpu: NULL = best that the CPU has; "scalar" "avx2" "avx512" */
    const char *affinity;      /* cpu: list of CPUs to pin to, or NULL */
    struct plan_limits limits; /* of every plan that step_begin will see */
    int32_t n_context;         /* positions are below this */
    enum kv_type kv_type;      /* of the pool that forward opens */
    int32_t n_vocab;
};

/* Geometry of attention, the same in every layer. */
struct attention_shape {
    int32_t n_heads, n_kv_heads, head_dim; /* H, G, D; H is a multiple of G */
    int32_t rope_dim;                      /* first rope_dim of D are rotated; even */
    bool rope_neox;                        /* pairs (i, i + rope_dim/2), else (2i, 2i + 1) */
    float scale;                           /* of q.k, usually 1/sqrt(D) */
    int32_t n_layers;
    int32_t n_blocks, block_size; /* of the K/V pool */
    enum kv_type kv_type;
    /* [n_context, rope_dim/2] each, borrowed while the backend lives: computed once, in double, so
     * that every path rotates by the same floats */
    const float *rope_cos, *rope_sin;
};

/* What choose returns for one sample. */
struct chosen {
    int32_t id;
    float logprob; /* natural log of the softmax of the raw logits at id */
};

struct backend_ops {
    const char *name;
    enum kv_type kv_types[KV_N_TYPES]; /* of its pool, the default first; ends with KV_AUTO */
    int (*probe)(struct err *err);     /* 0 when this machine can run it, -1 with the reason */
    struct backend *(*open)(const struct backend_config *config, struct err *err);
    void (*close)(struct backend *b);
    const char *(*describe)(struct backend *b); /* one line: path, threads */

    /* ---- memory ---- */
    void *(*alloc)(struct backend *b, size_t size_bytes); /* zeroed, lazily mapped; NULL: none */
    void (*free)(struct backend *b, void *p);             /* accepts NULL */
    void (*upload)(struct backend *b, void *dst, const void *src, size_t size_bytes);
    void (*download)(struct backend *b, void *dst, const void *src, size_t size_bytes);
    size_t (*act_bytes)(struct backend *b, int32_t rows, int32_t k);
    /* Re-lays tensors of one K once, at load; their types may differ (Q4_K_M files store some V
     * in Q6_K beside Q and K in Q4_K). The parts' data may go afterwards. */
    struct weight *(*pack)(struct backend *b, const struct tensor *parts, int n_parts,
                           enum weight_shape shape, struct err *err);
    void (*unpack)(struct backend *b, struct weight *w); /* frees it; accepts NULL */

    /* ---- K/V pool ---- */
    size_t (*block_bytes)(struct backend *b, const struct attention_shape *shape);
    /* Slots hold anything at first, NaN included: attention never reads one before its write. */
    int (*pool_open)(struct backend *b, const struct attention_shape *shape, struct err *err);
    /* Room for n_slots blocks in host memory, behind pool_open and before any step. -1: the
     * pool works without. */
    int (*host_open)(struct backend *b, int32_t n_slots, struct err *err);
    void (*pool_close)(struct backend *b); /* the host's room too */

    /* ---- one step ---- */
    void (*step_begin)(struct backend *b, const struct plan *plan);
    void (*out)(struct backend *b);  /* the plan's blocks to host slots: done when the step is */
    void (*in)(struct backend *b);   /* host slots to blocks, before copies and writes */
    void (*copy)(struct backend *b); /* the plan's block copies, before any write of the step */
    void (*embed)(struct backend *b, const struct weight *w, float scale, float *x); /* [T, C] */
    /* x [rows, C] += delta [rows, C] (delta may be NULL); out = act of rmsnorm(x) * w [C] */
    void (*norm)(struct backend *b, int32_t rows, int32_t c, float *x, const float *delta,
                 const float *w, float eps, void *out);
    /* out [rows, N] = in [rows, K] x w [N, K] */
    void (*matmul)(struct backend *b, int32_t rows, const void *in, const struct weight *w,
                   float *out);
    /* qkv [T, (H + 2G) D] + bias (may be NULL) -> rotated q, in the backend's own format, and the
     * K and V slots of this layer */
    void (*rope_kv_write)(struct backend *b, int32_t layer, const float *qkv, const float *bias,
                          void *q);
    size_t (*q_bytes)(struct backend *b, int32_t rows);
    /* q over the pool, causal -> out: act [T, H * D] */
    void (*attention)(struct backend *b, int32_t layer, const void *q, void *out);
    /* gate_up: output of a WEIGHT_GATE_UP matmul [rows, 2F] -> out: act of silu(gate) * up
     * [rows, F] */
    void (*act)(struct backend *b, int32_t rows, int32_t f, const float *gate_up, void *out);
    /* x [T, C], delta [T, C] -> out_x [R, C], out_delta [R, C]: the rows of the plan's samples */
    void (*gather)(struct backend *b, int32_t c, const float *x, const float *delta, float *out_x,
                   float *out_delta);
    /* logits [R, V] -> chosen [R + n_best] on the host, valid after sync: an id for each sample,
     * then the best ids of all samples that want some (id -1: there are no more). Order: bias,
     * repeat, presence, frequency; greedy, or temperature, top-k, top-p, min-p, draw. Exact over
     * the vocabulary. A sample whose id is given draws nothing: that id, with its
     * log-probability. */
    void (*choose)(struct backend *b, const float *logits, struct chosen *out);
    void (*step_end)(struct backend *b);
    int (*sync)(struct backend *b,
                struct err *err); /* waits; the first error since the last sync */
};

struct backend {
    const struct backend_ops *ops; /* first member of every backend's own struct */
};

/* All backends of this build, best first; ends with NULL. */
extern const struct backend_ops *const backends[];
/* "auto" takes the first whose probe succeeds. NULL with the reason otherwise. */
const struct backend_ops *backend_find(const char *name, struct err *err);
/* *type: the wanted one, or for KV_AUTO the default. -1 when the pool cannot hold it: err names what
 * it can. */
int backend_kv_type(const struct backend_ops *ops, enum kv_type wanted, enum kv_type *type,
                    struct err *err);

#endif
