/* generate.c - GEN as it arrives: whose is it, what does the prompt become, will the engine take
 * it?
 *
 * An arriving GEN is judged first (retry.c has the table). One that is new, or resumes an orphan,
 * makes its key busy from here on, even when the key does not exist yet and the prompt is still to
 * be tokenised. Tokenising more than 2 KiB takes around a millisecond and goes to a job thread; the
 * rest then happens when the job is done. Only after the engine has accepted is the prompt written,
 * so a refusal leaves no trace. Inside MULTI the id is due at once: the prompt is written first,
 * and a later refusal becomes an end entry with finish `error`. Main thread only. */
#include "keyspace/generation.h"

#include <string.h>
#include "base/mem.h"
#include "base/plant.h"
#include "cache/lineage.h"
#include "keyspace/logprobs.h"

#define JOB_BYTES 2048               /* of text to tokenise: about 1 ms at 2 MB/s */
#define JOB_ENTRIES 4096             /* to walk, whatever they hold */
#define IDS_LEFT (UINT64_C(1) << 32) /* entry ids that a GEN may need, with room to spare */

/* ---- what the prompt becomes ---------------------------------------------------------------- */

struct intake {
    struct entry *prompt; /* owns; NULL: it goes on without one */
    bool is_chat;
};

static struct entry *prompt_entry(const struct bytes *fields, int32_t n_fields,
                                  enum entry_kind kind, struct err *err)
{
    struct entry *entry = entry_new(STREAM_ID_MIN, fields, n_fields);
    if (entry == NULL)
        return err_null(err, "OOM no memory for a prompt of %zu bytes",
                        fields[2 * n_fields - 1].len);
    conversation_set_kind(entry, kind);
    return entry;
}

/* IDS: the text of the entry is what the ids stand for, the ids stay as given. */
static struct entry *prompt_of_ids(const struct keyspace_config *config, struct bytes prompt,
                                   struct err *err)
{
    const struct tokenizer *t = config->tokenizer;
    int32_t n = prompt.len / 4 < INT32_MAX ? (int32_t)(prompt.len / 4) : INT32_MAX;
    int32_t n_context = config->n_context;
    if (prompt.len == 0 || prompt.len % sizeof(int32_t) != 0)
        return err_null(err,
                        "ERR IDS needs a prompt of little-endian int32 ids: %zu bytes are not a "
                        "multiple of 4 above 0",
                        prompt.len);
    if (n >= n_context)
        return err_null(err, "ERR a prompt of %d ids fills the context of %d", n, n_context);
    struct ids ids = {0};
    struct str text = {0};
    struct entry *entry = NULL;
    for (int32_t i = 0; i < n; i++) {
        const unsigned char *b = (const unsigned char *)prompt.data + (size_t)i * 4;
        int32_t id = (int32_t)((uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 |
                               (uint32_t)b[3] << 24);
        if (id < 0 || id >= tokenizer_n_vocab(t)) {
            (void)err_set(err, "ERR id %d at place %d is outside the vocabulary of %d", id, i,
                          tokenizer_n_vocab(t));
            goto out;
        }
        struct bytes token = tokenizer_token(t, id);
        str_append(&text, token.data, token.len);
        ids_push(&ids, id);
    }
    struct bytes fields[2] = {BYTES("text"), bytes_of(&text)};
    if ((entry = prompt_entry(fields, 1, ENTRY_TEXT, err)) == NULL)
        goto out;
    entry_set_ids(entry, ids);
    ids = (struct ids){0};
out:
    ids_free(&ids);
    str_free(&text);
    return entry;
}

static int plan_prompt(const struct keyspace *ks, const struct stream *s,
                       const struct gen_request *request, struct intake *intake, struct err *err)
{
    bool has_role = request->role.data != NULL, inside;
    if (!request->has_prompt || (request->prompt.len == 0 && !has_role && !request->ids))
        return conversation_may_go_on(s, &inside, &intake->is_chat, err);
    bool has_messages = stream_has_turns(s);
    if (request->ids && has_role)
        return err_set(err, "ERR IDS and AS exclude each other: a template renders text");
    if (request->ids) {
        intake->is_chat = has_messages;
        intake->prompt = prompt_of_ids(&ks->config, request->prompt, err);
        return intake->prompt != NULL ? 0 : -1;
    }
    intake->is_chat = has_role || has_messages;
    struct bytes role = has_role ? request->role : BYTES("user");
    struct bytes message[4] = {BYTES("role"), role, BYTES("content"), request->prompt};
    struct bytes text[2] = {BYTES("text"), request->prompt};
    intake->prompt = intake->is_chat ? prompt_entry(message, 2, ENTRY_MESSAGE, err)
                                     : prompt_entry(text, 1, ENTRY_TEXT, err);
    if (intake->prompt == NULL)
        return -1;
    intake->prompt->open = intake->is_chat && bytes_equal(role, BYTES("assistant"));
    return 0;
}

/* Before anything of that size is copied. The same limit as in build.c, for the prompt alone. */
static int check_size(const struct keyspace_config *config, struct bytes prompt, struct err *err)
{
    size_t most = (size_t)tokenizer_longest(config->tokenizer) * (size_t)config->n_context;
    if (prompt.len <= most)
        return 0;
    return err_set(err, "ERR a prompt of %zu bytes can never fit the context of %d tokens",
                   prompt.len, config->n_context);
}

static int has_ids_left(const struct stream *s, struct err *err)
{
    if (s->last_id.ms != UINT64_MAX || UINT64_MAX - s->last_id.seq >= IDS_LEFT)
        return 0;
    return err_set(err, "ERR fewer than 2^32 entry ids are left in this key, a generation may need "
                        "them");
}

/* ---- to the engine -------------------------------------------------------------------------- */

static struct cache_namespace namespace_of(const struct keyspace *ks, uint64_t user)
{
    return (struct cache_namespace){
        .model_digest = ks->config.model_digest,
        .user = ks->config.share_prefixes ? 0 : user + 1, /* 0 is everybody */
        .kv_type = ks->config.kv_type,
    };
}

/* A default is no wish: it is lowered to what fits, so that only an explicit one is refused. */
static void fit_max_tokens(struct generation *g)
{
    if (g->given & GEN_HAS_MAX_TOKENS)
        return;
    int64_t most = engine_fit_group(g->ks->config.engine, g->build->ids.n,
                                    PLANTED(FIT_ONE) ? 1 : g->n_branches);
    if (most > 0 && most < g->options.max_tokens)
        g->options.max_tokens = most;
}

static int submit(struct generation *g, struct err *err)
{
    static const char *const prefixes[] = {
        [SUBMIT_TOO_LARGE] = "OOM", [SUBMIT_QUEUE_FULL] = "QUEUEFULL", [SUBMIT_CONTEXT] = "ERR"};
    const struct build *build = g->build;
    struct cache_namespace ns = namespace_of(g->ks, g->user);
    struct err why;
    if (resume_check(g, err) < 0)
        return -1;
    fit_max_tokens(g);
    if (g->key->lineage == NULL)
        g->key->lineage = lineage_new();
    if (g->resumes &&
        logprobs_are_of(prompt_logprobs_of(&g->branches[0]), build->ids.data, build->ids.n))
        g->options.prompt_logprobs = false; /* they stand in the entry that goes on */
    struct gen_start *starts = resume_starts(g);
    struct gen_options options = g->options;
    options.lineage = g->key->lineage;
    options.starts = starts;
    options.carry = (struct bytes){build->carry, (size_t)build->n_carry};
    enum submit_error refused =
        engine_submit(g->ks->config.engine, &ns, build->ids.data, build->ids.n, &options,
                      &generation_events, g, &g->gen, &why);
    xfree(starts);
    if (refused == SUBMIT_OK)
        return 0;
    return err_set(err, "%s %s", prefixes[refused], why.text);
}

static void start_pieces(struct generation *g)
{
    struct pieces *pieces = &g->key->pieces;
    bool have_gone = pieces->n_branches != g->n_branches;
    if (g->resumes)
        resume_pieces(g, have_gone);
    if (g->resumes && !have_gone)
        return; /* they began as they did */
    pieces->n_carry = g->build->n_carry;
    memcpy(pieces->carry, g->build->carry, sizeof pieces->carry);
}

/* Called when the build is done: from here on all is short. */
static void go(struct generation *g)
{
    struct err err;
    struct stream *s = g->key->stream;
    struct build *build = g->build;
    if (PLANTED(REFUSED_WRITES) && !g->resumes)
        generation_begin(g);
    int rc = build->failed ? err_set(&err, "%s", build->err.text) : submit(g, &err);
    if (rc < 0) {
        generation_refuse(g, err.text);
        return;
    }
    generation_begin(g);
    if (g->resumes)
        resume_take_out(g);
    build_install(build, s);
    g->opening = build->opening;
    build->opening = NULL;
    start_pieces(g);
    g->build = NULL;
    build_free(build);
}

static void run_job(struct job *job)
{
    build_run(LIST_ITEM(job, struct build, job));
}

/* The generation may have been stopped meanwhile: the build is then nobody's. */
static void job_is_done(struct job *job)
{
    struct build *build = LIST_ITEM(job, struct build, job);
    struct generation *g = build->owner;
    build->owner = NULL;
    if (g == NULL)
        build_free(build);
    else
        go(g);
}

/* Over a millisecond: for a job. */
static bool takes_long(const struct build *build)
{
    return build_bytes_to_tokenise(build) > JOB_BYTES || build->n > JOB_ENTRIES;
}

static void tokenise(struct generation *g, bool in_multi)
{
    struct build *build = g->build;
    struct jobs *jobs = g->ks->config.jobs;
    bool is_long = !build->failed && takes_long(build);
    if (jobs == NULL || !is_long) {
        build_run(build);
        go(g);
        return;
    }
    build->owner = g;
    build->job.run = run_job;
    build->job.done = job_is_done;
    jobs_submit(jobs, &build->job);
    if (in_multi)
        generation_begin(g);
}

/* ---- arrival -------------------------------------------------------------------------------- */

struct arrival {
    struct keyspace *ks;
    int32_t db;
    struct bytes name;
    const struct gen_request *request;
    struct gen_waiter *waiter;
    struct attempt *attempt; /* borrows */
    struct key *key;         /* NULL: there is none yet */
};

static void start(struct arrival *a, struct intake *intake, const struct end_group *resumed)
{
    struct err err;
    struct key *key = a->key ? a->key : keys_create(a->ks, a->db, a->name);
    struct generation *g = generation_new(key, a->attempt, a->request);
    g->prompt = intake->prompt;
    g->is_chat = intake->is_chat;
    if (resumed != NULL)
        resume_take(g, resumed);
    waiter_attach(g, a->waiter, a->request->block_ms);
    if (has_ids_left(key->stream, &err) < 0) {
        generation_refuse(g, err.text);
        return;
    }
    /* Prompt and ends: nothing else is written meanwhile. */
    if (!stream_reserve(key->stream, 1 + (size_t)g->n_branches)) {
        generation_refuse(g, "OOM no memory for more entries");
        return;
    }
    g->build =
        build_new(&a->ks->config, key->stream, resumed ? resumed->from : key->stream->n, g->prompt);
    if (g->build == NULL) {
        generation_refuse(g, "OOM no memory to walk the entries of the key");
        return;
    }
    g->build->is_chat = g->is_chat;
    tokenise(g, a->request->in_multi);
}

static void start_new(struct arrival *a)
{
    static const struct stream empty;
    struct intake intake = {0};
    struct err err;
    if (plan_prompt(a->ks, a->key ? a->key->stream : &empty, a->request, &intake, &err) < 0)
        waiter_answer_error(a->waiter, err.text);
    else
        start(a, &intake, NULL);
}

static void resume(struct arrival *a)
{
    const struct attempt *before = a->key->attempt;
    struct end_group ends;
    ASSERT(retry_ends(a->key, before->end_id, before->n_branches, &ends)); /* it was judged so */
    struct intake intake = {.is_chat = ends.ends[0]->is_chat};
    start(a, &intake, &ends);
}

static void attach(struct arrival *a)
{
    struct generation *g = a->key->generation;
    if (a->request->in_multi) {
        g->attempt->is_unowned = true; /* somebody counts on it without waiting */
        timer_stop(&a->ks->timers, &g->orphan);
        generation_begin(g);
    }
    if (a->waiter->wants_id && g->has_begun)
        waiter_answer_id(a->waiter, g->attempt->after);
    else
        waiter_attach(g, a->waiter, a->request->block_ms);
}

static void refuse_busy(struct arrival *a)
{
    struct err err;
    (void)key_refuse_busy(a->key, &err); /* it is */
    waiter_answer_error(a->waiter, err.text);
}

static void deliver(struct arrival *a)
{
    struct attempt *attempt = a->key->attempt;
    if (a->waiter->wants_id) {
        waiter_answer_id(a->waiter, attempt->after);
        return;
    }
    struct end_group ends;
    ASSERT(retry_ends(a->key, attempt->end_id, attempt->n_branches, &ends)); /* it was judged so */
    attempt_set_delivered(attempt);
    waiter_answer_end(a->waiter, a->key, &ends);
}

/* From the end entry that carries the ID, whoever was told of it before. */
static void replay(struct arrival *a)
{
    const struct replay *found = retry_find(a->key, a->attempt);
    if (a->waiter->wants_id) {
        waiter_answer_id(a->waiter, found->after);
        return;
    }
    struct end_group ends;
    ASSERT(retry_ends(a->key, found->end_id, found->n_ends, &ends)); /* they were found */
    if (a->key->attempt != NULL)
        attempt_note_read(a->key->attempt, ends.ends[0]);
    waiter_answer_end(a->waiter, a->key, &ends);
}

static void refuse_misused(struct arrival *a)
{
    struct err err;
    char id[STREAM_ID_TEXT], token[64];
    const struct replay *found = retry_find(a->key, a->attempt);
    struct end_group ends;
    ASSERT(retry_ends(a->key, found->end_id, found->n_ends, &ends)); /* they were found */
    stream_id_format(id, ends.ends[0]->id);
    (void)err_set(&err,
                  "ERR ID '%s' stands in entry %s for other arguments: every action needs an ID of "
                  "its own",
                  key_quoted(token, a->request->id), id);
    waiter_answer_error(a->waiter, err.text);
}

static void (*const on_verdict[])(struct arrival *a) = {
    [RETRY_NEW] = start_new,          [RETRY_ATTACH] = attach, [RETRY_BUSY] = refuse_busy,
    [RETRY_DELIVER] = deliver,        [RETRY_RESUME] = resume, [RETRY_REPLAY] = replay,
    [RETRY_MISUSED] = refuse_misused,
};

void keys_generate(struct keyspace *ks, int32_t db, struct bytes name,
                   const struct gen_request *request, struct gen_waiter *waiter)
{
    gen_waiter_init(waiter);
    waiter->ks = ks;
    waiter->with_info = request->with_info;
    waiter->is_list = request->given & GEN_HAS_LIST;
    waiter->wants_id = request->async || request->in_multi;
    if (ks->config.engine == NULL || ks->is_shutting_down) {
        waiter_answer_error(waiter, ks->is_shutting_down ? "ERR the server is shutting down"
                                                         : "ERR no model is loaded");
        return;
    }
    struct err err;
    if (check_size(&ks->config, request->prompt, &err) < 0) {
        waiter_answer_error(waiter, err.text);
        return;
    }
    struct arrival a = {.ks = ks, .db = db, .name = name, .request = request, .waiter = waiter};
    a.key = keys_lookup(ks, db, name);
    a.attempt = attempt_new(request->user, db, request);
    on_verdict[retry_judge(a.key, a.attempt)](&a);
    attempt_put(a.attempt);
}

/* ---- CANCEL, GENINFO, CACHE PROBE, shutting down -------------------------------------------- */

bool keys_cancel(struct keyspace *ks, int32_t db, struct bytes name)
{
    struct key *key = keys_lookup(ks, db, name);
    return key != NULL && key->generation != NULL &&
           generation_stop(key->generation, GEN_CANCELLED);
}

int32_t keys_n_generating(const struct keyspace *ks)
{
    return ks->n_generations;
}

struct gen_probe {
    struct keyspace *ks;
    struct cache_namespace ns;
    struct build *build;  /* owns */
    struct entry *prompt; /* owns */
};

struct gen_probe *gen_probe_begin(struct keyspace *ks, int32_t db, uint64_t user,
                                  struct bytes prompt, struct bytes role, struct bytes name,
                                  struct err *err)
{
    static const struct stream empty;
    struct key *key = name.data != NULL ? keys_find(ks, db, name) : NULL;
    const struct stream *s = key != NULL ? key->stream : &empty;
    struct gen_request request = {.prompt = prompt, .has_prompt = true, .role = role};
    struct intake intake = {0};
    if (ks->config.engine == NULL)
        return err_null(err, "ERR no model is loaded");
    if (check_size(&ks->config, prompt, err) < 0 || plan_prompt(ks, s, &request, &intake, err) < 0)
        return NULL;
    struct build *build = build_new(&ks->config, s, s->n, intake.prompt);
    if (build == NULL) {
        entry_put(intake.prompt);
        return err_null(err, "OOM no memory to walk the entries of the key");
    }
    build->is_chat = intake.is_chat;
    struct gen_probe *probe = xcalloc(1, sizeof *probe);
    *probe = (struct gen_probe){ks, namespace_of(ks, user), build, intake.prompt};
    return probe;
}

bool gen_probe_is_long(const struct gen_probe *probe)
{
    return !probe->build->failed && takes_long(probe->build);
}

void gen_probe_run(struct gen_probe *probe)
{
    build_run(probe->build);
}

int gen_probe_end(struct gen_probe *probe, int32_t *n_tokens, int32_t *n_cached, struct err *err)
{
    struct build *build = probe->build;
    int rc = build->failed ? err_set(err, "%s", build->err.text) : 0;
    if (rc == 0) {
        *n_tokens = build->ids.n;
        *n_cached =
            engine_probe(probe->ks->config.engine, &probe->ns, build->ids.data, build->ids.n);
    }
    build_free(build);
    entry_put(probe->prompt);
    xfree(probe);
    return rc;
}

void keyspace_shut_down(struct keyspace *ks)
{
    ks->is_shutting_down = true;
    while (!list_is_empty(&ks->generations))
        (void)generation_stop(LIST_ITEM(ks->generations.next, struct generation, node),
                              GEN_CANCELLED); /* or it had ended already: as well */
    while (waiters_serve_ready(ks, INT64_MAX) || watch_serve_ready(ks, INT64_MAX))
        continue;
}
