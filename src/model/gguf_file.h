/* gguf_file.h - what an open GGUF file is made of: private to gguf.c, which fills it, and
 * gguf_get.c, which reads it. */
#ifndef MODEL_GGUF_FILE_H
#define MODEL_GGUF_FILE_H

#include "base/file.h"
#include "base/table.h"
#include "model/gguf.h"

/* One key's value as it lies in the file. */
struct gguf_value {
    struct bytes key; /* borrows from the map */
    enum gguf_type type;
    enum gguf_type element; /* of an array */
    uint64_t n;             /* elements of an array, bytes of a string, 1 */
    const uint8_t *at;      /* unaligned */
};

struct gguf {
    char *path; /* owns */
    struct file_map map;
    bool is_mapped; /* else map.data is the caller's */
    uint32_t alignment;
    size_t data_at; /* where the tensor data begins */
    size_t n_keys, n_tensors;
    struct gguf_value *values;   /* [n_keys] owns */
    struct gguf_tensor *tensors; /* [n_tensors] owns */
    struct table *keys, *names;  /* own; to elements of the two arrays */
};

/* gguf_get.c */
const char *gguf_type_name(enum gguf_type type);
int gguf_type_bytes(enum gguf_type type); /* 0: string and array, not of fixed size */

#endif
