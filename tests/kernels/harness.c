/* harness.c - see harness.h. */
#include "harness.h"

#include <math.h>
#include <stdio.h>

static const char *const paths[] = {"scalar", "avx2", "avx512"};

/* Only a backend that knows paths tells them apart; ref takes any name and has one. */
static int add_paths(const struct backend_ops *ops, struct subject *out, int n, int max)
{
    for (int i = 0; i < COUNT(paths) && n < max; i++) {
        struct subject s = {ops, paths[i]};
        struct err err = {""};
        struct backend_config config = {.n_threads = 1,
                                        .isa = paths[i],
                                        .limits = harness_limits(16),
                                        .n_context = 16,
                                        .n_vocab = 32};
        struct backend *b = ops->open(&config, &err);
        if (b == NULL) {
            printf("# skipped %s/%s: %s\n", ops->name, paths[i], err.text);
            continue;
        }
        ops->close(b);
        out[n++] = s;
    }
    return n;
}

int harness_subjects(struct subject *out, int max)
{
    int n = 0;
    for (int i = 0; backends[i] != NULL && n < max; i++) {
        struct err err = {""};
        if (backends[i]->probe(&err) != 0) {
            printf("# skipped %s: %s\n", backends[i]->name, err.text);
            continue;
        }
        if (strcmp(backends[i]->name, "cpu") == 0)
            n = add_paths(backends[i], out, n, max);
        else
            out[n++] = (struct subject){backends[i], NULL};
    }
    ASSERT(n > 0 && out[n - 1].ops == backend_find("ref", NULL));
    if (n == 1)
        printf("# no backend but ref: it is only compared with itself in other chunks\n");
    return n;
}

const char *harness_name(const struct subject *s)
{
    static char text[64];
    snprintf(text, sizeof(text), "%s%s%s", s->ops->name, s->isa ? "/" : "", s->isa ? s->isa : "");
    return text;
}

struct subject harness_ref(void)
{
    return (struct subject){backend_find("ref", NULL), NULL};
}

void harness_tell_part(const char *what)
{
    if (HARNESS_PART > 1)
        print_message("# a sanitizer looks on: %s\n", what);
}

struct plan_limits harness_limits(int32_t block_size)
{
    return (struct plan_limits){
        .max_rows = 512,
        .max_seqs = 64,
        .max_table_blocks = 4096,
        .max_copies = 64,
        .max_bias = 1024,
        .max_counts = 4096,
        .block_size = block_size,
    };
}

struct backend *harness_open(const struct subject *s, int n_threads, int32_t block_size,
                             int32_t n_context, int32_t n_vocab)
{
    struct err err = {""};
    struct backend_config config = {.n_threads = n_threads,
                                    .isa = s->isa,
                                    .limits = harness_limits(block_size),
                                    .n_context = n_context,
                                    .n_vocab = n_vocab};
    struct backend *b = s->ops->open(&config, &err);
    if (b == NULL)
        fail_msg("%s does not open: %s", harness_name(s), err.text);
    return b;
}

void harness_fill(struct rng *r, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float sum = 0;
        for (int k = 0; k < 4; k++)
            sum += rng_unit(rng_next(r));
        out[i] = (sum - 2.0f) * 1.7320508f; /* variance of the sum is 4/12 */
    }
}

struct tensor harness_matrix(struct rng *r, enum tensor_type type, int64_t n, int64_t k)
{
    size_t row_bytes = tensor_row_bytes(type, k);
    float *row = xmalloc((size_t)k * sizeof(*row));
    uint8_t *data = xmalloc((size_t)n * row_bytes);

    assert_int_not_equal(row_bytes, 0);
    for (int64_t i = 0; i < n; i++) {
        harness_fill(r, row, (size_t)k);
        for (int64_t j = 0; j < k; j++)
            row[j] /= sqrtf((float)k);
        tensor_row_pack(type, k, row, data + (size_t)i * row_bytes);
    }
    xfree(row);
    return (struct tensor){.type = type, .n = n, .k = k, .data = data};
}

struct tensor harness_identity(int64_t n)
{
    float *data = xcalloc((size_t)(n * n), sizeof(*data));
    for (int64_t i = 0; i < n; i++)
        data[i * n + i] = 1;
    return (struct tensor){.type = TENSOR_F32, .n = n, .k = n, .data = data};
}

struct weight *harness_pack(struct backend *b, const struct tensor *parts, int n,
                            enum weight_shape shape)
{
    struct err err = {""};
    struct weight *w = b->ops->pack(b, parts, n, shape, &err);
    if (w == NULL)
        fail_msg("%s does not pack %s: %s", b->ops->name, tensor_type_name(parts[0].type),
                 err.text);
    return w;
}

void harness_matrix_free(struct tensor *t)
{
    xfree((void *)(uintptr_t)t->data);
    t->data = NULL;
}

float *harness_upload(struct backend *b, const float *host, size_t n)
{
    float *device = b->ops->alloc(b, n * sizeof(*host));
    assert_non_null(device);
    if (host != NULL)
        b->ops->upload(b, device, host, n * sizeof(*host));
    return device;
}

float *harness_download(struct backend *b, const float *device, size_t n)
{
    struct err err = {""};
    float *host = xmalloc(n * sizeof(*host));
    if (b->ops->sync(b, &err) != 0)
        fail_msg("%s: %s", b->ops->name, err.text);
    b->ops->download(b, host, device, n * sizeof(*host));
    return host;
}

double harness_nmse(const float *got, const float *want, size_t n)
{
    double error = 0, power = 0;
    for (size_t i = 0; i < n; i++) {
        error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        power += (double)want[i] * want[i];
    }
    return power > 0 ? error / power : error;
}

void harness_check(const struct subject *s, const char *what, const float *got, const float *want,
                   size_t n, double bound)
{
    double error = harness_nmse(got, want, n);
    if (!(error <= bound)) /* also when it is NaN */
        fail_msg("%s: %s: error %.3g, bound %.3g", harness_name(s), what, error, bound);
}

void harness_check_same(const struct subject *s, const char *what, const float *got,
                        const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof(*got)) != 0)
            fail_msg("%s: %s: value %zu is %.9g, not %.9g", harness_name(s), what, i, got[i],
                     want[i]);
}
