/* cmd_gen.c - GEN, CANCEL, GENINFO: the replies of generations.
 *
 * GEN parses its options (gen_options.c), hands the request to the keyspace and waits through a
 * gen_waiter: the answer comes inside the call or later, in one of five kinds, each written in one
 * place. A client that is gone leaves; the generation runs on by its own rules. */
#include "keyspace/generate.h"
#include "server/command.h"
#include "server/gen_options.h"
#include "server/server.h"
#include "server/stream_reply.h"

/* They stand in the key in the order in which the branches ended. */
static void refuse_overlong(struct reply *r, const struct gen_answer *answer)
{
    char first[STREAM_ID_TEXT];
    struct stream_id from = answer->ends[0]->id;
    for (int32_t i = 1; i < answer->n_ends; i++)
        if (stream_id_compare(answer->ends[i]->id, from) < 0)
            from = answer->ends[i]->id;
    stream_id_format(first, from);
    reply_error(r,
                "ERR the answer is over client-output-buffer-limit (%zu bytes), read its %d end "
                "entries from %s on with XRANGE and COUNT",
                r->limit, answer->n_ends, first);
}

/* One end entry, or with N and BEAM an array of them. */
static void reply_ends(struct client *c, const struct gen_answer *answer)
{
    struct reply *r = &c->reply;
    if (c->waiter.is_list)
        reply_array(r, answer->n_ends);
    for (int32_t i = 0; i < answer->n_ends; i++) {
        struct read_entry entry = read_entry_of(answer->ends[i]);
        if (answer->kind == GEN_ANSWER_ENTRY)
            reply_entry(r, &entry);
        else
            reply_bulk(r, answer->ends[i]->text);
    }
    if (reply_drop_overlong(r))
        refuse_overlong(r, answer);
}

static void reply_answer(struct client *c, const struct gen_answer *answer)
{
    struct reply *r = &c->reply;
    switch (answer->kind) {
    case GEN_ANSWER_ID:
        reply_stream_id(r, answer->id);
        break;
    case GEN_ANSWER_TEXT:
    case GEN_ANSWER_ENTRY:
        reply_ends(c, answer);
        break;
    case GEN_ANSWER_ERROR:
        reply_error_bytes(r, bytes_from(answer->error));
        break;
    case GEN_ANSWER_TIMEOUT:
        if (c->blocked_info)
            reply_null_array(r);
        else
            reply_null(r);
        break;
    }
}

/* Inside keys_generate the command's own reply is open; later it gets one of its own. */
static void on_answer(struct gen_waiter *waiter, const struct gen_answer *answer)
{
    struct client *c = waiter->owner;
    if (c->blocked != BLOCK_GEN) {
        reply_answer(c, answer);
        return;
    }
    client_answer_begin(c);
    reply_answer(c, answer);
    client_answer_end(c);
    client_unblock(c);
}

static void run_gen(struct client *c, const struct request *q)
{
    struct server *s = c->server;
    struct gen_parse p = {0};
    struct err err;
    if (!s->engine) {
        reply_error(&c->reply, "ERR no model is loaded: start the server with --model FILE.gguf");
        return;
    }
    if (gen_parse(&p, q, s->served.runner->info.n_vocab, &err) < 0) {
        reply_err(&c->reply, &err);
        gen_parse_free(&p);
        return;
    }
    p.request.user = c->user;
    p.request.in_multi = c->in_exec;
    c->waiter.answer = on_answer;
    c->waiter.owner = c;
    c->blocked_info = p.request.with_info || (p.request.given & GEN_HAS_LIST);
    keys_generate(s->keys, c->db, q->args[1], &p.request, &c->waiter);
    if (gen_waiter_is_waiting(&c->waiter))
        c->blocked = BLOCK_GEN;
    gen_parse_free(&p);
}

static void run_cancel(struct client *c, const struct request *q)
{
    int64_t n = 0;
    for (int i = 1; i < q->n_args; i++)
        n += keys_cancel(c->server->keys, c->db, q->args[i]);
    reply_int(&c->reply, n);
}

static void run_geninfo(struct client *c, const struct request *q)
{
    struct gen_info g;
    keys_gen_info(c->server->keys, c->db, q->args[1], &g);
    const struct {
        const char *name, *text; /* text NULL: it is a number */
        int64_t number;
    } rows[] = {
        {"state", g.state, 0},
        {"place", NULL, g.place},
        {"prompt", NULL, g.prompt},
        {"cached", NULL, g.cached},
        {"computed", NULL, g.computed},
        {"generated", NULL, g.generated},
        {"blocks", NULL, g.blocks},
        {"shared-blocks", NULL, g.shared_blocks},
        {"finish", g.finish, 0},
        {"queued-ms", NULL, g.queued_ms},
        {"prefill-ms", NULL, g.prefill_ms},
        {"decode-ms", NULL, g.decode_ms},
        {"own-blocks", NULL, g.own_blocks},
        {"cached-blocks", NULL, g.cached_blocks},
        {"swapped-blocks", NULL, g.swapped_blocks},
    };
    enum { N_ROWS = sizeof rows / sizeof *rows };
    reply_map(&c->reply, N_ROWS);
    for (int i = 0; i < N_ROWS; i++) {
        reply_text(&c->reply, rows[i].name);
        if (rows[i].text)
            reply_text(&c->reply, rows[i].text);
        else
            reply_int(&c->reply, rows[i].number);
    }
}

// clang-format off
const struct command cmd_gen_table[] = {
    {.name = "cancel", .arity = -2, .flags = CMD_WRITE | CMD_FAST | CMD_CONTROL, .first_key = 1,
     .last_key = -1, .key_step = 1, .categories = "stream",
     .tips = "request_policy:multi_shard response_policy:agg_sum",
     .group = "generation", .since = "0.1.0", .complexity = "O(N) where N is the number of keys",
     .summary = "Ends queued and running generations; the partial text stays.",
     .syntax = "key:key...", .run = run_cancel},
    {.name = "gen", .arity = -2, .flags = CMD_WRITE | CMD_DENYOOM | CMD_BLOCKING, .first_key = 1,
     .last_key = 1, .key_step = 1, .categories = "stream", .tips = "nondeterministic_output",
     .group = "generation", .since = "0.1.0",
     .complexity = "O(N) with N being the tokens computed and generated",
     .summary = "Lets the model continue a conversation and returns the text.",
     .syntax = GEN_SYNTAX, .private_from = 2, .run = run_gen},
    {.name = "geninfo", .arity = 2, .flags = CMD_READONLY, .first_key = 1, .last_key = 1,
     .key_step = 1, .categories = "stream", .tips = "nondeterministic_output",
     .group = "generation", .since = "0.1.0", .complexity = "O(N) with N being the blocks that the conversation has",
     .summary = "Returns the state and the counters of a key's generation.",
     .syntax = "key:key", .run = run_geninfo},
    {.name = NULL},
};
// clang-format on
