/* harness.h - what the kernel tests share: the devices to test, random tensors, error measures. */
#ifndef TESTS_KERNELS_HARNESS_H
#define TESTS_KERNELS_HARNESS_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "base/mem.h"
#include "base/rng.h"
#include "kernels/backend.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* Under a sanitizer every access is looked at: a product takes 20 to 60 times as long. What costs most
 * is done there with a quarter of the widths and a third of the row counts, all types and code paths
 * remaining; tests that do so say it (harness_tell_part). */
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
enum { HARNESS_PART = 4 };
#else
enum { HARNESS_PART = 1 };
#endif
void harness_tell_part(const char *what);

/* A backend with a code path. */
struct subject {
    const struct backend_ops *ops;
    const char *isa;
};
/* Every backend of the build on every path, ref last; what this machine lacks is skipped aloud. */
int harness_subjects(struct subject *out, int max);
struct subject harness_ref(void);
const char *harness_name(const struct subject *s); /* "cpu/avx2"; static text */

struct plan_limits harness_limits(int32_t block_size);
struct backend *harness_open(const struct subject *s, int n_threads, int32_t block_size,
                             int32_t n_context, int32_t n_vocab);

/* Nearly normal numbers (sum of four uniform ones), standard deviation 1. */
void harness_fill(struct rng *r, float *out, size_t n);
/* A stored matrix of random values with standard deviation 1/sqrt(k); free t.data with xfree. */
struct tensor harness_matrix(struct rng *r, enum tensor_type type, int64_t n, int64_t k);
struct tensor harness_identity(int64_t n); /* F32 */
void harness_matrix_free(struct tensor *t);
/* Never NULL: what cannot be packed fails the test. */
struct weight *harness_pack(struct backend *b, const struct tensor *parts, int n,
                            enum weight_shape shape);

/* Device copies of host floats and back. */
float *harness_upload(struct backend *b, const float *host, size_t n);
float *harness_download(struct backend *b, const float *device, size_t n); /* xfree */

/* Mean square of (got - want) over that of want. */
double harness_nmse(const float *got, const float *want, size_t n);
/* That it is at most bound; that all are the same, bit for bit. */
void harness_check(const struct subject *s, const char *what, const float *got, const float *want,
                   size_t n, double bound);
void harness_check_same(const struct subject *s, const char *what, const float *got,
                        const float *want, size_t n);

#endif
