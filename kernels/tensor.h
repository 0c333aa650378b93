/* tensor.h - a view of a stored matrix: type, shape, bytes. Owns nothing. */
#ifndef KERNELS_TENSOR_H
#define KERNELS_TENSOR_H

#include <stddef.h>
#include <stdint.h>

/* Values are GGUF's (ggml_type). */
enum tensor_type {
    TENSOR_F32 = 0,
    TENSOR_F16 = 1,
    TENSOR_Q4_0 = 2,
    TENSOR_Q4_1 = 3,
    TENSOR_Q5_0 = 6,
    TENSOR_Q5_1 = 7,
    TENSOR_Q8_0 = 8,
    TENSOR_Q4_K = 12,
    TENSOR_Q5_K = 13,
    TENSOR_Q6_K = 14,
    TENSOR_BF16 = 30,
};

struct tensor {
    enum tensor_type type;
    int64_t n, k;     /* [n, k]: n rows of k values; a vector is [1, k] */
    const void *data; /* borrows: n * tensor_row_bytes(type, k) bytes */
};

/* quant.c: layout of the stored types. */
const char *tensor_type_name(int type);      /* "Q4_1"; NULL: unknown or unsupported */
int tensor_type_find(const char *name);      /* ASCII case ignored; -1: none of that name */
int tensor_block(int type);                  /* values a block: 1, 32 or 256; 0: unsupported */
size_t tensor_row_bytes(int type, int64_t k); /* 0: unsupported, k no multiple of the block, too big */
/* Plain unpack of one row to floats: the definition of what the bytes mean. */
void tensor_row_unpack(const struct tensor *t, int64_t row, float *out);

/* quant_pack.c: floats to a stored type, plainly, for tests and tools. out: tensor_row_bytes. */
void tensor_row_pack(int type, int64_t k, const float *in, void *out);

#endif
