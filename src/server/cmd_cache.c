/* cmd_cache.c - CACHE, TOKENIZE, DETOKENIZE: what the cache holds, and texts as token ids.
 *
 * A long text is tokenised by a job thread while the client is parked, so that nobody else waits for
 * it, and so is the prompt of a CACHE PROBE; inside MULTI it is done at once, because EXEC cannot
 * wait, and what would take long there is refused. The job knows the client by its
 * number, not by pointer: a client that has gone is simply not found. */
#include "base/mem.h"
#include "keyspace/generate.h"
#include "server/command.h"
#include "server/server.h"

enum {
    JOB_BYTES = 2048,   /* of text; above: over a millisecond of work at 2 MB/s */
    JOB_IDS = 4096,     /* to decode, and a few hundred microseconds */
    EXEC_BYTES = 65536, /* inside MULTI, where nobody else is served meanwhile */
    EXEC_IDS = 65536,
};

static bool has_model(struct client *c)
{
    if (!c->server->engine)
        reply_error(&c->reply, "ERR no model is loaded: start the server with --model FILE.gguf");
    return c->server->engine != NULL;
}

/* ---- jobs ------------------------------------------------------------------------------------- */

/* What a job does for a parked client. The reply is written where the work is done: a million ids are
 * milliseconds of formatting, too. */
struct work {
    struct job job; /* first */
    struct server *server;
    uint64_t client_id;
    const struct tokenizer *tokenizer; /* borrowed; outlives the jobs */
    bool special;
    struct str text;         /* owns */
    struct ids ids;          /* owns */
    struct gen_probe *probe; /* owns; CACHE PROBE */
    struct reply reply;      /* writes into `out` */
    struct str out;          /* owns */
};

static struct work *work_new(struct client *c)
{
    struct work *w = xcalloc(1, sizeof *w);
    w->server = c->server;
    w->client_id = c->id;
    w->tokenizer = c->server->served.tokenizer;
    w->reply =
        (struct reply){.out = &w->out, .protocol = c->reply.protocol, .limit = c->reply.limit};
    return w;
}

static void work_free(struct work *w)
{
    str_free(&w->text);
    ids_free(&w->ids);
    str_free(&w->out);
    xfree(w);
}

static void answer(struct client *c, const struct work *w)
{
    client_answer_begin(c);
    reply_raw(&c->reply, bytes_of(&w->out));
    client_answer_end(c);
    client_unblock(c);
}

static void work_done(struct job *job)
{
    struct work *w = (struct work *)job;
    LIST_FOREACH(&w->server->clients, node, next) {
        struct client *c = LIST_ITEM(node, struct client, node);
        if (c->id == w->client_id && c->blocked == BLOCK_JOB)
            answer(c, w);
    }
    work_free(w);
}

static void work_submit(struct client *c, struct work *w, void (*run)(struct job *job),
                        void (*done)(struct job *job))
{
    w->job.run = run;
    w->job.done = done;
    c->blocked = BLOCK_JOB;
    jobs_submit(c->server->jobs, &w->job);
}

/* ---- TOKENIZE, DETOKENIZE --------------------------------------------------------------------- */

static void tokenize(struct reply *r, const struct tokenizer *t, struct bytes text, bool special)
{
    struct ids ids = {0};
    tokenizer_encode(t, text, special, &ids);
    reply_array(r, ids.n);
    for (int32_t i = 0; i < ids.n; i++)
        reply_int(r, ids.data[i]);
    ids_free(&ids);
}

static void tokenize_run(struct job *job)
{
    struct work *w = (struct work *)job;
    reply_begin(&w->reply);
    tokenize(&w->reply, w->tokenizer, bytes_of(&w->text), w->special);
    reply_end(&w->reply);
}

/* EXEC cannot wait, and everybody waits for EXEC. */
static bool fits_exec(struct client *c, const char *what, size_t n, size_t max)
{
    if (!c->in_exec || n <= max)
        return true;
    reply_error(&c->reply, "ERR %zu %s are too many inside MULTI, at most %zu", n, what, max);
    return false;
}

static void run_tokenize(struct client *c, const struct request *q)
{
    bool special = q->n_args == 3 && bytes_equal_nocase(q->args[2], "special");
    struct bytes text = q->args[1];
    if (q->n_args > 2 && !special) {
        reply_syntax_error(&c->reply);
        return;
    }
    if (!has_model(c) || !fits_exec(c, "bytes", text.len, EXEC_BYTES))
        return;
    if (text.len <= JOB_BYTES || c->in_exec) {
        tokenize(&c->reply, c->server->served.tokenizer, text, special);
        return;
    }
    struct work *w = work_new(c);
    w->special = special;
    str_append(&w->text, text.data, text.len);
    work_submit(c, w, tokenize_run, work_done);
}

/* False: an error was written. */
static bool parse_ids(struct client *c, const struct request *q, int32_t n_vocab, struct ids *ids)
{
    for (int i = 1; i < q->n_args; i++) {
        int64_t id;
        if (parse_i64(q->args[i], &id) && id >= 0 && id < n_vocab) {
            ids_push(ids, (int32_t)id);
            continue;
        }
        struct str error = {0};
        str_printf(&error, "ERR a token must be from 0 to %d, not '", n_vocab - 1);
        echo_append(&error, q->args[i]);
        str_append_char(&error, '\'');
        reply_error_bytes(&c->reply, bytes_of(&error));
        str_free(&error);
        return false;
    }
    return true;
}

/* Control tokens are spelled out: TOKENIZE with SPECIAL gives the ids back. */
static void detokenize(struct reply *r, const struct tokenizer *t, const struct ids *ids)
{
    struct str text = {0};
    tokenizer_decode(t, ids->data, ids->n, true, &text);
    reply_bulk(r, bytes_of(&text));
    str_free(&text);
}

static void detokenize_run(struct job *job)
{
    struct work *w = (struct work *)job;
    reply_begin(&w->reply);
    detokenize(&w->reply, w->tokenizer, &w->ids);
    reply_end(&w->reply);
}

static void run_detokenize(struct client *c, const struct request *q)
{
    if (!has_model(c) || !fits_exec(c, "ids", (size_t)q->n_args - 1, EXEC_IDS))
        return;
    const struct tokenizer *t = c->server->served.tokenizer;
    struct ids ids = {0};
    bool is_ok = parse_ids(c, q, tokenizer_n_vocab(t), &ids);
    if (is_ok && ids.n > JOB_IDS && !c->in_exec) {
        struct work *w = work_new(c);
        w->ids = ids;
        work_submit(c, w, detokenize_run, work_done);
        return;
    }
    if (is_ok)
        detokenize(&c->reply, t, &ids);
    ids_free(&ids);
}

/* ---- CACHE ------------------------------------------------------------------------------------ */

static void run_cache_info(struct client *c, const struct request *q)
{
    if (!has_model(c))
        return;
    struct engine_stats t;
    engine_stats(c->server->engine, &t);
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"blocks", t.n_blocks},
        {"block-size", t.block_size},
        {"block-bytes", (int64_t)c->server->served.runner->info.block_bytes},
        {"free", t.free_blocks},
        {"cached", t.cached_blocks},
        {"used", t.used_blocks},
        {"promised", t.promised_blocks},
        {"prompt-tokens", (int64_t)t.prompt_tokens},
        {"cached-tokens", (int64_t)t.cached_tokens},
        {"computed-prompt-tokens", (int64_t)t.computed_prompt_tokens},
        {"generated-tokens", (int64_t)t.generated_tokens},
        {"hits-full", (int64_t)t.hits_full},
        {"hits-tail", (int64_t)t.hits_tail},
        {"copies", (int64_t)t.copies},
        {"merged", (int64_t)t.merged},
        {"evictions", (int64_t)t.evictions},
        {"preemptions", (int64_t)t.preemptions},
        {"rejected-matches", (int64_t)t.rejected_matches},
        {"shared", t.shared_blocks},     /* of the used ones */
        {"unwanted", t.unwanted_blocks}, /* of the cached ones */
        {"swap-blocks", t.n_slots},
        {"swapped", t.n_slots - t.free_slots},
        {"swapped-out", (int64_t)t.swapped_out_blocks},
        {"swapped-in", (int64_t)t.swapped_in_blocks},
        {"swap-full", (int64_t)t.swap_full},
        {"dropped-tokens", (int64_t)t.dropped_tokens},
    };
    enum { N = sizeof numbers / sizeof *numbers };
    reply_map(&c->reply, N + 1);
    for (int i = 0; i < N; i++) {
        reply_text(&c->reply, numbers[i].name);
        reply_int(&c->reply, numbers[i].value);
    }
    reply_text(&c->reply, "kv-type");
    reply_text(&c->reply, c->server->served.runner->info.kv_type_name);
}

struct probe {
    struct bytes role, key; /* data NULL: not given */
    int key_at;             /* index of the key; 0: none */
};

/* CACHE PROBE prompt [AS role] [KEY key]; false: not so. */
static bool probe_parse(const struct request *q, struct probe *p)
{
    *p = (struct probe){0};
    for (int i = 3; i < q->n_args; i += 2) {
        if (i + 1 >= q->n_args)
            return false;
        if (bytes_equal_nocase(q->args[i], "as") && !p->role.data) {
            p->role = q->args[i + 1];
        } else if (bytes_equal_nocase(q->args[i], "key") && !p->key.data) {
            p->key = q->args[i + 1];
            p->key_at = i + 1;
        } else {
            return false;
        }
    }
    return true;
}

/* Main thread: the cache is asked. */
static void probe_end(struct reply *r, struct gen_probe *probe)
{
    int32_t n_tokens, n_cached;
    struct err err;
    if (gen_probe_end(probe, &n_tokens, &n_cached, &err) < 0) {
        reply_err(r, &err);
        return;
    }
    reply_array(r, 2);
    reply_int(r, n_tokens);
    reply_int(r, n_cached);
}

static void probe_run(struct job *job)
{
    struct work *w = (struct work *)job;
    gen_probe_run(w->probe);
}

static void probe_done(struct job *job)
{
    struct work *w = (struct work *)job;
    reply_begin(&w->reply);
    probe_end(&w->reply, w->probe);
    reply_end(&w->reply);
    work_done(job);
}

static void run_cache_probe(struct client *c, const struct request *q)
{
    struct probe p;
    if (!probe_parse(q, &p)) {
        reply_syntax_error(&c->reply);
        return;
    }
    if (!has_model(c) || !fits_exec(c, "bytes", q->args[2].len, EXEC_BYTES))
        return;
    struct err err;
    struct gen_probe *probe =
        gen_probe_begin(c->server->keys, c->db, c->user, q->args[2], p.role, p.key, &err);
    if (!probe) {
        reply_err(&c->reply, &err);
        return;
    }
    if (gen_probe_is_long(probe) && !c->in_exec) {
        struct work *w = work_new(c);
        w->probe = probe;
        work_submit(c, w, probe_run, probe_done);
        return;
    }
    gen_probe_run(probe);
    probe_end(&c->reply, probe);
}

static bool find_probe_key(const struct request *q, struct key_positions *positions)
{
    struct probe p;
    if (!probe_parse(q, &p))
        return false;
    if (p.key_at > 0)
        key_positions_add(positions, p.key_at);
    return true;
}

static void run_cache_clear(struct client *c, const struct request *q)
{
    if (has_model(c))
        reply_int(&c->reply, engine_cache_clear(c->server->engine));
}

// clang-format off
static const struct command cache_subcommands[] = {
    {.name = "clear", .arity = 2, .flags = CMD_ADMIN, .group = "generation", .since = "0.1.0",
     .complexity = "O(N) with N being the number of blocks",
     .summary = "Drops all blocks that no generation uses; returns how many.",
     .run = run_cache_clear},
    COMMAND_HELP(COMMAND_HELP_FLAGS, "generation", "0.1.0", NULL),
    {.name = "info", .arity = 2, .flags = CMD_READONLY, .tips = "nondeterministic_output",
     .group = "generation", .since = "0.1.0", .complexity = "O(1)",
     .summary = "Returns the state and the counters of the cache.", .run = run_cache_info},
    {.name = "probe", .arity = -3, .flags = CMD_READONLY | CMD_MOVABLE_KEYS,
     .tips = "nondeterministic_output", .group = "generation", .since = "0.1.0",
     .complexity = "O(N) with N being the length of the prompt and the conversation",
     .summary = "Returns the tokens that a GEN with this prompt would have, and how many are cached.",
     .syntax = "prompt [AS role] [KEY key:key]", .private_from = 2, .run = run_cache_probe, .keys = find_probe_key},
    {.name = NULL},
};
const struct command cmd_cache_table[] = {
    {.name = "cache", .arity = -2, .group = "generation", .since = "0.1.0",
     .complexity = "Depends on subcommand.", .summary = "A container for commands on the cache.",
     .subcommands = cache_subcommands},
    {.name = "detokenize", .arity = -2, .flags = CMD_READONLY, .group = "generation",
     .since = "0.1.0", .complexity = "O(N) with N being the number of ids",
     .summary = "Returns the text of token ids.",
     .syntax = "id:integer...", .run = run_detokenize},
    {.name = "tokenize", .arity = -2, .flags = CMD_READONLY, .group = "generation",
     .since = "0.1.0", .complexity = "O(N) with N being the length of the text",
     .summary = "Returns the token ids of a text.",
     .syntax = "text [SPECIAL]", .private_from = 1, .run = run_tokenize},
    {.name = NULL},
};
// clang-format on
