/* keys_fixture.h - a keyspace over the real engine and cache, with a runner that says what a test
 * wants: the bytes of `says`, one token each, then the id that ends a turn. Time is frozen and moved by
 * the test; nothing sleeps and no thread runs. */
#ifndef TESTS_UNIT_KEYS_FIXTURE_H
#define TESTS_UNIT_KEYS_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "keyspace/conversation.h"
#include "keyspace/fork.h"
#include "keyspace/generate.h"
#include "keyspace/keys.h"
#include "keyspace/watch.h"

enum { FX_CONTEXT = 4096 }; /* tokens; a job tokenises from 2,048 bytes on */
enum { FX_BRANCHES = 8 };
enum { IM_START = 256, IM_END, END_OF_TEXT, FX_VOCAB };
#define FX_WALL_MS 1700000000000 /* where the frozen wall clock starts */

struct fixture {
    struct keyspace *ks;
    struct engine *engine;
    struct tokenizer *tokenizer;
    struct jobs *jobs;
    struct runner runner;
    const char *says; /* what is still to be said, NUL-terminated */
    const char
        *branch_says[FX_BRANCHES]; /* the same for a branch of a group; NULL: as the others */
    bool never_ends;               /* after that: "x" for ever */
    bool fails;                    /* the next steps fail */
    int32_t (*draws)(const struct plan_sample *sample); /* says it instead; NULL: nobody */
    int32_t n_samples;
    struct chosen samples[FX_BRANCHES];
    bool is_running;
};

static inline void fx_launch(struct runner *r, const struct plan *plan)
{
    struct fixture *fx = LIST_ITEM(r, struct fixture, runner);
    fx->is_running = true;
    fx->n_samples = plan->n_samples;
    for (int32_t i = 0; i < plan->n_samples; i++) {
        int32_t branch = plan->samples[i].branch;
        const char **says = fx->branch_says[branch] ? &fx->branch_says[branch] : &fx->says;
        int32_t id = **says ? (unsigned char)*(*says)++ : fx->never_ends ? 'x' : IM_END;
        fx->samples[i] = (struct chosen){.id = fx->draws ? fx->draws(&plan->samples[i]) : id};
    }
}

static inline bool fx_poll(struct runner *r, struct runner_done *done)
{
    struct fixture *fx = LIST_ITEM(r, struct fixture, runner);
    if (!fx->is_running)
        return false;
    fx->is_running = false;
    if (fx->fails) {
        *done = (struct runner_done){.failed = true, .error = "the device is gone"};
        return true;
    }
    *done = (struct runner_done){.n_samples = fx->n_samples, .samples = fx->samples};
    return true;
}

static inline void fx_close(struct runner *r)
{
}

static inline struct tokenizer *fx_tokenizer(void)
{
    static struct bytes texts[FX_VOCAB];
    static char singles[256], kinds[FX_VOCAB];
    struct err err;
    for (int i = 0; i < 256; i++) {
        singles[i] = (char)i;
        texts[i] = (struct bytes){singles + i, 1};
    }
    memset(kinds, 'n', 256);
    texts[IM_START] = BYTES("<|im_start|>");
    texts[IM_END] = BYTES("<|im_end|>");
    texts[END_OF_TEXT] = BYTES("<|endoftext|>");
    memcpy(kinds + IM_START, "cee", 3);
    struct tokenizer *t = tokenizer_build(
        &(struct tokenizer_spec){
            .n_vocab = FX_VOCAB, .texts = texts, .kinds = kinds, .pre = "gpt-2", .bos = -1},
        &err);
    if (t == NULL)
        fail_msg("%s", err.text);
    return t;
}

static inline void fx_open_with(struct fixture *fx, const char *says, int32_t n_blocks)
{
    struct err err;
    *fx = (struct fixture){.says = says};
    clock_freeze(FX_WALL_MS, 1000000);
    clock_tick();
    fx->tokenizer = fx_tokenizer();
    fx->runner = (struct runner){.fd = -1, .launch = fx_launch, .poll = fx_poll, .close = fx_close};
    fx->runner.info =
        (struct runner_info){.n_vocab = FX_VOCAB,
                             .n_context = FX_CONTEXT,
                             .block_size = 16,
                             .n_blocks = n_blocks,
                             .limits = engine_plan_limits(512, 8, FX_CONTEXT, FX_VOCAB, 16, 2)};
    struct engine_config ec = {.runner = &fx->runner,
                               .tokenizer = fx->tokenizer,
                               .max_batch_tokens = 512,
                               .max_chunk = 512,
                               .max_running = 8,
                               .max_queue = 8,
                               .tell_us = 150}; /* without end while time stands still */
    if ((fx->engine = engine_new(&ec, &err)) == NULL)
        fail_msg("%s", err.text);
    fx->jobs = jobs_new(0);
    struct keyspace_config kc = keyspace_config_default();
    kc.engine = fx->engine;
    kc.jobs = fx->jobs;
    kc.tokenizer = fx->tokenizer;
    kc.chat = chat_find("chatml", &err);
    kc.n_context = FX_CONTEXT;
    kc.piece_interval_ms = 0;
    fx->ks = keyspace_new(&kc);
}

static inline void fx_open(struct fixture *fx, const char *says)
{
    fx_open_with(fx, says, 512);
}

static inline void fx_audit(struct fixture *fx)
{
    struct err err;
    if (engine_audit(fx->engine, &err) < 0)
        fail_msg("%s", err.text);
}

static inline void fx_close_all(struct fixture *fx)
{
    keyspace_shut_down(fx->ks);
    fx_audit(fx);
    keyspace_free(fx->ks);
    jobs_free(fx->jobs);
    engine_free(fx->engine);
    tokenizer_free(fx->tokenizer);
}

/* One turn of the loop, as the server's. */
static inline void fx_turn(struct fixture *fx)
{
    clock_tick();
    (void)jobs_collect(fx->jobs);
    (void)engine_turn(fx->engine);
    (void)keyspace_turn(fx->ks);
    fx_audit(fx);
}

static inline void fx_turns(struct fixture *fx, int n)
{
    while (n-- > 0)
        fx_turn(fx);
}

static inline void fx_advance(struct fixture *fx, int64_t ms)
{
    clock_advance_ms(ms);
    fx_turn(fx);
}

/* Turns until nothing generates. */
static inline void fx_finish(struct fixture *fx)
{
    for (int i = 0; i < 3000 && keys_n_generating(fx->ks) > 0; i++)
        fx_turn(fx);
    assert_int_equal(keys_n_generating(fx->ks), 0);
    fx_turn(fx);
}

/* ---- a client that waits for a GEN ---------------------------------------------------------- */

struct client {
    struct gen_waiter waiter;
    int n_answers;
    enum gen_answer_kind kind;
    struct stream_id id;
    char text[512]; /* text, error, or the end entry's text; of several branches joined by '|' */
    char finish[128];
    bool is_list;
    int32_t n_ends;
};

static inline void client_answer(struct gen_waiter *waiter, const struct gen_answer *a)
{
    struct client *c = LIST_ITEM(waiter, struct client, waiter);
    struct str text = {0}, finish = {0};
    c->n_answers++;
    c->kind = a->kind;
    c->id = a->id;
    c->n_ends = a->n_ends;
    c->is_list = waiter->is_list;
    for (int32_t i = 0; i < a->n_ends; i++) {
        struct bytes name = entry_field(a->ends[i], "finish");
        str_append(&text, "|", i > 0);
        str_append(&text, a->ends[i]->text.data, a->ends[i]->text.len);
        str_append(&finish, "|", i > 0);
        str_append(&finish, name.data, name.len);
    }
    if (a->kind == GEN_ANSWER_ERROR)
        str_append_str(&text, a->error);
    snprintf(c->text, sizeof c->text, "%s", text.data ? text.data : "");
    snprintf(c->finish, sizeof c->finish, "%s", finish.data ? finish.data : "");
    str_free(&text);
    str_free(&finish);
}

/* GEN key prompt and what options() sets. */
struct gen_args {
    const char *key, *prompt, *role;
    bool async, with_info, in_multi, ids, logprobs;
    int64_t block_ms, deadline_ms, max_tokens;
    int32_t n; /* N; 0: not given */
    const char *stop;
    uint64_t user;
    size_t prompt_len; /* 0: strlen */
    const char *extra; /* one more argument that makes it another request */
    const char *id;    /* ID */
};

/* n times "a", each a token; good until the next call. */
static inline const char *fx_long(size_t n)
{
    static char text[2 * FX_CONTEXT];
    assert_true(n < sizeof text);
    memset(text, 'a', n);
    text[n] = '\0';
    return text;
}

static inline void fx_gen(struct fixture *fx, struct client *c, struct gen_args a)
{
    struct bytes args[14], stop = bytes_from(a.stop ? a.stop : "");
    int32_t n = 0, block = 0;
    struct gen_request r = {.options = gen_options_default()};
    args[n++] = bytes_from(a.key);
    if (a.prompt != NULL)
        args[n++] = r.prompt =
            (struct bytes){a.prompt, a.prompt_len ? a.prompt_len : strlen(a.prompt)};
    if (a.role != NULL)
        args[n++] = r.role = bytes_from(a.role);
    if (a.async)
        args[n++] = BYTES("ASYNC");
    if (a.extra != NULL)
        args[n++] = bytes_from(a.extra);
    if (a.logprobs)
        args[n++] = BYTES("LOGPROBS");
    if (a.id != NULL) {
        args[n++] = BYTES("ID");
        args[n++] = r.id = bytes_from(a.id);
    }
    if (a.n > 0) {
        static char number[12];
        snprintf(number, sizeof number, "%d", a.n);
        args[n++] = BYTES("N");
        args[n++] = bytes_from(number);
        r.options.n_branches = a.n;
        r.given |= GEN_HAS_N;
    }
    if (a.with_info)
        args[n++] = BYTES("WITHINFO");
    if (a.block_ms > 0) {
        block = n;
        args[n++] = BYTES("BLOCK");
        args[n++] = BYTES("4000"); /* its value makes no other request */
    }
    r.user = a.user;
    r.has_prompt = a.prompt != NULL;
    r.ids = a.ids;
    r.async = a.async;
    r.with_info = a.with_info;
    r.in_multi = a.in_multi;
    r.block_ms = a.block_ms;
    r.deadline_ms = a.deadline_ms;
    r.args = args;
    r.n_args = n;
    r.block_arg = block;
    if (a.max_tokens > 0) {
        r.options.max_tokens = a.max_tokens;
        r.given |= GEN_HAS_MAX_TOKENS;
    }
    if (a.logprobs) {
        r.options.logprobs = true; /* none beside each: the fixture's model knows no others */
        r.given |= GEN_HAS_LOGPROBS;
    }
    if (a.stop != NULL) {
        r.options.stops = &stop;
        r.options.n_stops = 1;
    }
    memset(c, 0, sizeof *c);
    c->waiter.answer = client_answer;
    keys_generate(fx->ks, 0, bytes_from(a.key), &r, &c->waiter);
}

/* CACHE PROBE of raw text, without a job; key NULL: as on an empty one. */
static inline int fx_probe(struct fixture *fx, uint64_t user, const char *prompt, const char *key,
                           int32_t *n_tokens, int32_t *n_cached, struct err *err)
{
    struct bytes none = {0}, name = key != NULL ? bytes_from(key) : none;
    struct gen_probe *probe = gen_probe_begin(fx->ks, 0, user, bytes_from(prompt), none, name, err);
    if (probe == NULL)
        return -1;
    gen_probe_run(probe);
    return gen_probe_end(probe, n_tokens, n_cached, err);
}

/* Its only client leaves, and it ends before the orphan clock does. */
static inline void fx_gen_alone(struct fixture *fx, struct gen_args args)
{
    struct client gone;
    fx_gen(fx, &gone, args);
    fx_turns(fx, 2);
    gen_waiter_leave(&gone.waiter);
    fx_finish(fx);
    assert_int_equal(gone.n_answers, 0);
}

static inline void expect_error(const struct client *c, const char *part)
{
    assert_int_equal(c->n_answers, 1);
    assert_int_equal(c->kind, GEN_ANSWER_ERROR);
    if (strstr(c->text, part) == NULL)
        fail_msg("'%s' is not in: %s", part, c->text);
}

static inline void expect_text(const struct client *c, const char *text)
{
    assert_int_equal(c->n_answers, 1);
    assert_int_equal(c->kind, GEN_ANSWER_TEXT);
    assert_string_equal(c->text, text);
}

/* ---- reading -------------------------------------------------------------------------------- */

struct seen {
    struct str text; /* "name=value;" of the first field of each entry, joined */
    struct stream_id last;
    int64_t n;
};

static inline void seen_entry(void *arg, const struct read_entry *entry)
{
    struct seen *seen = arg;
    int32_t at = bytes_equal(entry->fields[0], BYTES("role")) ? 2 : 0;
    str_append(&seen->text, entry->fields[at].data, entry->fields[at].len);
    str_append_char(&seen->text, '=');
    str_append(&seen->text, entry->fields[at + 1].data, entry->fields[at + 1].len);
    str_append_char(&seen->text, ';');
    seen->last = entry->id;
    seen->n++;
}

static inline void expect_seen(struct seen *seen, const char *expected)
{
    assert_string_equal(seen->text.data ? seen->text.data : "", expected);
    str_free(&seen->text);
    seen->n = 0;
}

static inline struct key *fx_key(struct fixture *fx, const char *name)
{
    return keys_find(fx->ks, 0, bytes_from(name));
}

/* XRANGE name - + */
static inline void expect_range(struct fixture *fx, const char *name, const char *expected)
{
    struct seen seen = {0};
    struct key *key = fx_key(fx, name);
    assert_non_null(key);
    keys_range(key, STREAM_ID_MIN, STREAM_ID_MAX, false, -1, seen_entry, &seen);
    expect_seen(&seen, expected);
}

/* XREAD STREAMS name after */
static inline struct stream_id expect_read(struct fixture *fx, const char *name,
                                           struct stream_id after, const char *expected)
{
    struct seen seen = {.last = after};
    struct key *key = fx_key(fx, name);
    assert_non_null(key);
    keys_read(key, after, 0, seen_entry, &seen);
    expect_seen(&seen, expected);
    return seen.last;
}

static inline struct bytes last_field(struct fixture *fx, const char *name, const char *field)
{
    struct stream *s = key_stream(fx_key(fx, name));
    return entry_field(stream_entry(s, s->n - 1), field);
}

static inline void expect_bytes(struct bytes got, const char *expected)
{
    assert_int_equal(got.len, strlen(expected));
    assert_memory_equal(got.data, expected, got.len);
}

static inline int fx_add(struct fixture *fx, const char *name, const char *const *fields,
                         int32_t n_fields, struct stream_id *id, struct err *err)
{
    struct bytes list[16];
    for (int32_t i = 0; i < 2 * n_fields; i++)
        list[i] = bytes_from(fields[i]);
    struct xadd add = {.id_kind = XADD_AUTO, .fields = list, .n_fields = n_fields};
    return keys_xadd(fx->ks, 0, bytes_from(name), &add, id, err);
}

static inline struct stream_id fx_text(struct fixture *fx, const char *name, const char *text)
{
    struct stream_id id;
    struct err err = {""};
    if (fx_add(fx, name, (const char *const[]){"text", text}, 1, &id, &err) != 1)
        fail_msg("%s", err.text);
    return id;
}

static inline void expect_state(struct fixture *fx, const char *name, const char *state,
                                const char *finish)
{
    struct gen_info info;
    keys_gen_info(fx->ks, 0, bytes_from(name), &info);
    assert_string_equal(info.state, state);
    assert_string_equal(info.finish, finish);
}

/* ---- a reader blocked in XREAD -------------------------------------------------------------- */

struct watcher {
    struct reader reader;
    struct fixture *fx;
    const char *name;
    struct stream_id after;
    struct str got; /* owns; as seen.text */
    int n_wakes, n_timeouts;
};

static inline void watcher_ready(struct reader *reader)
{
    struct watcher *w = reader->owner;
    struct seen seen = {0};
    struct key *key = fx_key(w->fx, w->name);
    w->n_wakes++;
    if (key == NULL || keys_read(key, w->after, 0, seen_entry, &seen) == 0)
        return;
    str_append(&w->got, seen.text.data, seen.text.len);
    str_free(&seen.text);
    reader_leave(reader);
}

static inline void watcher_timeout(struct reader *reader)
{
    ((struct watcher *)reader->owner)->n_timeouts++;
}

/* XREAD BLOCK ms STREAMS name after */
static inline void fx_block(struct fixture *fx, struct watcher *w, const char *name,
                            struct stream_id after, int64_t ms)
{
    struct bytes names = bytes_from(name);
    *w = (struct watcher){.fx = fx, .name = name, .after = after};
    w->reader = (struct reader){.ready = watcher_ready, .timeout = watcher_timeout, .owner = w};
    reader_wait(fx->ks, &w->reader, 0, &names, &after, 1, ms);
}

/* The ids that a GEN on this key would send to the model now, control tokens spelled. */
static inline void expect_sequence(struct fixture *fx, const char *name, bool is_chat,
                                   const char *expected)
{
    const struct stream *s = key_stream(fx_key(fx, name));
    struct build *build = build_new(keyspace_options(fx->ks), s, s->n, NULL);
    struct str text = {0};
    build->is_chat = is_chat;
    build_run(build);
    if (build->failed)
        fail_msg("%s", build->err.text);
    tokenizer_decode(fx->tokenizer, build->ids.data, build->ids.n, true, &text);
    assert_string_equal(text.data, expected);
    str_free(&text);
    build_free(build);
}

#endif
