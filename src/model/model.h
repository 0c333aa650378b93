/* model.h - configuration and weights of a Llama-family model, found in a GGUF file.
 *
 * model_open maps the file, checks every tensor's type and shape against the metadata and keeps views
 * into the map; nothing is copied. The runner packs the views into a backend and may then drop the
 * map's pages (model_drop_pages). */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/str.h"
#include "kernels/tensor.h"

struct gguf;
struct model_layer {
    struct tensor attn_norm;          /* [1, C] F32 */
    struct tensor q, k, v;            /* [H*D, C], [G*D, C], [G*D, C] */
    struct tensor q_bias, k_bias, v_bias; /* [1, H*D] ...; data NULL when the model has none */
    struct tensor o;                  /* [C, H*D] */
    struct tensor ffn_norm;           /* [1, C] */
    struct tensor gate, up, down;     /* [F, C], [F, C], [C, F] */
};

struct model {
    struct gguf *gguf;                /* owns */
    char architecture[32], name[128];
    int32_t n_layers, n_context;      /* n_context: what the model was trained for */
    int32_t width, n_heads, n_kv_heads, head_dim, inner, n_vocab; /* C H G D F V */
    int32_t rope_dim;
    bool rope_neox;
    double rope_base, rope_scale;     /* scale: linear factor, 1 = none */
    struct tensor rope_factors;       /* [1, rope_dim/2] F32 divisors; data NULL: none */
    float norm_eps;
    float temperature;                /* general.sampling.temp, or -1 when the metadata has none */
    struct tensor embedding;          /* [V, C] */
    struct tensor output_norm;        /* [1, C] */
    struct tensor head;               /* [V, C]; the embedding when tied */
    bool tied;
    struct model_layer *layers;       /* [n_layers] owns */
    struct bytes chat_template;       /* Jinja text of the metadata; len 0: none */
    uint64_t digest;                  /* of metadata and tensor table and file size */
};

struct model *model_open(const char *path, struct err *err);
/* The same for an open file, which the model takes over; closed on error too. For tests and fuzzing. */
struct model *model_from_gguf(struct gguf *g, struct err *err);
void model_close(struct model *m);
void model_drop_pages(struct model *m);
/* cos and sin [n_context, rope_dim/2] of position * inverse frequency, computed in double. */
void model_rope_table(const struct model *m, int32_t n_context, float *cos, float *sin);

#endif
