/* gguf_write.h - builds a GGUF file in memory, for tools and tests.
 *
 * Zero-initialise, add keys and tensors in the order in which they shall lie in the file, finish
 * once. Memory is ours: xmalloc. The writer checks nothing that gguf_open checks: tests need files
 * that are wrong. */
#ifndef MODEL_GGUF_WRITE_H
#define MODEL_GGUF_WRITE_H

#include <stdbool.h>
#include <stdint.h>
#include "base/str.h"
#include "model/gguf.h"

struct gguf_writer {
    struct str keys, infos, data; /* own; the three parts as they will follow each other */
    uint64_t n_keys, n_tensors;
    uint32_t alignment; /* of tensor data; 0 = 32; another value needs its key as well */
};

/* Any value; data is its bytes as the file has them (a string with its length in front). */
void gguf_write_value(struct gguf_writer *w, const char *key, enum gguf_type type, const void *data,
                      size_t len);
void gguf_write_u32(struct gguf_writer *w, const char *key, uint32_t value);
void gguf_write_f32(struct gguf_writer *w, const char *key, float value);
void gguf_write_bool(struct gguf_writer *w, const char *key, bool value);
void gguf_write_string(struct gguf_writer *w, const char *key, struct bytes value);
void gguf_write_strings(struct gguf_writer *w, const char *key, const struct bytes *values,
                        uint64_t n);
/* Elements of a fixed size of element_bytes. */
void gguf_write_array(struct gguf_writer *w, const char *key, enum gguf_type element,
                      const void *values, uint64_t n, size_t element_bytes);

/* Appends the tensor's row in the table and its bytes at the next aligned offset. */
void gguf_write_tensor(struct gguf_writer *w, const char *name, uint32_t type, const int64_t *dims,
                       uint32_t n_dims, const void *data, size_t len);

/* The whole file, without padding after the last tensor. Frees what the writer holds. */
void gguf_write_finish(struct gguf_writer *w, struct str *out);

#endif
