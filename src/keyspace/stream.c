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
 *
 * Entries are counted, never changed, and hold all their bytes in one allocation; COPY and FORK
 * take another reference to each. last_id only rises. Main thread only. */
#include "keyspace/stream.h"

#include <stdio.h>
#include <string.h>
#include "base/mem.h"

#define SLOTS_MIN 8
#define TRIM_NODE 100     /* with "~", as Redis' default stream-node-max-entries */
#define TRIM_AT_ONCE 1000 /* entries freed inside the command: about 0.1 ms */
#define BYTES_SAMPLE 4096 /* entries looked at by stream_bytes: well under a millisecond */

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

size_t entry_bytes(const struct entry *entry)
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

bool stream_free_slice(struct stream *stream, size_t max)
{
    for (; stream->n > 0 && max > 0; max--) {
        slot_put(stream_slot(stream, 0));
        stream->head++;
        stream->n--;
    }
    if (stream->n > 0)
        return false;
    try_free(MEM_KEY, stream->slots);
    xfree(stream);
    return true;
}

void stream_free(struct stream *stream)
{
    if (stream != NULL)
        (void)stream_free_slice(stream, SIZE_MAX); /* all of it: always done */
}

struct stream *stream_copy(const struct stream *source, size_t n)
{
    ASSERT(n <= source->n);
    struct stream *copy = xmemdup(source, sizeof *source);
    copy->head = 0;
    copy->n = n;
    copy->cap = n;
    copy->slots = NULL;
    if (n > 0 && (copy->slots = try_malloc(MEM_KEY, n * sizeof *copy->slots)) == NULL) {
        xfree(copy);
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        const struct stream_slot *slot = stream_slot(source, i);
        copy->slots[i] = (struct stream_slot){entry_take(slot->entry),
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
     * for every slot that was trimmed. */
    if (s->head >= s->n && s->head >= more) {
        memmove(s->slots, s->slots + s->head, s->n * sizeof *s->slots);
        s->head = 0;
        return true;
    }
    size_t cap = s->cap ? s->cap * 2 : SLOTS_MIN;
    while (cap - s->head - s->n < more)
        cap *= 2;
    struct stream_slot *slots = try_realloc(MEM_KEY, s->slots, cap * sizeof *slots);
    if (slots == NULL)
        return false;
    s->slots = slots;
    s->cap = cap;
    return true;
}

void stream_append(struct stream *s, struct entry *entry)
{
    ASSERT(s->head + s->n < s->cap);
    ASSERT(stream_id_compare(entry->id, s->last_id) > 0);
    *stream_slot(s, s->n) = (struct stream_slot){entry, NULL};
    s->n++;
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
    if (i == 0)
        s->head++;
    else
        memmove(stream_slot(s, (size_t)i), stream_slot(s, (size_t)i + 1),
                (s->n - (size_t)i - 1) * sizeof(struct stream_slot));
    s->n--;
    return true;
}

size_t stream_drop(struct stream *s, const bool *is_gone)
{
    size_t at = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (is_gone[i])
            slot_put(stream_slot(s, i));
        else
            *stream_slot(s, at++) = *stream_slot(s, i);
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
    return trim->about ? n - n % TRIM_NODE : n;
}

/* The first n entries as a stream of their own. The slots that stay are copied when they are fewer;
 * NULL, and nothing has changed, when they are not, or when memory is gone. */
static struct stream *split_front(struct stream *s, size_t n)
{
    size_t n_left = s->n - n, cap = n_left > SLOTS_MIN ? n_left : SLOTS_MIN;
    if (n_left > n)
        return NULL;
    struct stream_slot *left = try_malloc(MEM_KEY, cap * sizeof *left);
    if (left == NULL)
        return NULL;
    memcpy(left, stream_slot(s, n), n_left * sizeof *left);
    struct stream *front = xmemdup(s, sizeof *s);
    front->n = n;
    s->slots = left;
    s->head = 0;
    s->n = n_left;
    s->cap = cap;
    return front;
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
    return sizeof *s + s->cap * sizeof *s->slots + total;
}
