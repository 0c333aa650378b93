/* stream.c - ordered lists of immutable, counted entries.
 *
 * Conversations are short and are read whole at every generation, so a stream is a plain array of
 * slots in order of id: binary search for reading, memmove for the rare XDEL in the middle.
 * Trimming moves the head forward, and the array is slid back only when the free room in front is
 * half of it: XADD with MAXLEN on a long stream costs amortised O(1). A radix tree (as Redis has)
 * would save memory for millions of tiny entries, at three times the code; a slot here is two
 * pointers.
 *
 *     slots  | gone | gone | e e e e e e e | free |
 *                   head ^               ^ head + n
 *     known                  0 1 1 0 0 1 0            a bit a slot: the model knows the entry
 *
 * A stream may hold a million entries that the model ignores, and GEN must not look at each: it goes
 * from one set bit to the next, 64 slots at a time. The bits move with their slots, by whole words
 * where many move.
 *
 * Entries are counted, never changed, and hold all their bytes in one allocation; COPY and FORK
 * take another reference to each. last_id only rises. Main thread only. */
#include "keyspace/stream.h"

#include <stdio.h>
#include <string.h>
#include "base/mem.h"

#define SLOTS_MIN 8
#define TRIM_NODE 100      /* with "~", as Redis' default stream-node-max-entries */
#define TRIM_AT_ONCE 1000  /* entries freed inside the command: about 0.1 ms */
#define SHRINK_SLOTS 16384 /* 256 KiB, 64 pages: unmapped in 0.02 ms */
#define BYTES_SAMPLE 4096  /* entries looked at by stream_bytes: well under a millisecond */

/* ---- ids ------------------------------------------------------------------------------------ */

int stream_id_compare(struct stream_id a, struct stream_id b)
{
    if (a.ms != b.ms)
        return a.ms < b.ms ? -1 : 1;
    return a.seq < b.seq ? -1 : a.seq > b.seq;
}

bool stream_id_next(struct stream_id *id)
{
    if (id->seq != UINT64_MAX) {
        id->seq++;
        return true;
    }
    if (id->ms == UINT64_MAX)
        return false;
    *id = (struct stream_id){id->ms + 1, 0};
    return true;
}

bool stream_id_previous(struct stream_id *id)
{
    if (id->seq != 0) {
        id->seq--;
        return true;
    }
    if (id->ms == 0)
        return false;
    *id = (struct stream_id){id->ms - 1, UINT64_MAX};
    return true;
}

int stream_id_format(char out[STREAM_ID_TEXT], struct stream_id id)
{
    return snprintf(out, STREAM_ID_TEXT, "%llu-%llu", (unsigned long long)id.ms,
                    (unsigned long long)id.seq);
}

bool stream_id_parse_half(struct bytes text, uint64_t *half)
{
    size_t n_zeros = 0;
    while (n_zeros + 1 < text.len && text.data[n_zeros] == '0')
        n_zeros++;
    return parse_u64((struct bytes){text.data + n_zeros, text.len - n_zeros}, half);
}

bool stream_id_parse(struct bytes text, uint64_t missing_seq, struct stream_id *id)
{
    const char *dash = text.len ? memchr(text.data, '-', text.len) : NULL;
    if (dash == NULL) {
        id->seq = missing_seq;
        return stream_id_parse_half(text, &id->ms);
    }
    size_t n_ms = (size_t)(dash - text.data);
    return stream_id_parse_half((struct bytes){text.data, n_ms}, &id->ms) &&
           stream_id_parse_half((struct bytes){dash + 1, text.len - n_ms - 1}, &id->seq);
}

int stream_id_parse_range(struct bytes text, bool is_start, struct stream_id *id, struct err *err)
{
    if (text.len == 1 && text.data[0] == '-') {
        *id = STREAM_ID_MIN;
        return 0;
    }
    if (text.len == 1 && text.data[0] == '+') {
        *id = STREAM_ID_MAX;
        return 0;
    }
    bool exclusive = text.len > 1 && text.data[0] == '(';
    if (exclusive)
        text = (struct bytes){text.data + 1, text.len - 1};
    if (!stream_id_parse(text, is_start ? 0 : UINT64_MAX, id))
        return err_set(err, "ERR Invalid stream ID specified as stream command argument");
    if (exclusive && is_start && !stream_id_next(id))
        return err_set(err, "ERR invalid start ID for the interval");
    if (exclusive && !is_start && !stream_id_previous(id))
        return err_set(err, "ERR invalid end ID for the interval");
    return 0;
}

/* ---- entries -------------------------------------------------------------------------------- */

static struct entry *make_entry(struct stream_id id, const struct bytes *fields, int32_t n_fields,
                                void *(*get)(enum mem_tag tag, size_t size_bytes))
{
    size_t size = sizeof(struct entry) + 2 * (size_t)n_fields * sizeof(struct bytes);
    size_t at = size;
    for (int32_t i = 0; i < 2 * n_fields; i++)
        if (!add_ok(size, fields[i].len, &size))
            return NULL;
    struct entry *entry = get(MEM_KEY, size);
    if (entry == NULL)
        return NULL;
    *entry = (struct entry){.refs = 1, .id = id, .size_bytes = size, .n_fields = n_fields};
    for (int32_t i = 0; i < 2 * n_fields; i++) {
        char *copy = (char *)entry + at;
        if (fields[i].len > 0)
            memcpy(copy, fields[i].data, fields[i].len);
        entry->fields[i] = (struct bytes){copy, fields[i].len};
        at += fields[i].len;
    }
    return entry;
}

struct entry *entry_new(struct stream_id id, const struct bytes *fields, int32_t n_fields)
{
    return make_entry(id, fields, n_fields, try_malloc);
}

struct entry *entry_new_small(struct stream_id id, const struct bytes *fields, int32_t n_fields)
{
    return make_entry(id, fields, n_fields, must_malloc);
}

static ptrdiff_t ids_bytes(const struct ids *ids)
{
    return (ptrdiff_t)((size_t)ids->cap * sizeof(int32_t));
}

void entry_set_ids(struct entry *entry, struct ids ids)
{
    ASSERT(entry->ids.data == NULL);
    entry->ids = ids;
    entry->has_ids = true;
    mem_count(MEM_KEY, ids_bytes(&ids));
}

struct entry *entry_take(struct entry *entry)
{
    entry->refs++;
    return entry;
}

void entry_put(struct entry *entry)
{
    if (entry == NULL || --entry->refs > 0)
        return;
    ASSERT(entry->refs == 0);
    mem_count(MEM_KEY, -ids_bytes(&entry->ids));
    ids_free(&entry->ids);
    try_free(MEM_KEY, entry);
}

static size_t entry_bytes(const struct entry *entry)
{
    return entry->size_bytes + (size_t)entry->ids.cap * sizeof(int32_t);
}

struct bytes entry_field(const struct entry *entry, const char *name)
{
    struct bytes wanted = bytes_from(name);
    for (int32_t i = 0; i < entry->n_fields; i++)
        if (bytes_equal(entry->fields[2 * i], wanted))
            return entry->fields[2 * i + 1];
    return (struct bytes){NULL, 0};
}

static ptrdiff_t run_bytes(const struct token_run *run)
{
    return (ptrdiff_t)sizeof *run + ids_bytes(&run->ids);
}

void token_run_count(const struct token_run *run)
{
    mem_count(MEM_KEY, run_bytes(run));
}

struct token_run *token_run_take(struct token_run *run)
{
    run->refs++;
    return run;
}

void token_run_put(struct token_run *run)
{
    if (run == NULL || --run->refs > 0)
        return;
    ASSERT(run->refs == 0);
    mem_count(MEM_KEY, -run_bytes(run));
    ids_free(&run->ids);
    xfree(run);
}

/* ---- what the model knows ------------------------------------------------------------------- */

static size_t n_marks(size_t n_slots)
{
    return n_slots / 64 + 1;
}

static void mark(struct stream *s, size_t i)
{
    const struct entry *entry = stream_entry(s, i);
    struct stream_marks *m = &s->marks[(s->head + i) / 64];
    uint64_t bit = UINT64_C(1) << (s->head + i) % 64;
    bool is_known = entry->kind != ENTRY_OTHER;
    bool is_turn = entry->kind == ENTRY_MESSAGE || (entry->kind == ENTRY_END && entry->is_chat);
    m->known = is_known ? m->known | bit : m->known & ~bit;
    m->turns = is_turn ? m->turns | bit : m->turns & ~bit;
}

/* The bit whose slot has gone leaves, those above it move down by one. */
static uint64_t close_word(uint64_t word, uint64_t above, uint64_t stay)
{
    return (word & stay) | (word >> 1 & ~stay) | above << 63;
}

/* Entry i is about to be closed up. */
static void marks_close_up(struct stream *s, size_t i)
{
    size_t at = s->head + i, last = (s->head + s->n - 1) / 64;
    uint64_t stay = (UINT64_C(1) << at % 64) - 1;
    for (size_t w = at / 64; w <= last; w++, stay = 0) {
        struct stream_marks above = w < last ? s->marks[w + 1] : (struct stream_marks){0, 0};
        s->marks[w].known = close_word(s->marks[w].known, above.known, stay);
        s->marks[w].turns = close_word(s->marks[w].turns, above.turns, stay);
    }
}

/* Bits of word w of the slots from `from` on and before `end`. */
static uint64_t within(size_t w, size_t from, size_t end)
{
    uint64_t bits = UINT64_MAX;
    if (w == from / 64)
        bits &= UINT64_MAX << from % 64;
    if (w == end / 64)
        bits &= ~(UINT64_MAX << end % 64);
    return bits;
}

size_t stream_next_known(const struct stream *s, size_t i)
{
    size_t from = s->head + i, end = s->head + s->n;
    for (size_t w = from / 64; i < s->n && w <= end / 64; w++) {
        uint64_t bits = s->marks[w].known & within(w, from, end);
        if (bits != 0)
            return w * 64 + (size_t)__builtin_ctzll(bits) - s->head;
    }
    return s->n;
}

int64_t stream_previous_known(const struct stream *s, size_t i)
{
    size_t from = s->head, end = s->head + i;
    for (size_t w = end / 64 + 1; i > 0 && w > from / 64; w--) {
        uint64_t bits = s->marks[w - 1].known & within(w - 1, from, end);
        if (bits != 0)
            return (int64_t)(w * 64 - 1 - (size_t)__builtin_clzll(bits) - s->head);
    }
    return -1;
}

size_t stream_count_known(const struct stream *s, size_t i)
{
    size_t from = s->head, end = s->head + i, n = 0;
    for (size_t w = from / 64; i > 0 && w <= end / 64; w++)
        n += (size_t)__builtin_popcountll(s->marks[w].known & within(w, from, end));
    return n;
}

bool stream_has_turns(const struct stream *s)
{
    size_t from = s->head, end = s->head + s->n;
    for (size_t w = from / 64; s->n > 0 && w <= end / 64; w++)
        if ((s->marks[w].turns & within(w, from, end)) != 0)
            return true;
    return false;
}

/* ---- streams -------------------------------------------------------------------------------- */

struct stream *stream_new(void)
{
    return xcalloc(1, sizeof(struct stream));
}

static void slot_put(struct stream_slot *slot)
{
    entry_put(slot->entry);
    token_run_put(slot->run);
    *slot = (struct stream_slot){NULL, NULL};
}

/* The slots behind the entries go back too, a part at a time: to unmap 16 MiB takes milliseconds. */
static void shrink(struct stream *s)
{
    size_t used = s->head + s->n;
    if (s->cap - used < SHRINK_SLOTS || used == 0)
        return;
    struct stream_slot *slots = try_realloc(MEM_KEY, s->slots, used * sizeof *slots);
    if (slots == NULL)
        return; /* as it is */
    s->slots = slots;
    s->cap = used;
}

bool stream_free_slice(struct stream *stream, size_t max)
{
    for (; stream->n > 0 && max > 0; max--)
        slot_put(stream_slot(stream, --stream->n));
    if (stream->n > 0) {
        shrink(stream);
        return false;
    }
    try_free(MEM_KEY, stream->slots);
    try_free(MEM_KEY, stream->marks);
    xfree(stream);
    return true;
}

void stream_free(struct stream *stream)
{
    if (stream != NULL)
        (void)stream_free_slice(stream, SIZE_MAX); /* all of it: always done */
}

/* Room for n entries from slot `head` on, in a stream that has none. False: memory is gone. */
static bool make_room(struct stream *s, size_t head, size_t n)
{
    s->head = head;
    s->cap = head + n;
    s->slots = try_malloc(MEM_KEY, s->cap * sizeof *s->slots);
    s->marks = try_malloc(MEM_KEY, n_marks(s->cap) * sizeof *s->marks);
    if (s->slots != NULL && s->marks != NULL)
        return true;
    try_free(MEM_KEY, s->slots);
    try_free(MEM_KEY, s->marks);
    s->slots = NULL;
    s->marks = NULL;
    s->cap = s->head = 0;
    return false;
}

/* A stream with the counters of `s` and its entries [from, from + n), whose slots and references are
 * still to be copied, with room for `more` behind them. The first stands in the same place of a word,
 * so that the bits move by words. NULL: memory is gone. */
static struct stream *like(const struct stream *s, size_t from, size_t n, size_t more)
{
    struct stream *new = xmemdup(s, sizeof *s);
    size_t at = s->head + from;
    new->slots = NULL;
    new->marks = NULL;
    new->head = new->cap = 0;
    new->n = n;
    if (n + more == 0)
        return new;
    if (!make_room(new, at % 64, n + more)) {
        xfree(new);
        return NULL;
    }
    if (n > 0)
        memcpy(new->marks, s->marks + at / 64, n_marks(at % 64 + n - 1) * sizeof *new->marks);
    return new;
}

struct stream *stream_copy(const struct stream *source, size_t n)
{
    ASSERT(n <= source->n);
    struct stream *copy = like(source, 0, n, 0);
    for (size_t i = 0; copy != NULL && i < n; i++) {
        const struct stream_slot *slot = stream_slot(source, i);
        *stream_slot(copy, i) = (struct stream_slot){entry_take(slot->entry),
                                                     slot->run ? token_run_take(slot->run) : NULL};
    }
    return copy;
}

size_t stream_find(const struct stream *s, struct stream_id id)
{
    size_t low = 0, high = s->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (stream_id_compare(stream_entry(s, middle)->id, id) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int64_t stream_index(const struct stream *s, struct stream_id id)
{
    size_t i = stream_find(s, id);
    if (i == s->n || stream_id_compare(stream_entry(s, i)->id, id) != 0)
        return -1;
    return (int64_t)i;
}

bool stream_reserve(struct stream *s, size_t more)
{
    if (s->cap - s->head - s->n >= more)
        return true;
    /* Sliding back only when at least half is free in front: each slot is then moved at most once
     * for every slot that was trimmed. By whole words of marks. */
    size_t by = s->head - s->head % 64;
    if (by > 0 && by >= s->n && by >= more) {
        memmove(s->slots + s->head - by, s->slots + s->head, s->n * sizeof *s->slots);
        memmove(s->marks, s->marks + by / 64, (n_marks(s->cap) - by / 64) * sizeof *s->marks);
        s->head -= by;
        return true;
    }
    size_t cap = s->cap ? s->cap * 2 : SLOTS_MIN;
    while (cap - s->head - s->n < more)
        cap *= 2;
    struct stream_slot *slots = try_realloc(MEM_KEY, s->slots, cap * sizeof *slots);
    if (slots == NULL)
        return false;
    s->slots = slots;
    struct stream_marks *marks = try_realloc(MEM_KEY, s->marks, n_marks(cap) * sizeof *marks);
    if (marks == NULL)
        return false; /* more slots than cap says: no harm */
    s->marks = marks;
    s->cap = cap;
    return true;
}

void stream_append(struct stream *s, struct entry *entry)
{
    ASSERT(s->head + s->n < s->cap);
    ASSERT(stream_id_compare(entry->id, s->last_id) > 0);
    *stream_slot(s, s->n) = (struct stream_slot){entry, NULL};
    mark(s, s->n++);
    s->last_id = entry->id;
    s->entries_added++;
}

static void note_deleted(struct stream *s, struct stream_id id)
{
    if (stream_id_compare(id, s->max_deleted) > 0)
        s->max_deleted = id;
}

bool stream_delete(struct stream *s, struct stream_id id)
{
    int64_t i = stream_index(s, id);
    if (i < 0)
        return false;
    slot_put(stream_slot(s, (size_t)i));
    note_deleted(s, id);
    if (i == 0) {
        s->head++;
    } else {
        memmove(stream_slot(s, (size_t)i), stream_slot(s, (size_t)i + 1),
                (s->n - (size_t)i - 1) * sizeof(struct stream_slot));
        marks_close_up(s, (size_t)i);
    }
    s->n--;
    return true;
}

size_t stream_drop(struct stream *s, const bool *is_gone)
{
    size_t at = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (is_gone[i]) {
            slot_put(stream_slot(s, i));
            continue;
        }
        *stream_slot(s, at) = *stream_slot(s, i);
        if (at++ < i)
            mark(s, at - 1);
    }
    size_t n_gone = s->n - at;
    s->n = at;
    return n_gone;
}

/* Marked first and closed up once: XDEL of many ids costs one pass, not one each. */
size_t stream_delete_all(struct stream *s, const struct stream_id *ids, size_t n)
{
    if (n == 1)
        return stream_delete(s, ids[0]);
    bool *is_gone = xcalloc(s->n + 1, sizeof *is_gone);
    for (size_t i = 0; i < n; i++) {
        int64_t where = stream_index(s, ids[i]);
        if (where < 0)
            continue;
        is_gone[where] = true;
        note_deleted(s, ids[i]);
    }
    size_t n_gone = stream_drop(s, is_gone);
    xfree(is_gone);
    return n_gone;
}

static uint64_t count_to_trim(const struct stream *s, const struct stream_trim *trim)
{
    uint64_t n = 0;
    if (trim->kind == TRIM_MAXLEN)
        n = s->n > trim->max_len ? s->n - trim->max_len : 0;
    else if (trim->kind == TRIM_MINID)
        n = stream_find(s, trim->min_id);
    if (trim->limit > 0 && n > trim->limit)
        n = trim->limit;
    bool ends_node = n == s->n; /* the last one goes whole, too */
    return trim->about && !ends_node ? n - n % TRIM_NODE : n;
}

/* The first n entries as a stream of their own. Copied are the slots of those that go, or of those that
 * stay where these are fewer. NULL, and nothing has changed, when memory is gone. */
static struct stream *split_front(struct stream *s, size_t n)
{
    size_t n_left = s->n - n;
    bool stay_here = n_left > n;
    struct stream *other = like(s, stay_here ? 0 : n, stay_here ? n : n_left, SLOTS_MIN);
    if (other == NULL)
        return NULL;
    if (other->n > 0)
        memcpy(stream_slot(other, 0), stream_slot(s, stay_here ? 0 : n),
               other->n * sizeof *other->slots);
    if (stay_here) {
        s->head += n;
        s->n = n_left;
        return other;
    }
    struct stream left = *other;
    *other = *s;
    other->n = n;
    *s = left;
    return other;
}

uint64_t stream_trim(struct stream *s, const struct stream_trim *trim, struct stream **trimmed)
{
    uint64_t n = count_to_trim(s, trim);
    *trimmed = NULL;
    if (n == 0)
        return 0;
    if (n > TRIM_AT_ONCE && (*trimmed = split_front(s, n)) != NULL)
        return n;
    for (uint64_t i = 0; i < n; i++) {
        slot_put(stream_slot(s, 0));
        s->head++;
        s->n--;
    }
    return n;
}

size_t stream_bytes(const struct stream *s)
{
    size_t step = s->n / BYTES_SAMPLE + 1, n_seen = 0, total = 0;
    for (size_t i = 0; i < s->n; i += step, n_seen++) {
        const struct stream_slot *slot = stream_slot(s, i);
        total += entry_bytes(slot->entry);
        if (slot->run != NULL)
            total += sizeof *slot->run + (size_t)slot->run->ids.cap * sizeof(int32_t);
    }
    if (n_seen > 0 && n_seen < s->n)
        total = (size_t)((double)total / (double)n_seen * (double)s->n);
    return sizeof *s + s->cap * sizeof *s->slots + (s->cap / 64) * sizeof *s->marks + total;
}
