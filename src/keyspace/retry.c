/* retry.c - clients resend: on timeouts (some eleven times), on dropped sockets, after a crash.
 *
 * A generation costs seconds of a device, so the same GEN must find the one that runs, or the
 * answer that nobody has heard yet, and never start another. What it gets depends on the key alone:
 *
 *     state of the key                                       same GEN            any other GEN
 *     ------------------------------------------------------ ------------------- -------------
 *     tokenising, queued or running                          attach; ASYNC: id   -BUSYKEY
 *     ended `orphaned`, its entry is the last                resume              new
 *     ended, nobody was told, its entry is the last          deliver; ASYNC: id  new
 *     ended and told, or something stands after it, or idle  new                 new
 *       with ID, and the entry that carries it stands        replay; ASYNC: id   error: names it
 *       with ID, and that entry is gone, or there was none   new                 new
 *
 * With N or BEAM "its entry" is the end entries of all branches: they must all stand, and the last
 * thing in the key is one of them; the state of the whole is `orphaned` when a branch is. Then those
 * that had finished keep their entries, the others go on from theirs; beams, which tell the same
 * story again, are searched anew. Told is who was told of any of them.
 *
 * The first line that fits counts: an orphan with ID is resumed while its entry is the last, and
 * answered from there (CANCELLED) when something stands after it. "Any other GEN" with another ID,
 * or without, is what the lines above say. An ID is the client's word for "this is one action", for
 * clients that keep their socket after their own timeout and so look as if they had been told, and
 * for retries hours later. Where it counts: MULTI answers with the id to read after, BLOCK never
 * waits, WITHINFO and ASYNC are argument bytes like any; XDEL or XTRIM of the entry, DEL, expiry and
 * eviction of the key make it new; RENAME and MOVE end its scope, as does another user; a child of
 * FORK or COPY shows the field `id` and has no replay.
 *
 * "Told": a waiter was answered with the end, or an XREAD, XRANGE or XREVRANGE returned it. "The
 * last" leaves entries out that the model ignores. The identity names the key, so a child of FORK
 * or a renamed key does not answer for its source. Digests only say no: bytes decide. But for
 * replays: there the ID itself is compared, byte by byte, with the entry's field, and two digests
 * stand for the other arguments, which may be a prompt of megabytes. Who forged a collision would
 * be told his own earlier answer. Main thread only. */
#include "keyspace/retry.h"

#include <string.h>
#include "base/mem.h"
#include "base/plant.h"
#include "base/table.h"
#include "keyspace/generation.h"

/* The arguments may be a prompt of megabytes, and stay until somebody was told. */
static void identity_free(struct attempt *attempt)
{
    mem_count(MEM_KEY, -(ptrdiff_t)attempt->identity.cap);
    str_free(&attempt->identity);
}

static void put_counted(struct str *out, struct bytes bytes)
{
    uint64_t len = bytes.len; /* counted, so that "a" "bc" is not "ab" "c" */
    str_append(out, &len, sizeof len);
    str_append(out, bytes.data, bytes.len);
}

/* The seeds only make the two digests of the arguments independent of each other. */
static void identify_replay(struct attempt *attempt, uint64_t user, int32_t db,
                            const struct gen_request *request)
{
    struct str scope = {0};
    str_append(&attempt->token, request->id.data, request->id.len);
    str_append(&scope, &user, sizeof user);
    str_append(&scope, &db, sizeof db);
    put_counted(&scope, request->args[0]);
    put_counted(&scope, request->id);
    attempt->replay.scope = hash_bytes(scope.data, scope.len, 0);
    attempt->replay.args[0] = attempt->digest;
    attempt->replay.args[1] = hash_bytes(attempt->identity.data, attempt->identity.len, 1);
    str_free(&scope);
}

struct attempt *attempt_new(uint64_t user, int32_t db, const struct gen_request *request)
{
    struct attempt *attempt = xcalloc(1, sizeof *attempt);
    struct str *identity = &attempt->identity;
    attempt->refs = 1;
    attempt->n_branches = request->options.n_branches > 1 ? request->options.n_branches : 1;
    str_append(identity, &user, sizeof user);
    str_append(identity, &db, sizeof db);
    for (int32_t i = 0; i < request->n_args; i++) {
        bool is_block =
            request->block_arg > 0 && (i == request->block_arg || i == request->block_arg + 1);
        if (!is_block)
            put_counted(identity, request->args[i]);
    }
    mem_count(MEM_KEY, (ptrdiff_t)identity->cap);
    attempt->digest = hash_bytes(identity->data, identity->len, 0);
    attempt->is_unowned = request->async || request->in_multi;
    if (request->id.data != NULL)
        identify_replay(attempt, user, db, request);
    return attempt;
}

struct attempt *attempt_take(struct attempt *attempt)
{
    attempt->refs++;
    return attempt;
}

void attempt_put(struct attempt *attempt)
{
    if (attempt == NULL || --attempt->refs > 0)
        return;
    ASSERT(attempt->refs == 0);
    identity_free(attempt);
    str_free(&attempt->token);
    xfree(attempt);
}

static bool is_same(const struct attempt *a, const struct attempt *b)
{
    return a->digest == b->digest && bytes_equal(bytes_of(&a->identity), bytes_of(&b->identity));
}

/* From here on every GEN is new, unless an orphan is to be resumed: the arguments, a whole prompt
 * among them, need not be kept. */
void attempt_set_delivered(struct attempt *attempt)
{
    ASSERT(attempt->finish != GEN_NONE);
    attempt->is_delivered = true;
    if (attempt->finish != GEN_ORPHANED)
        identity_free(attempt);
}

void attempt_note_read(struct attempt *attempt, const struct entry *end)
{
    if (PLANTED(READ_UNHEARD) || stream_id_compare(attempt->group, end->group) != 0)
        return;
    if (PLANTED(READ_FIRST) && end->branch > 0)
        return;
    if (attempt->finish != GEN_NONE)
        attempt_set_delivered(attempt);
    else
        attempt->is_read = !PLANTED(READ_EARLY);
}

void attempt_end(struct attempt *attempt, struct stream_id end_id, enum gen_finish finish)
{
    attempt->end_id = end_id;
    attempt->finish = finish;
    if (attempt->is_read)
        attempt_set_delivered(attempt);
}

/* ---- ID ------------------------------------------------------------------------------------- */

bool retry_ends(const struct key *key, struct stream_id end_id, int32_t n, struct end_group *group)
{
    int64_t at = stream_index(key->stream, end_id);
    if (at < 0)
        return false;
    group_at(key->stream, (size_t)at, group);
    return group->n == n || PLANTED(ENDS_PARTLY);
}

static bool stands(const struct key *key, const struct replay *replay, struct end_group *group)
{
    return retry_ends(key, replay->end_id, replay->n_ends, group);
}

static ptrdiff_t replays_bytes(const struct key *key)
{
    return (ptrdiff_t)((size_t)key->replays_cap * sizeof *key->replays);
}

/* Replays whose entries have gone make room for new ones; the array grows when that is not half of
 * it, so that the next look at all of them is far. */
static void make_room(struct key *key)
{
    struct end_group group;
    int32_t n = 0;
    for (int32_t i = 0; i < key->n_replays; i++)
        if (stands(key, &key->replays[i], &group))
            key->replays[n++] = key->replays[i];
    key->n_replays = n;
    if (n < key->replays_cap / 2)
        return;
    ptrdiff_t before = replays_bytes(key);
    key->replays_cap = key->replays_cap ? key->replays_cap * 2 : 4;
    key->replays = xrealloc(key->replays, (size_t)key->replays_cap * sizeof *key->replays);
    mem_count(MEM_KEY, replays_bytes(key) - before);
}

void retry_forget(struct key *key)
{
    mem_count(MEM_KEY, -replays_bytes(key));
    xfree(key->replays);
    key->replays = NULL;
    key->n_replays = key->replays_cap = 0;
}

void retry_keep(struct key *key, const struct attempt *attempt)
{
    if (attempt->token.len == 0)
        return;
    if (key->n_replays == key->replays_cap)
        make_room(key);
    struct replay *replay = &key->replays[key->n_replays++];
    *replay = attempt->replay;
    replay->end_id = attempt->end_id;
    replay->n_ends = attempt->n_branches;
    replay->after = attempt->after;
}

/* The newest first: it is the one that is asked for again. */
const struct replay *retry_find(const struct key *key, const struct attempt *attempt)
{
    struct end_group group;
    for (int32_t i = key->n_replays - 1; i >= 0 && attempt->token.len > 0; i--) {
        const struct replay *replay = &key->replays[i];
        if (replay->scope == attempt->replay.scope && stands(key, replay, &group) &&
            bytes_equal(entry_field(group.ends[0], "id"), bytes_of(&attempt->token)))
            return replay;
    }
    return NULL;
}

static enum retry_verdict judge_id(const struct key *key, const struct attempt *attempt)
{
    const struct replay *replay = retry_find(key, attempt);
    if (replay == NULL || PLANTED(REPLAY_NEVER))
        return RETRY_NEW;
    bool is_same =
        replay->args[0] == attempt->replay.args[0] && replay->args[1] == attempt->replay.args[1];
    return is_same || PLANTED(REPLAY_ANY) ? RETRY_REPLAY : RETRY_MISUSED;
}

/* ---- the table above ------------------------------------------------------------------------ */

static bool is_last(const struct key *key, const struct attempt *before)
{
    struct end_group group;
    int64_t last = stream_previous_known(key->stream, key->stream->n);
    return last >= 0 &&
           stream_id_compare(stream_entry(key->stream, (size_t)last)->id, before->end_id) == 0 &&
           retry_ends(key, before->end_id, before->n_branches, &group);
}

enum retry_verdict retry_judge(const struct key *key, const struct attempt *attempt)
{
    if (key != NULL && key->generation != NULL)
        return is_same(key->generation->attempt, attempt) || PLANTED(ATTACH_ANY) ? RETRY_ATTACH
                                                                                 : RETRY_BUSY;
    if (key == NULL)
        return RETRY_NEW;
    const struct attempt *before = key->attempt;
    if (before == NULL || !is_same(before, attempt) || !is_last(key, before))
        return judge_id(key, attempt);
    if (before->finish == GEN_ORPHANED)
        return RETRY_RESUME;
    return before->is_delivered || PLANTED(DELIVER_NEVER) ? judge_id(key, attempt) : RETRY_DELIVER;
}
