/* cpu_backend.h - what the files of the CPU backend share: the device, a packed weight, the act. */
#ifndef CPU_BACKEND_H
#define CPU_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/backend.h"
#include "kernels/choose.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/cpu_pool.h"

#define CPU_MAX_PARTS 4 /* q, k, v, and one to spare */

/* Forms of an activation, as bits: what the packed weights need. */
enum cpu_form { CPU_FORM_INT8 = 1, CPU_FORM_BF16 = 2, CPU_FORM_F32 = 4 };

/* Neighbouring parts of one stored type: panels of one format. */
struct cpu_segment {
    enum cpu_format format;
    int32_t first;       /* output column of its panel 0 */
    int32_t n, n_panels; /* columns that exist; n_panels = n / 32 rounded up */
    size_t panel_bytes;  /* k / 32 blocks */
    uint8_t *panels;     /* owns: n_panels * panel_bytes, from cpu_map */
};

struct weight {
    int32_t n, k;
    bool is_gate_up; /* panels hold 16 rows of gate, then the same 16 of up */
    int n_segments;
    struct cpu_segment segments[CPU_MAX_PARTS];
};

/* A piece of attention that one thread does: query rows against one K/V head of one sequence's blocks,
 * or of a split that several sequences share. */
struct cpu_item {
    int32_t seq, kv_head; /* whose table; of a shared split any one's */
    const int32_t *rows;  /* [n_rows] rows of the plan; the last sees the most of the blocks, of a
                             shared split all see all; borrows c->rows */
    int32_t n_rows;
    int32_t split;       /* only this split, result to the partials; -1: all, merged at once */
    int64_t work_before; /* tokens x rows of the items before it */
};

struct cpu_thread { /* scratch of one compute thread */
    float *row;     /* owns: grows at load to the widest need */
    struct choose_scratch choose;
} __attribute__((aligned(128)));

/* The device. Belongs to the rank's thread; compute threads read it inside a region. */
struct cpu {
    struct backend base;
    struct backend_config config;
    const struct cpu_kernel *kernel;
    struct cpu_pool *pool;
    struct cpu_thread *threads; /* [config.n_threads] owns */
    int32_t row_cap;            /* floats of each threads[].row */
    unsigned forms;             /* CPU_FORM_* that some packed weight reads */
    char description[128];
    const struct plan *plan; /* of the step under way; borrowed */
    int step_threads;        /* what its operations may use */
    int64_t step_began_ns;
    int32_t alone_left, alone_next; /* steps to go on one thread; how many after the next bad one */
    struct err error;               /* the first since the last sync */
    bool has_error;

    /* K/V pool: [layers][blocks][G][block_size / 16 pages][K page, V page, scales], see cpu_kv.c */
    struct attention_shape shape; /* its kv_type is never KV_AUTO */
    size_t page_bytes, head_bytes, block_bytes, layer_bytes;
    size_t v_at, scales_at; /* bytes from the start of a page */
    size_t q_values;        /* 16-bit words of one query */
    uint8_t *kv;            /* owns; NULL: no pool */
    uint8_t *host;          /* [slots][layers][block_bytes] owns; NULL: no swap */
    float *attended;        /* [max_rows, H D] owns */

    /* work items of the step, and the partial results of those that are one split */
    struct cpu_item *items; /* [item_cap] owns */
    int32_t n_items, item_cap;
    int64_t total_work; /* tokens x rows of all items */
    int32_t *rows;      /* [max_rows] 0, 1, 2, ..., then the rows of shared splits; owns */
    int32_t n_rows, rows_cap;
    int32_t *leaders; /* [max_seqs] owns; the first sequence with the same split */
    bool is_split;    /* items are splits */
    int32_t n_splits; /* of the longest sequence */
    float *partials;  /* [T, H, n_splits][m, l, o [D]], at most partial_cap; owns */
    int32_t partial_cap;
};

/* cpu_backend.c */
void *cpu_map(size_t size_bytes); /* zeroed, lazily mapped, page aligned; NULL: none */
void cpu_unmap(void *p);          /* accepts NULL */
/* Threads worth starting for `rows` rows. Never changes a result. */
int cpu_threads_for(const struct cpu *c, int32_t rows);
/* Makes every thread's scratch row hold n floats; only while loading. */
void cpu_row_reserve(struct cpu *c, int32_t n);

/* cpu_pack.c */
struct weight *cpu_pack(struct backend *b, const struct tensor *parts, int n_parts,
                        enum weight_shape shape, struct err *err);
void cpu_unpack(struct backend *b, struct weight *w);
void cpu_weight_row(const struct cpu *c, const struct weight *w, int32_t row, float *out); /* [k] */

/* cpu_matmul.c: activations and products */
size_t cpu_act_bytes(struct backend *b, int32_t rows, int32_t k);
/* Stores row `row` of an act of `rows` rows in every form that is needed; row values [k]. */
void cpu_act_put(const struct cpu *c, void *act, int32_t rows, int32_t k, int32_t row,
                 const float *values);
void cpu_matmul_run(struct backend *b, int32_t rows, const void *in, const struct weight *w,
                    float *out);

/* cpu_rows.c */
void cpu_embed(struct backend *b, const struct weight *w, float scale, float *x);
void cpu_norm(struct backend *b, int32_t rows, int32_t c, float *x, const float *delta,
              const float *w, float eps, void *out);
void cpu_act(struct backend *b, int32_t rows, int32_t f, const float *gate_up, void *out);
void cpu_gather(struct backend *b, int32_t c, const float *x, const float *delta, float *out_x,
                float *out_delta);

/* cpu_kv.c */
size_t cpu_block_bytes(struct backend *b, const struct attention_shape *shape);
int cpu_pool_open_kv(struct backend *b, const struct attention_shape *shape, struct err *err);
void cpu_pool_close_kv(struct backend *b);
size_t cpu_q_bytes(struct backend *b, int32_t rows);
int cpu_host_open(struct backend *b, int32_t n_slots, struct err *err);
void cpu_copy(struct backend *b);
void cpu_out(struct backend *b);
void cpu_in(struct backend *b);
void cpu_rope_kv_write(struct backend *b, int32_t layer, const float *qkv, const float *bias,
                       void *q);
uint8_t *cpu_kv_page(const struct cpu *c, int32_t layer, int32_t block, int32_t head,
                     int32_t offset);

/* cpu_attention.c */
bool cpu_attention_open(struct cpu *c);
void cpu_attention_close(struct cpu *c);
void cpu_attention_plan(struct cpu *c); /* at step_begin: the work items */
void cpu_attention(struct backend *b, int32_t layer, const void *q, void *out);

/* cpu_choose.c */
void cpu_choose(struct backend *b, const float *logits, struct chosen *out);

#endif
