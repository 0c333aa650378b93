/* cmd_fork.c - FORK: branch a conversation into others.
 *
 * Destinations stand from the second argument up to the first word that is an option, so none can be
 * called AT, BRANCH or REPLACE in any case; dispatch and COMMAND GETKEYS use the same finder. */
#include "keyspace/fork.h"

#include "server/command.h"
#include "server/server.h"

static bool is_reserved(struct bytes word)
{
    return bytes_equal_nocase(word, "at") || bytes_equal_nocase(word, "branch") ||
           bytes_equal_nocase(word, "replace");
}

/* Index behind the last destination. */
static int targets_end(const struct request *q)
{
    int i = 2;
    while (i < q->n_args && !is_reserved(q->args[i]))
        i++;
    return i;
}

static bool parse_branch(struct client *c, struct bytes text, struct fork_request *fork)
{
    int64_t value;
    if (!parse_i64(text, &value) || value < 0 || value >= ENGINE_MAX_BRANCHES) {
        reply_error(&c->reply, "ERR FORK BRANCH must be an integer from 0 to %d, not '%.*s'",
                    ENGINE_MAX_BRANCHES - 1,
                    (int)(text.len < REPLY_ECHO_MAX ? text.len : REPLY_ECHO_MAX), text.data);
        return false;
    }
    fork->has_branch = true;
    fork->branch = (int32_t)value;
    return true;
}

static bool parse(struct client *c, const struct request *q, struct fork_request *fork)
{
    int i = targets_end(q);
    fork->targets = q->args + 2;
    fork->n_targets = i - 2;
    if (fork->n_targets == 0) {
        reply_error(&c->reply, "ERR FORK needs a destination, and none is called AT, BRANCH or "
                               "REPLACE");
        return false;
    }
    for (; i < q->n_args; i++) {
        bool has_value = i + 1 < q->n_args && !fork->has_at && !fork->has_branch;
        if (bytes_equal_nocase(q->args[i], "replace") && !fork->replace) {
            fork->replace = true;
        } else if (bytes_equal_nocase(q->args[i], "branch") && has_value) {
            if (!parse_branch(c, q->args[++i], fork))
                return false;
        } else if (bytes_equal_nocase(q->args[i], "at") && has_value) {
            fork->has_at = true;
            if (!stream_id_parse(q->args[++i], 0, &fork->at)) {
                reply_error(&c->reply,
                            "ERR Invalid stream ID specified as stream command argument");
                return false;
            }
        } else {
            reply_syntax_error(&c->reply);
            return false;
        }
    }
    return true;
}

static void run_fork(struct client *c, const struct request *q)
{
    struct fork_request fork = {.source = q->args[1], .source_db = c->db, .target_db = c->db};
    struct err err;
    if (!parse(c, q, &fork))
        return;
    int32_t n = keys_fork(c->server->keys, &fork, &err);
    if (n < 0)
        reply_err(&c->reply, &err);
    else
        reply_int(&c->reply, n);
}

static bool find_keys(const struct request *q, struct key_positions *positions)
{
    int end = targets_end(q);
    for (int i = 1; i < end; i++)
        key_positions_add(positions, i);
    return end > 2;
}

// clang-format off
const struct command cmd_fork_table[] = {
    {.name = "fork", .arity = -3, .flags = CMD_WRITE | CMD_DENYOOM | CMD_MOVABLE_KEYS,
     .first_key = 1, .last_key = 2, .key_step = 1, .key_use = "RO access|OW update",
     .categories = "stream",
     .group = "generation", .since = "0.1.0",
     .complexity = "O(N) with N being the number of entries, for each destination",
     .summary = "Branches a conversation without copying or computing anything.",
     .syntax = "source:key destination:key... [<where: AT entry-id|BRANCH i:integer>] [REPLACE]",
     .run = run_fork, .keys = find_keys},
    {.name = NULL},
};
// clang-format on
