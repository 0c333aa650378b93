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
 *
 * "Told": a waiter was answered with the end, or an XREAD, XRANGE or XREVRANGE returned it. "The
 * last" leaves entries out that the model ignores. The identity names the key, so a child of FORK
 * or a renamed key does not answer for its source. Digests only say no: bytes decide. Main thread
 * only. */
#include "keyspace/retry.h"

#include <string.h>
#include "base/mem.h"
#include "base/plant.h"
#include "base/table.h"
#include "keyspace/generation.h"

static void put_counted(struct str *out, struct bytes bytes)
{
    uint64_t len = bytes.len; /* counted, so that "a" "bc" is not "ab" "c" */
    str_append(out, &len, sizeof len);
    str_append(out, bytes.data, bytes.len);
}

struct attempt *attempt_new(uint64_t user, int32_t db, const struct gen_request *request)
{
    struct attempt *attempt = xcalloc(1, sizeof *attempt);
    struct str *identity = &attempt->identity;
    attempt->refs = 1;
    str_append(identity, &user, sizeof user);
    str_append(identity, &db, sizeof db);
    for (int32_t i = 0; i < request->n_args; i++) {
        bool is_block =
            request->block_arg > 0 && (i == request->block_arg || i == request->block_arg + 1);
        if (!is_block)
            put_counted(identity, request->args[i]);
    }
    attempt->digest = hash_bytes(identity->data, identity->len, 0);
    attempt->is_unowned = request->async || request->in_multi;
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
    str_free(&attempt->identity);
    xfree(attempt);
}

bool attempt_equal(const struct attempt *a, const struct attempt *b)
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
        str_free(&attempt->identity);
}

void attempt_note_read(struct attempt *attempt, struct stream_id id)
{
    if (PLANTED(READ_UNHEARD))
        return;
    if (attempt->finish != GEN_NONE && stream_id_compare(attempt->end_id, id) == 0)
        attempt_set_delivered(attempt);
}

enum retry_verdict retry_judge(const struct key *key, const struct attempt *attempt)
{
    if (key != NULL && key->generation != NULL)
        return attempt_equal(key->generation->attempt, attempt) || PLANTED(ATTACH_ANY)
                   ? RETRY_ATTACH
                   : RETRY_BUSY;
    if (key == NULL || key->attempt == NULL || !attempt_equal(key->attempt, attempt))
        return RETRY_NEW;
    int64_t last = key_last_known(key);
    if (last < 0 ||
        stream_id_compare(stream_entry(key->stream, (size_t)last)->id, key->attempt->end_id) != 0)
        return RETRY_NEW;
    if (key->attempt->finish == GEN_ORPHANED)
        return RETRY_RESUME;
    return key->attempt->is_delivered || PLANTED(DELIVER_NEVER) ? RETRY_NEW : RETRY_DELIVER;
}
