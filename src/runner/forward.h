/* forward.h - the model as a program over one backend: weights packed once, then plans run.
 *
 * Everything here belongs to one thread, the one that opened it (the rank thread of rank.c, or the
 * main thread of a test or a measuring tool). */
#ifndef RUNNER_FORWARD_H
#define RUNNER_FORWARD_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "kernels/backend.h"
#include "kernels/plan.h"
#include "model/model.h"

struct forward; /* owns the backend, the packed weights, the pool and the buffers of a step */

/* Opens the backend and packs the weights, one layer at a time; gives the model's pages back. The
 * model is borrowed for its dimensions. device.n_vocab is taken from the model; device.limits and
 * device.n_context hold for all plans. */
struct forward *forward_open(struct model *model, const struct backend_ops *ops,
                             const struct backend_config *device, struct err *err);
void forward_close(struct forward *f); /* accepts NULL */

/* The K/V pool; block size is that of device.limits. Once, before the first run. */
size_t forward_block_bytes(struct forward *f);
int forward_pool_open(struct forward *f, int32_t n_blocks, struct err *err);
int forward_host_open(struct forward *f, int32_t n_slots, struct err *err);
enum kv_type forward_kv_type(const struct forward *f); /* never KV_AUTO */
const char *forward_describe(struct forward *f);

/* One step: chosen [R]. On -1 no sample is valid and the slots written by the step are not either;
 * the next run starts clean. logits: NULL, or room for [R, V] raw logits, for tests and measuring. */
int forward_run(struct forward *f, const struct plan *plan, struct chosen *chosen, float *logits,
                struct err *err);

#endif
