/* mkmodel_build.h - a small model with random weights as the bytes of a GGUF file. */
#ifndef UTILS_MKMODEL_BUILD_H
#define UTILS_MKMODEL_BUILD_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/str.h"

struct gguf_writer;

struct mkmodel_options {
    const char *architecture; /* "llama" or "qwen2" (which has a bias) */
    int type;                 /* enum tensor_type of the matrices */
    int32_t layers, width, heads, kv_heads, head_dim, inner, context;
    uint64_t seed;
    bool untied, qkv_bias, rope_factors;
    void (*extra)(struct gguf_writer *w, const void *arg); /* tests: more keys, tensors; or NULL */
    const void *extra_arg;
};

struct mkmodel_options mkmodel_defaults(void);
/* The same options give the same bytes, on every machine. out is replaced. -1: options that do not
 * go together, with the limit and the value. */
int mkmodel_build(const struct mkmodel_options *o, struct str *out, struct err *err);

#endif
