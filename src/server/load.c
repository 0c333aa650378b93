/* load.c - the model's way into memory, on a job thread, while clients are answered LOADING.
 *
 * Opening and checking the file, the tokenizer's tables and the packing of weights take seconds. The
 * job fills a served_model of its own and the main thread takes it over when it is done: nothing is
 * shared while it runs. An unknown chat template is no failure: raw text works without one, and a
 * GEN that needs it says why it cannot. Any other fault ends the server with the reason. */
#include <string.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "runner/rank.h"
#include "server/server.h"

enum { TELL_US = 150 }; /* the engine's share of the millisecond of a turn (server.c) */

struct loading {
    struct job job;        /* first */
    struct server *server; /* main thread */
    struct runner_config runner;
    char *path, *backend, *affinity, *template_name; /* own */
    int64_t start_us;
    struct served_model served; /* the job's until it is done */
    struct err err;
    bool failed;
};

void load_free(struct served_model *m)
{
    if (m->runner)
        m->runner->close(m->runner);
    tokenizer_free(m->tokenizer);
    if (m->model)
        model_close(m->model);
    *m = (struct served_model){0};
}

static int32_t n_end_ids(const struct tokenizer *t)
{
    int32_t n;
    (void)tokenizer_end_ids(t, &n);
    return n;
}

static int load_chat(struct loading *l, struct err *err)
{
    struct served_model *m = &l->served;
    struct err why = {{0}};
    if (l->template_name) {
        m->chat = chat_find(l->template_name, err);
        return m->chat ? 0 : -1;
    }
    m->chat = chat_recognise(m->model->chat_template, &why);
    if (!m->chat) {
        memcpy(m->chat_error, why.text, sizeof m->chat_error);
        log_notice(LOG_MODEL, "%s", why.text);
    }
    return 0;
}

static int load(struct loading *l)
{
    struct served_model *m = &l->served;
    if (!(m->model = model_open(l->path, &l->err)))
        return -1;
    log_notice(LOG_MODEL, "%s: %s, %d layers, vocabulary %d, context %d", l->path, m->model->name,
               m->model->n_layers, m->model->n_vocab, m->model->n_context);
    if (!(m->tokenizer = tokenizer_load(m->model->gguf, &l->err)))
        return -1;
    if (load_chat(l, &l->err) < 0)
        return -1;
    l->runner.max_bias = ENGINE_MAX_BIAS + n_end_ids(m->tokenizer); /* IGNOREEOS bans them all */
    m->runner = runner_open(m->model, &l->runner, &l->err);
    return m->runner ? 0 : -1;
}

static void run(struct job *job)
{
    struct loading *l = (struct loading *)job;
    l->failed = load(l) < 0;
    if (l->failed)
        load_free(&l->served);
}

static struct engine *make_engine(const struct config *c, const struct served_model *m,
                                  struct err *err)
{
    struct engine_config config = {.runner = m->runner,
                                   .tokenizer = m->tokenizer,
                                   .max_batch_tokens = (int32_t)c->max_batch_tokens,
                                   .max_chunk = (int32_t)c->max_chunk,
                                   .max_running = (int32_t)c->max_running,
                                   .max_queue = (int32_t)c->max_queue,
                                   .swap = c->preemption_mode == CONFIG_SWAP,
                                   .tell_us = TELL_US};
    return engine_new(&config, err);
}

static void done(struct job *job)
{
    struct loading *l = (struct loading *)job;
    struct server *s = l->server;
    s->loading = NULL;
    s->served = l->served;
    if (!l->failed && !(s->engine = make_engine(&s->config, &s->served, &l->err)))
        l->failed = true;
    if (!l->failed)
        log_notice(LOG_MODEL, "model loaded in %lld ms",
                   (long long)((clock_mono_us() - l->start_us) / 1000));
    server_loaded(s, l->failed ? &l->err : NULL);
    xfree(l->path);
    xfree(l->backend);
    xfree(l->affinity);
    xfree(l->template_name);
    xfree(l);
}

void load_start(struct server *s)
{
    const struct config *c = &s->config;
    struct loading *l = xcalloc(1, sizeof *l);
    l->job.run = run;
    l->job.done = done;
    l->server = s;
    l->start_us = clock_mono_us();
    l->path = xstrdup(c->model);
    l->backend = xstrdup(config_backends[c->backend]);
    l->affinity = *c->cpu_affinity ? xstrdup(c->cpu_affinity) : NULL;
    l->template_name = c->chat_template ? xstrdup(config_chat_templates[c->chat_template]) : NULL;
    l->runner = runner_config_default();
    l->runner.backend = l->backend;
    l->runner.affinity = l->affinity;
    l->runner.n_threads = (int)c->threads;
    l->runner.n_context = (int32_t)c->max_context;
    l->runner.block_size = (int32_t)c->block_size;
    l->runner.kv_type = (enum kv_type)c->kv_type;
    l->runner.kv_cache_bytes = c->kv_cache_size;
    l->runner.swap_bytes = c->preemption_mode == CONFIG_SWAP ? c->swap_space : 0;
    l->runner.max_rows = (int32_t)c->max_batch_tokens;
    l->runner.max_seqs = (int32_t)c->max_running;
    s->loading = l;
    jobs_submit(s->jobs, &l->job);
}
