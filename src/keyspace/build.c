/* build.c - from a key's entries to the ids that the model sees.
 *
 * The sequence is a concatenation, entry by entry; what an entry adds depends on its kind:
 *
 *     text      its ids alone, made once and kept in the (shared) entry
 *     message   the template's marks and the content: depends on what stands before, so it is kept
 *               beside the entry in the slot (token_run) together with the state it was made for
 *     end       what opens the answer (a token_run too, or nothing inside an open one), then the
 *               ids exactly as they were sampled; of several branches the one that goes on
 *
 * A run fits where the state before it equals the one it was made for. So nothing has to be
 * invalidated when an entry is deleted, and a child of FORK shares its source's runs until it
 * differs. An end entry without ids adds nothing and changes nothing, unless its answer is
 * finished: an empty answer is a turn.
 *
 * build_run may run on a job thread: it reads entries (immutable) and writes only into the build.
 * The ids of a text entry are the one thing in an entry that appears later; whether they were there
 * is noted at the start, since another build of a sibling key may install them meanwhile. */
#include "keyspace/conversation.h"

#include <string.h>
#include "base/mem.h"
#include "keyspace/group.h"

#define MARKS_MAX 1024 /* room for a template's marks beside a text, as chat.h asks for */

/* ---- filling and freeing, main thread ------------------------------------------------------- */

/* Ids that it adds at least: those it has, or one for its text (dropped characters aside). */
static int32_t least_ids(const struct entry *entry)
{
    return entry->has_ids ? entry->ids.n : entry->text.len > 0;
}

static void add_item(struct build *build, struct entry *entry, struct token_run *run, int64_t slot)
{
    build->items[build->n++] = (struct build_item){
        .entry = entry_take(entry),
        .run = run ? token_run_take(run) : NULL,
        .had_ids = entry->has_ids,
        .slot = slot,
    };
}

static int check_length(struct build *build, int64_t n_ids)
{
    if (n_ids < build->n_context)
        return 0;
    build->failed = true;
    return err_set(
        &build->err,
        "ERR the conversation has at least %lld tokens, the context holds %d with one to "
        "generate",
        (long long)n_ids, build->n_context);
}

/* Looks at no more entries than the context can hold: of a million texts that it can not, the main
 * thread and the job are spared the rest. */
struct build *build_new(const struct keyspace_config *config, const struct stream *s, size_t n,
                        struct entry *prompt)
{
    size_t n_items = stream_count_known(s, n) + 1;
    struct build_item *items = try_malloc(MEM_KEY, n_items * sizeof *items);
    if (items == NULL)
        return NULL;
    struct build *build = xcalloc(1, sizeof *build);
    build->tokenizer = config->tokenizer;
    build->chat = config->chat;
    build->chat_error = config->chat_error;
    build->n_context = config->n_context;
    build->items = items;
    struct end_group met = {.n = 0};
    int64_t least = 0;
    for (size_t i = stream_next_known(s, 0); i < n; i = stream_next_known(s, i + 1)) {
        if (!group_goes_on(s, i, &met))
            continue;
        add_item(build, stream_entry(s, i), stream_slot(s, i)->run, (int64_t)i);
        if (check_length(build, least += least_ids(stream_entry(s, i))) < 0)
            return build;
    }
    if (prompt != NULL)
        add_item(build, prompt, NULL, -1);
    return build;
}

void build_free(struct build *build)
{
    if (build == NULL)
        return;
    for (int32_t i = 0; i < build->n; i++) {
        struct build_item *item = &build->items[i];
        entry_put(item->entry);
        token_run_put(item->run);
        token_run_put(item->made);
        ids_free(&item->text_ids);
    }
    try_free(MEM_KEY, build->items);
    token_run_put(build->opening);
    ids_free(&build->ids);
    xfree(build);
}

void build_install(struct build *build, struct stream *s)
{
    for (int32_t i = 0; i < build->n; i++) {
        struct build_item *item = &build->items[i];
        size_t at = item->slot >= 0 ? (size_t)item->slot : s->n - 1;
        ASSERT(at < s->n && stream_entry(s, at) == item->entry);
        struct stream_slot *slot = stream_slot(s, at);
        if (item->made != NULL) {
            token_run_put(slot->run);
            slot->run = item->made;
            item->made = NULL;
        }
        if (item->text_ids.n > 0 && !item->entry->has_ids) {
            entry_set_ids(item->entry, item->text_ids);
            item->text_ids = (struct ids){0};
        }
    }
}

/* ---- walking -------------------------------------------------------------------------------- */

static bool same_state(const struct chat_state *a, const struct chat_state *b)
{
    return a->place == b->place && a->n_turns == b->n_turns &&
           strncmp(a->last_role, b->last_role, sizeof a->last_role) == 0;
}

static bool adds_nothing(const struct entry *end)
{
    return end->ids.n == 0 && end->finish != GEN_STOP;
}

static void pass_end(struct chat_state *state, const struct entry *end)
{
    if (!end->is_chat)
        state->place = CHAT_AFTER_TEXT;
    else
        state->place =
            conversation_is_unfinished(end->finish) ? CHAT_AFTER_OPEN : CHAT_AFTER_ANSWER;
}

/* An upper estimate: after a message whose run must be made, the state is not known, and every
 * later message counts. */
size_t build_bytes_to_tokenise(const struct build *build)
{
    struct chat_state state = {.place = CHAT_START};
    bool is_known = true;
    size_t n_bytes = 0;
    for (int32_t i = 0; i < build->n; i++) {
        const struct build_item *item = &build->items[i];
        const struct entry *entry = item->entry;
        if (entry->kind == ENTRY_TEXT) {
            n_bytes += item->had_ids ? 0 : entry->text.len;
            state.place = CHAT_AFTER_TEXT;
            continue;
        }
        if (entry->kind == ENTRY_END && (!entry->is_chat || state.place == CHAT_AFTER_OPEN)) {
            if (!adds_nothing(entry))
                pass_end(&state, entry);
            continue;
        }
        bool fits = is_known && item->run != NULL && same_state(&item->run->before, &state);
        if (fits)
            state = item->run->after;
        else if (entry->kind == ENTRY_MESSAGE)
            n_bytes += entry->text.len;
        is_known = fits;
        if (entry->kind == ENTRY_END)
            pass_end(&state, entry);
    }
    return n_bytes;
}

struct walk {
    struct chat_state state;
    const struct entry *carry; /* whose unfinished character is still to come; NULL: none */
    bool has_failed;           /* the last thing is an answer with finish `error` */
};

/* An answer that failed may be started again, also under a template in which an answer must follow
 * a user turn: it then stands where the failed one stood. */
static struct chat_state before_answer(const struct walk *walk)
{
    struct chat_state state = walk->state;
    if (walk->has_failed)
        strcpy(state.last_role, "user");
    return state;
}

static int refuse_entry(struct build *build, const struct build_item *item, const char *why)
{
    char id[STREAM_ID_TEXT];
    build->failed = true;
    if (item == NULL || item->slot < 0)
        return err_set(&build->err, "ERR the prompt cannot be rendered: %s", why);
    stream_id_format(id, item->entry->id);
    return err_set(&build->err, "ERR entry %s cannot be rendered: %s", id, why);
}

static const char *no_template(const struct build *build)
{
    return build->chat_error != NULL ? build->chat_error : "the model has no chat template";
}

/* A run for a message (entry) or for the opening of an answer (entry NULL). */
static struct token_run *make_run(struct build *build, const struct build_item *item,
                                  const struct chat_state *state, const struct entry *message)
{
    struct err err;
    if (build->chat == NULL) {
        (void)refuse_entry(build, item, no_template(build));
        return NULL;
    }
    struct token_run *run = xcalloc(1, sizeof *run);
    *run = (struct token_run){.refs = 1, .before = *state, .after = *state};
    int rc = message != NULL
                 ? chat_render_turn(build->chat, build->tokenizer, &run->after, message->role,
                                    message->text, message->open, &run->ids, &err)
                 : chat_render_answer(build->chat, build->tokenizer, &run->after, &run->ids, &err);
    token_run_count(run);
    if (rc == 0)
        return run;
    token_run_put(run);
    (void)refuse_entry(build, item, err.text);
    return NULL;
}

/* The run of an item where it stands: the one it has when that fits, else a new one. */
static const struct token_run *run_for(struct build *build, struct build_item *item,
                                       const struct chat_state *state, const struct entry *message)
{
    if (item->run != NULL && same_state(&item->run->before, state))
        return item->run;
    return item->made = make_run(build, item, state, message);
}

static void append_ids(struct build *build, const struct ids *ids)
{
    if (ids->n > 0)
        ids_append(&build->ids, ids->data, ids->n);
}

/* What can never fit is refused before it costs time and memory: a text has at least an id for every
 * longest token's bytes, dropped characters aside. */
static int check_text(struct build *build, const struct build_item *item)
{
    size_t longest = (size_t)tokenizer_longest(build->tokenizer);
    size_t most = longest * (size_t)build->n_context;
    if (item->entry->text.len <= most && item->entry->text.len <= TOKENIZER_TEXT_MAX - MARKS_MAX)
        return 0;
    build->failed = true;
    return err_set(&build->err, "ERR a text of %zu bytes can never fit the context of %d tokens",
                   item->entry->text.len, build->n_context);
}

static int step_text(struct build *build, struct build_item *item, struct walk *walk)
{
    if (!item->had_ids && check_text(build, item) < 0)
        return -1;
    if (!item->had_ids)
        tokenizer_encode(build->tokenizer, item->entry->text, false, &item->text_ids);
    append_ids(build, item->had_ids ? &item->entry->ids : &item->text_ids);
    walk->state.place = CHAT_AFTER_TEXT;
    walk->has_failed = false;
    walk->carry = NULL;
    return 0;
}

static int step_message(struct build *build, struct build_item *item, struct walk *walk)
{
    const struct token_run *run = NULL;
    if (check_text(build, item) == 0)
        run = run_for(build, item, &walk->state, item->entry);
    if (run == NULL)
        return -1;
    append_ids(build, &run->ids);
    walk->state = run->after;
    walk->has_failed = false;
    walk->carry = NULL;
    return 0;
}

static int step_end(struct build *build, struct build_item *item, struct walk *walk)
{
    const struct entry *entry = item->entry;
    const struct token_run *run = NULL;
    if (adds_nothing(entry))
        return 0;
    if (entry->is_chat && walk->state.place != CHAT_AFTER_OPEN) {
        struct chat_state before = before_answer(walk);
        if ((run = run_for(build, item, &before, NULL)) == NULL)
            return -1;
        append_ids(build, &run->ids);
        walk->state = run->after;
        walk->carry = NULL;
    }
    append_ids(build, &entry->ids);
    pass_end(&walk->state, entry);
    walk->has_failed = entry->finish == GEN_ERROR;
    walk->carry = entry->n_carry > 0 ? entry : NULL;
    return 0;
}

static int step_other(struct build *build, struct build_item *item, struct walk *walk)
{
    return 0; /* build_new takes none */
}

static int (*const steps[])(struct build *build, struct build_item *item, struct walk *walk) = {
    [ENTRY_OTHER] = step_other,
    [ENTRY_TEXT] = step_text,
    [ENTRY_MESSAGE] = step_message,
    [ENTRY_END] = step_end,
};

static int open_answer(struct build *build, struct walk *walk)
{
    if (!build->is_chat || walk->state.place == CHAT_AFTER_OPEN)
        return 0;
    struct chat_state before = before_answer(walk);
    build->opening = make_run(build, NULL, &before, NULL);
    if (build->opening == NULL)
        return -1;
    append_ids(build, &build->opening->ids);
    walk->carry = NULL;
    return 0;
}

/* Some models want every sequence to begin with one certain id; templates that write it themselves
 * must not lead to two. */
static void put_bos(struct build *build)
{
    bool add;
    int32_t bos = tokenizer_bos(build->tokenizer, &add);
    if (!add || bos < 0 || (build->ids.n > 0 && build->ids.data[0] == bos))
        return;
    ids_push(&build->ids, bos);
    memmove(build->ids.data + 1, build->ids.data, (size_t)(build->ids.n - 1) * sizeof(int32_t));
    build->ids.data[0] = bos;
}

void build_run(struct build *build)
{
    struct walk walk = {.state = {.place = CHAT_START}};
    if (build->failed)
        return; /* from the start */
    for (int32_t i = 0; i < build->n; i++)
        if (steps[build->items[i].entry->kind](build, &build->items[i], &walk) < 0 ||
            check_length(build, build->ids.n) < 0)
            return;
    if (open_answer(build, &walk) < 0)
        return;
    put_bos(build);
    if (build->ids.n == 0) {
        build->failed = true;
        (void)err_set(&build->err, "ERR the conversation holds no token: nothing to continue");
        return;
    }
    if (walk.carry != NULL) {
        build->n_carry = walk.carry->n_carry;
        memcpy(build->carry, walk.carry->carry, sizeof build->carry);
    }
}
