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
 * One string holds all text; a piece is a range of it, and FORK AT needs just that range. They live
 * until the key's next generation starts, or 60 s after the end: long enough for a reader between
 * two polls. Main thread only. */
#include "keyspace/keyspace.h"

#include "base/clock.h"
#include "base/mem.h"

static void hold_is_over(struct timer *timer)
{
    pieces_clear(LIST_ITEM(timer, struct key, pieces.hold));
}

static ptrdiff_t pieces_bytes(const struct pieces *pieces)
{
    return (ptrdiff_t)(pieces->text.cap + (size_t)pieces->cap * sizeof *pieces->items);
}

/* Called when the key's next generation starts, when the hold is over, and when the key goes. */
void pieces_clear(struct key *key)
{
    struct pieces *pieces = &key->pieces;
    timer_stop(&key->ks->timers, &pieces->hold);
    mem_count(MEM_KEY, -pieces_bytes(pieces));
    str_free(&pieces->text);
    xfree(pieces->items);
    entry_put(pieces->end);
    *pieces = (struct pieces){0};
}

/* Called with text that is whole characters. A key without ids left shows no more pieces; the end
 * entry has its id from the 2^32 that were there when the GEN was accepted. */
void pieces_add(struct key *key, struct bytes text)
{
    struct pieces *pieces = &key->pieces;
    struct stream_id id;
    if (text.len == 0 || !keyspace_next_id(key->ks, key->stream, &id))
        return;
    ptrdiff_t before = pieces_bytes(pieces);
    if (pieces->n == pieces->cap) {
        pieces->cap = pieces->cap ? pieces->cap * 2 : 16;
        pieces->items = xrealloc(pieces->items, (size_t)pieces->cap * sizeof *pieces->items);
    }
    size_t at = pieces->text.len;
    str_append(&pieces->text, text.data, text.len);
    pieces->items[pieces->n++] = (struct piece){id, at, pieces->text.len};
    mem_count(MEM_KEY, pieces_bytes(pieces) - before);
    key->stream->last_id = id;
    watch_signal(key, id);
}

/* Called when the end entry stands: from here on the pieces are kept for a while. */
void pieces_close(struct key *key, struct entry *end)
{
    struct pieces *pieces = &key->pieces;
    entry_put(pieces->end);
    pieces->end = entry_take(end);
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
