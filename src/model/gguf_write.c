/* gguf_write.c - the three parts of a GGUF file, grown side by side and joined at the end.
 *
 * The header counts keys and tensors, and a tensor's offset counts from the end of all tables, so
 * nothing can be written before everything is known; but offsets within the data can, and so each
 * part is simply appended to its own string. Tensors lie in the order in which they are added, each
 * at the next multiple of the alignment. No padding follows the last one: then every shorter file
 * is a broken file, which is what the truncation tests want. */
#include "model/gguf_write.h"

#include <string.h>

static void put_u32(struct str *s, uint32_t v)
{
    str_append(s, &v, sizeof v);
}

static void put_u64(struct str *s, uint64_t v)
{
    str_append(s, &v, sizeof v);
}

static void put_string(struct str *s, struct bytes text)
{
    put_u64(s, text.len);
    str_append(s, text.data, text.len);
}

static void put_key(struct gguf_writer *w, const char *key, enum gguf_type type)
{
    put_string(&w->keys, bytes_from(key));
    put_u32(&w->keys, type);
    w->n_keys++;
}

void gguf_write_value(struct gguf_writer *w, const char *key, enum gguf_type type, const void *data,
                      size_t len)
{
    put_key(w, key, type);
    str_append(&w->keys, data, len);
}

void gguf_write_u32(struct gguf_writer *w, const char *key, uint32_t value)
{
    gguf_write_value(w, key, GGUF_U32, &value, sizeof value);
}

void gguf_write_f32(struct gguf_writer *w, const char *key, float value)
{
    gguf_write_value(w, key, GGUF_F32, &value, sizeof value);
}

void gguf_write_bool(struct gguf_writer *w, const char *key, bool value)
{
    uint8_t byte = value;
    gguf_write_value(w, key, GGUF_BOOL, &byte, 1);
}

void gguf_write_string(struct gguf_writer *w, const char *key, struct bytes value)
{
    put_key(w, key, GGUF_STRING);
    put_string(&w->keys, value);
}

void gguf_write_strings(struct gguf_writer *w, const char *key, const struct bytes *values,
                        uint64_t n)
{
    put_key(w, key, GGUF_ARRAY);
    put_u32(&w->keys, GGUF_STRING);
    put_u64(&w->keys, n);
    for (uint64_t i = 0; i < n; i++)
        put_string(&w->keys, values[i]);
}

void gguf_write_array(struct gguf_writer *w, const char *key, enum gguf_type element,
                      const void *values, uint64_t n, size_t element_bytes)
{
    put_key(w, key, GGUF_ARRAY);
    put_u32(&w->keys, element);
    put_u64(&w->keys, n);
    str_append(&w->keys, values, (size_t)n * element_bytes);
}

static void pad(struct str *s, uint32_t alignment)
{
    while (s->len % alignment != 0)
        str_append_char(s, 0);
}

static uint32_t alignment_of(const struct gguf_writer *w)
{
    return w->alignment != 0 ? w->alignment : 32;
}

void gguf_write_tensor(struct gguf_writer *w, const char *name, uint32_t type, const int64_t *dims,
                       uint32_t n_dims, const void *data, size_t len)
{
    pad(&w->data, alignment_of(w));
    put_string(&w->infos, bytes_from(name));
    put_u32(&w->infos, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        put_u64(&w->infos, (uint64_t)dims[i]);
    put_u32(&w->infos, type);
    put_u64(&w->infos, w->data.len);
    str_append(&w->data, data, len);
    w->n_tensors++;
}

void gguf_write_finish(struct gguf_writer *w, struct str *out)
{
    str_clear(out);
    str_append_str(out, "GGUF");
    put_u32(out, 3);
    put_u64(out, w->n_tensors);
    put_u64(out, w->n_keys);
    str_append(out, w->keys.data, w->keys.len);
    str_append(out, w->infos.data, w->infos.len);
    if (w->n_tensors > 0)
        pad(out, alignment_of(w));
    str_append(out, w->data.data, w->data.len);
    str_free(&w->keys);
    str_free(&w->infos);
    str_free(&w->data);
    *w = (struct gguf_writer){0};
}
