/* ref.h - the reference backend: what its files share. See ref_backend.c. */
#ifndef KERNELS_REF_REF_H
#define KERNELS_REF_REF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/backend.h"
#include "kernels/choose.h"
#include "kernels/tensor.h"

#define REF_LANES 8 /* outputs computed side by side; every sum stays inside one lane */

extern const struct backend_ops ref_backend_ops;

/* A matrix as floats, eight rows side by side: 4 bytes a value, whatever the file has. Unpacking in
 * each product instead would save memory and cost 4 ns a value, ten times the product of one row. */
struct weight {
    int64_t n, k;  /* [n, k]: n is the sum over the parts */
    float *panels; /* [n / 8 rounded up, k, 8] owns; rows past n are 0 */
};

/* The device. Belongs to the rank's thread; helpers of one operation only read it. */
struct ref {
    struct backend base;
    struct backend_config config;
    char description[64];
    const struct plan *plan; /* of the step that runs; borrowed */
    struct err error;        /* the first since the last sync */
    bool has_error;

    /* K/V pool. K is stored dimension by dimension, so that lanes are tokens; V token by token, so
     * that lanes are dimensions:
     *   k [n_layers, n_blocks, G, D, block_size]
     *   v [n_layers, n_blocks, G, block_size, D rounded up] */
    struct attention_shape shape;
    int32_t v_stride;
    size_t k_block, v_block; /* floats a block in one layer */
    float *k, *v;            /* owns */
    float *host;             /* [slots, n_layers, k_block + v_block] owns; NULL: no swap */
    double *scores;          /* [n_threads, n_context rounded up] owns */
    struct choose_scratch choose;
};

/* Calls work(arg, i, thread) for i in [0, n), dealt out over the configured threads; returns when
 * all are done. An item's result must not depend on who computes it. */
typedef void (*ref_work)(void *arg, int32_t i, int thread);
void ref_parallel(const struct ref *r, int32_t n, ref_work work, void *arg);

/* ref_ops.c: the row operations */
void ref_embed(struct backend *b, const struct weight *w, float scale, float *x);
void ref_norm(struct backend *b, int32_t rows, int32_t c, float *x, const float *delta,
              const float *w, float eps, void *out);
void ref_act(struct backend *b, int32_t rows, int32_t f, const float *gate_up, void *out);
void ref_gather(struct backend *b, int32_t c, const float *x, const float *delta, float *out_x,
                float *out_delta);
void ref_choose(struct backend *b, const float *logits, struct chosen *out);
/* ref_matmul.c */
struct weight *ref_pack(struct backend *b, const struct tensor *parts, int n_parts,
                        enum weight_shape shape, struct err *err);
void ref_unpack(struct backend *b, struct weight *w);
void ref_matmul(struct backend *b, int32_t rows, const void *in, const struct weight *w,
                float *out);
void ref_weight_row(const struct weight *w, int64_t row, float *out); /* out [k] */
/* ref_attention.c */
size_t ref_block_bytes(struct backend *b, const struct attention_shape *shape);
int ref_pool_open(struct backend *b, const struct attention_shape *shape, struct err *err);
void ref_pool_close(struct backend *b);
int ref_host_open(struct backend *b, int32_t n_slots, struct err *err);
void ref_copy(struct backend *b);
void ref_out(struct backend *b);
void ref_in(struct backend *b);
void ref_rope_kv_write(struct backend *b, int32_t layer, const float *qkv, const float *bias,
                       void *q);
void ref_attention(struct backend *b, int32_t layer, const void *q, void *out);

#endif
