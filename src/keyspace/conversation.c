/* conversation.c - kinds of entries, when a conversation may go on, and end entries.
 *
 * The kind is set by the writer and kept inside: fields that a client calls `finish` or `branch`
 * are ordinary. What the rules call "the last entry" is the last one that means something to the
 * model. How entries become ids is in build.c. Main thread only. */
#include "keyspace/conversation.h"

#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "base/plant.h"
#include "keyspace/group.h"

int conversation_kind_of(const struct bytes *fields, int32_t n_fields, enum entry_kind *kind,
                         struct err *err)
{
    static const char *const names[] = {"text", "role", "content"};
    int seen[3] = {0, 0, 0};
    for (int32_t i = 0; i < n_fields; i++)
        for (int j = 0; j < 3; j++)
            if (bytes_equal(fields[2 * i], bytes_from(names[j])) && ++seen[j] > 1)
                return err_set(err, "ERR field '%s' stands twice in one entry", names[j]);
    bool is_message = seen[1] && seen[2];
    if (seen[0] && is_message)
        return err_set(err, "ERR an entry is either a text ('text') or a message ('role' and "
                            "'content'), not both");
    *kind = seen[0] ? ENTRY_TEXT : is_message ? ENTRY_MESSAGE : ENTRY_OTHER;
    return 0;
}

void conversation_set_kind(struct entry *entry, enum entry_kind kind)
{
    entry->kind = kind;
    if (kind == ENTRY_OTHER)
        return;
    entry->role = entry_field(entry, "role");
    entry->text = entry_field(entry, entry->role.data != NULL ? "content" : "text");
    if (kind == ENTRY_TEXT) { /* it may have a field `role` beside */
        entry->role = (struct bytes){NULL, 0};
        entry->text = entry_field(entry, "text");
    }
}

bool conversation_is_unfinished(enum gen_finish finish)
{
    return finish != GEN_STOP && finish != GEN_ERROR;
}

static int finished(const struct entry *last, struct err *err)
{
    char id[STREAM_ID_TEXT];
    stream_id_format(id, last->id);
    return err_set(err, "ERR entry %s is a finished answer: GEN needs a prompt to go on after it",
                   id);
}

int conversation_may_go_on(const struct stream *s, bool *inside, bool *is_chat, struct err *err)
{
    int64_t i = stream_previous_known(s, s->n);
    if (i < 0)
        return err_set(err, "ERR the key holds nothing to go on with: GEN needs a prompt");
    const struct entry *last = stream_entry(s, (size_t)i);
    *inside = false;
    *is_chat = stream_has_turns(s);
    if (last->kind == ENTRY_MESSAGE) {
        if (bytes_equal(last->role, BYTES("assistant")) && !last->open)
            return finished(last, err);
        *inside = last->open;
    } else if (last->kind == ENTRY_END) {
        struct end_group group;
        group_at(s, (size_t)i, &group);
        last = PLANTED(GO_ON_LAST) ? last : group.ends[0];
        if (last->finish == GEN_STOP)
            return finished(last, err);
        *inside = conversation_is_unfinished(last->finish);
        if (*inside)
            *is_chat = last->is_chat;
    }
    return 0;
}

/* ---- end entries ---------------------------------------------------------------------------- */

#define END_FIELDS 18 /* at most, of the table in COMMANDS */

struct field_list {
    struct bytes fields[2 * END_FIELDS];
    char numbers[END_FIELDS][24];
    int32_t n;
};

static void put_bytes(struct field_list *list, const char *name, struct bytes value)
{
    ASSERT(list->n < END_FIELDS);
    list->fields[2 * list->n] = bytes_from(name);
    list->fields[2 * list->n + 1] = value;
    list->n++;
}

static void put_number(struct field_list *list, const char *name, int64_t value)
{
    char *text = list->numbers[list->n];
    size_t len = (size_t)snprintf(text, sizeof list->numbers[0], "%lld", (long long)value);
    put_bytes(list, name, (struct bytes){text, len});
}

static void put_seed(struct field_list *list, uint64_t seed)
{
    char *text = list->numbers[list->n];
    size_t len = (size_t)snprintf(text, sizeof list->numbers[0], "%llu", (unsigned long long)seed);
    put_bytes(list, "seed", (struct bytes){text, len});
}

/* The order is that of COMMANDS, section 1: readers may rely on text first and finish next. */
static void list_fields(struct field_list *list, const struct end_facts *facts)
{
    if (facts->is_chat)
        put_bytes(list, "role", BYTES("assistant"));
    put_bytes(list, facts->is_chat ? "content" : "text", facts->text);
    put_bytes(list, "finish", bytes_from(gen_finish_name(facts->finish)));
    if (facts->matched.data != NULL)
        put_bytes(list, "matched", facts->matched);
    if (facts->was_submitted) {
        put_number(list, "prompt", facts->n_prompt);
        put_number(list, "cached", facts->n_cached);
        put_number(list, "generated", facts->n_generated);
    }
    if (!facts->is_beam)
        put_seed(list, facts->seed);
    if (facts->id.len > 0)
        put_bytes(list, "id", facts->id);
    if (facts->was_submitted) {
        put_number(list, "queued-ms", facts->queued_ms);
        put_number(list, "prefill-ms", facts->prefill_ms);
        put_number(list, "decode-ms", facts->decode_ms);
    }
    if (facts->tells_branch)
        put_number(list, "branch", facts->branch);
    if (facts->logprobs.data != NULL)
        put_bytes(list, "logprobs", facts->logprobs);
    if (facts->prompt_logprobs.data != NULL)
        put_bytes(list, "prompt-logprobs", facts->prompt_logprobs);
    if (facts->error != NULL)
        put_bytes(list, "error", bytes_from(facts->error));
}

struct entry *conversation_end_entry(struct stream_id id, const struct end_facts *facts)
{
    struct field_list list = {.n = 0};
    list_fields(&list, facts);
    struct entry *entry = facts->is_small ? entry_new_small(id, list.fields, list.n)
                                          : entry_new(id, list.fields, list.n);
    if (entry == NULL)
        return NULL;
    conversation_set_kind(entry, ENTRY_END);
    entry->is_chat = facts->is_chat;
    entry->finish = facts->finish;
    entry->branch = facts->branch;
    entry->group = facts->group;
    struct ids ids = {0};
    if (facts->n_ids > 0)
        ids_append(&ids, facts->ids, facts->n_ids);
    entry_set_ids(entry, ids);
    entry->n_carry =
        facts->unfinished.len < sizeof entry->carry ? (int32_t)facts->unfinished.len : 0;
    if (entry->n_carry > 0)
        memcpy(entry->carry, facts->unfinished.data, (size_t)entry->n_carry);
    return entry;
}

int64_t conversation_end_number(const struct entry *end, const char *name)
{
    int64_t value;
    return parse_i64(entry_field(end, name), &value) ? value : 0;
}

uint64_t conversation_end_seed(const struct entry *end)
{
    uint64_t seed;
    return parse_u64(entry_field(end, "seed"), &seed) ? seed : 0;
}

void conversation_cut(const struct tokenizer *t, const int32_t *ids, int32_t n_ids, size_t n_carry,
                      struct bytes text, size_t text_len, struct ids *out)
{
    size_t covered = n_carry;
    int32_t n = 0;
    ASSERT(text_len <= text.len);
    while (n < n_ids && covered + tokenizer_token(t, ids[n]).len <= text_len)
        covered += tokenizer_token(t, ids[n++]).len;
    if (n > 0)
        ids_append(out, ids, n);
    if (covered < text_len)
        tokenizer_encode(t, (struct bytes){text.data + covered, text_len - covered}, false, out);
}
