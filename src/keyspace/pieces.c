/* pieces.c - the live overlay: fragments of an answer that only XREAD sees.
 *
 * While a key generates, readers want its text as it comes, but a stream with an entry per token is
 * no conversation: MAXLEN 20 would drop prompts to keep fragments. So pieces stand beside the
 * stream. They have ids of the key's one sequence (stream.last_id counts them), so that one cursor
 * serves a reader for both, and keys_read merges the two in order of id.
 *
 *     stream   text 5-0 ........................ end 9-4
 *     pieces            9-1 "Hel"  9-2 "lo"  9-3 "!"
 *
 * One string a branch holds all its text; a piece is a range of it, and FORK AT needs just that
 * range. Pieces of several branches stand mixed, as they came. They live until the key's next
 * generation starts, or 60 s after the end: long enough for a reader between two polls. Main thread
 * only. */
#include "keyspace/keyspace.h"

#include "base/clock.h"
#include "base/mem.h"

static void hold_is_over(struct timer *timer)
{
    pieces_clear(LIST_ITEM(timer, struct key, pieces.hold));
}

/* Called after everything that may have changed what they hold. */
static void count_bytes(struct pieces *pieces)
{
    size_t n_bytes = (size_t)pieces->cap * sizeof *pieces->items;
    for (int32_t i = 0; i < pieces->n_branches; i++)
        n_bytes += sizeof *pieces->branches + pieces->branches[i].text.cap;
    mem_count(MEM_KEY, (ptrdiff_t)n_bytes - (ptrdiff_t)pieces->n_bytes);
    pieces->n_bytes = n_bytes;
}

/* Called when the key's next generation starts, when the hold is over, and when the key goes. */
void pieces_clear(struct key *key)
{
    struct pieces *pieces = &key->pieces;
    timer_stop(&key->ks->timers, &pieces->hold);
    mem_count(MEM_KEY, -(ptrdiff_t)pieces->n_bytes);
    for (int32_t i = 0; i < pieces->n_branches; i++) {
        str_free(&pieces->branches[i].text);
        entry_put(pieces->branches[i].end);
    }
    xfree(pieces->branches);
    xfree(pieces->items);
    *pieces = (struct pieces){0};
}

/* Called when a generation starts. */
void pieces_open(struct key *key, int32_t n_branches)
{
    struct pieces *pieces = &key->pieces;
    pieces_clear(key);
    pieces->branches = xcalloc((size_t)n_branches, sizeof *pieces->branches);
    pieces->n_branches = n_branches;
    count_bytes(pieces);
}

/* Called with text that is whole characters. A key without ids left shows no more pieces; the end
 * entry has its id from the 2^32 that were there when the GEN was accepted. */
void pieces_add(struct key *key, int32_t branch, struct bytes text)
{
    struct pieces *pieces = &key->pieces;
    struct str *all = &pieces->branches[branch].text;
    struct stream_id id;
    if (text.len == 0 || !keyspace_next_id(key->ks, key->stream, &id))
        return;
    if (pieces->n == pieces->cap) {
        pieces->cap = pieces->cap ? pieces->cap * 2 : 16;
        pieces->items = xrealloc(pieces->items, (size_t)pieces->cap * sizeof *pieces->items);
    }
    size_t at = all->len;
    str_append(all, text.data, text.len);
    pieces->items[pieces->n++] = (struct piece){id, branch, at, all->len};
    count_bytes(pieces);
    key->stream->last_id = id;
    watch_signal(key, id);
}

/* Called when the end entry of a branch stands. */
void pieces_close(struct key *key, int32_t branch, struct entry *end)
{
    struct pieces *pieces = &key->pieces;
    if (branch >= pieces->n_branches || pieces->branches[branch].end != NULL)
        return; /* one that was to resume was refused: they stay the old ones */
    pieces->branches[branch].end = entry_take(end);
}

/* Called behind the last end: from here on the pieces are kept for a while. */
void pieces_hold(struct key *key)
{
    struct pieces *pieces = &key->pieces;
    pieces->hold.fire = hold_is_over;
    timer_start(&key->ks->timers, &pieces->hold, clock_now_us() + KEYSPACE_MEMORY_US);
}

/* Index of the first piece with an id above `after`; n when there is none. */
int32_t pieces_above(const struct pieces *pieces, struct stream_id after)
{
    int32_t low = 0, high = pieces->n;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (stream_id_compare(pieces->items[middle].id, after) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct piece *pieces_find(const struct pieces *pieces, struct stream_id id)
{
    int32_t i = pieces_above(pieces, id) - 1;
    if (i < 0 || stream_id_compare(pieces->items[i].id, id) != 0)
        return NULL;
    return &pieces->items[i];
}
