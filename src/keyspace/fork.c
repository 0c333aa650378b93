/* fork.c - FORK and COPY: another key with the same entries, also while the source generates.
 *
 * A child is a new list of the same (counted) entries, the runs of token ids beside them included,
 * so it costs microseconds and no memory to speak of. K/V needs nothing at all: the child's next
 * GEN finds the source's blocks through the prefix index, as anybody's would; a running source
 * publishes its half-filled last block for that.
 *
 *     source   user 1-0   [running: "The answer is"]         AT names an entry, or a piece of the
 *     child    user 1-0   end 2-0 "The answer is" forked     answer: the child's answer ends there
 *
 * Of a generation with several branches a child holds one: branch 0 (or what goes on for it), or the
 * one that BRANCH names or AT lies in. BRANCH is of the source's last generation; as with AT the
 * child ends there, since what the source holds behind it answered to another branch.
 *
 * All is prepared before anything is touched, so a refusal or missing memory leaves every key as it
 * was. A child's ids go on above the source's last, so a reader may follow it with the same cursor.
 * Main thread only. */
#include "keyspace/fork.h"

#include "base/mem.h"
#include "base/plant.h"
#include "keyspace/generation.h"

/* What the children will hold: entries [0, n) of the source, of those with `group` only `chosen`,
 * then a cut answer or none. */
struct branch {
    struct key *source;
    size_t n;
    struct stream_id group;     /* 0-0: none in particular */
    const struct entry *chosen; /* borrows; NULL: none */
    struct entry *end;          /* owns; NULL: none */
    struct token_run *opening;  /* borrows; of the answer */
    int32_t number;             /* of the running branch that is followed */
};

/* By a table: a client may name a hundred thousand. */
static int check_targets(const struct fork_request *r, struct err *err)
{
    struct table *seen = table_new();
    int rc = 0;
    for (int32_t i = 0; i < r->n_targets && rc == 0; i++) {
        if (r->source_db == r->target_db && bytes_equal(r->source, r->targets[i]))
            rc = err_set(err, "ERR source and destination objects are the same");
        else if (table_put(seen, r->targets[i], seen) != NULL) /* any value: it is a set */
            rc = err_set(err, "ERR destination %d is named twice", i + 1);
    }
    table_free(seen, NULL);
    return rc;
}

/* 1: free to write, 0: one exists; -1: one is about to. */
static int targets_are_free(struct keyspace *ks, const struct fork_request *r, struct err *err)
{
    for (int32_t i = 0; i < r->n_targets && !r->replace; i++) {
        struct key *key = keys_lookup(ks, r->target_db, r->targets[i]);
        if (key != NULL && !key->unborn)
            return 0;
        if (key != NULL && key_refuse_busy(key, err) < 0)
            return -1;
    }
    return 1;
}

/* ---- the answer that the children hold ------------------------------------------------------ */

static struct end_facts facts_of_running(const struct generation *g, int32_t branch,
                                         const struct gen_view *view)
{
    struct end_facts facts = {
        .finish = GEN_FORKED,
        .was_submitted = true,
        .text = view->text,
        .ids = view->ids,
        .n_ids = view->n_ids,
        .unfinished = view->unfinished,
        .n_prompt = view->n_prompt,
        .n_cached = view->n_cached,
        .n_generated = view->n_generated,
        .queued_ms = view->queued_ms,
        .prefill_ms = view->prefill_ms,
        .decode_ms = view->decode_ms,
    };
    generation_describe(g, branch, &facts);
    return facts;
}

static struct end_facts facts_of_ended(const struct entry *end)
{
    return (struct end_facts){
        .finish = GEN_FORKED,
        .is_chat = end->is_chat,
        .was_submitted = true,
        .text = end->text,
        .ids = end->ids.data,
        .n_ids = end->ids.n,
        .n_prompt = (int32_t)conversation_end_number(end, "prompt"),
        .n_cached = (int32_t)conversation_end_number(end, "cached"),
        .seed = conversation_end_seed(end),
        .id = entry_field(end, "id"),
        .queued_ms = conversation_end_number(end, "queued-ms"),
        .prefill_ms = conversation_end_number(end, "prefill-ms"),
        .decode_ms = conversation_end_number(end, "decode-ms"),
        .branch = end->branch,
        .tells_branch = entry_field(end, "branch").data != NULL,
        .group = end->group,
    };
}

static int make_end(struct branch *branch, const struct end_facts *facts, struct err *err)
{
    struct stream_id id;
    if (!keyspace_next_id(branch->source->ks, branch->source->stream, &id))
        return err_set(err, "ERR no entry id is left above the source's last");
    branch->end = conversation_end_entry(id, facts);
    if (branch->end == NULL)
        return err_set(err, "OOM no memory for an answer of %zu bytes", facts->text.len);
    branch->group = facts->group;
    branch->chosen = branch->end;
    return 0;
}

/* The answer up to and with a piece. */
static int cut_at_piece(struct branch *branch, struct end_facts facts, const struct piece *piece,
                        struct err *err)
{
    const struct pieces *pieces = &branch->source->pieces;
    size_t text_len = pieces->branches[piece->branch].base + piece->text_end;
    struct ids ids = {0};
    if (text_len > facts.text.len)
        return err_set(err, "ERR AT names a piece of an answer that is gone");
    conversation_cut(branch->source->ks->config.tokenizer, facts.ids, facts.n_ids,
                     (size_t)pieces->n_carry, facts.text, text_len, &ids);
    facts.text.len = text_len;
    facts.ids = ids.data;
    facts.n_ids = ids.n;
    facts.n_generated = ids.n;
    facts.unfinished = (struct bytes){NULL, 0};
    int rc = make_end(branch, &facts, err);
    ids_free(&ids);
    return rc;
}

static int branch_at_piece(struct branch *branch, const struct piece *piece, struct err *err)
{
    struct key *key = branch->source;
    const struct entry *end = key->pieces.branches[piece->branch].end;
    branch->n = stream_find(key->stream, piece->id);
    branch->number = piece->branch;
    if (end != NULL) {
        int64_t at = stream_index(key->stream, end->id);
        branch->opening = at >= 0 ? stream_slot(key->stream, (size_t)at)->run : NULL;
        return cut_at_piece(branch, facts_of_ended(end), piece, err);
    }
    struct gen_view view;
    const struct generation *g = key->generation;
    ASSERT(g != NULL && g->gen != NULL);
    gen_view_branch(g->gen, PLANTED(PIECE_FIRST) ? 0 : piece->branch, &view);
    branch->opening = g->opening;
    return cut_at_piece(branch, facts_of_running(g, piece->branch, &view), piece, err);
}

/* The answer ends with an end entry that stands. */
static void branch_at_end(struct branch *branch, const struct entry *end)
{
    branch->group = end->group;
    branch->chosen = end;
}

/* With nothing generated yet there is no answer to hold. */
static int branch_running(struct branch *branch, int32_t number, struct err *err)
{
    const struct generation *g = branch->source->generation;
    struct gen_view view;
    if (g->gen == NULL)
        return 0;
    if (PLANTED(BRANCH_FIRST))
        number = 0;
    if (g->branches[number].end != NULL && !PLANTED(BRANCH_ENDED)) {
        branch_at_end(branch, g->branches[number].end);
        return 0;
    }
    engine_show_beam(g->gen, number);
    gen_view_branch(g->gen, number, &view);
    branch->group = g->attempt->group;
    branch->number = number;
    if (view.n_ids == 0 || PLANTED(FORK_FORGETS))
        return 0;
    struct end_facts facts = facts_of_running(g, number, &view);
    branch->opening = g->opening;
    return make_end(branch, &facts, err);
}

static int branch_of_ended(struct branch *branch, int32_t number, struct err *err)
{
    const struct stream *s = branch->source->stream;
    struct end_group group;
    int64_t last = stream_previous_known(s, s->n);
    while (last >= 0 && stream_entry(s, (size_t)last)->kind != ENTRY_END)
        last = stream_previous_known(s, (size_t)last);
    if (last < 0)
        return err_set(err, "ERR BRANCH %d: the source holds no generation", number);
    group_at(s, (size_t)last, &group);
    for (int32_t i = 0; i < group.n; i++) {
        if (group.ends[i]->branch != number)
            continue;
        branch_at_end(branch, group.ends[i]);
        branch->n = PLANTED(BRANCH_BEHIND) ? s->n : (size_t)last + 1;
        return 0;
    }
    return err_set(err,
                   "ERR BRANCH %d: of the source's last generation %d branch%s, the last is number "
                   "%d",
                   number, group.n, group.n == 1 ? " stands" : "es stand",
                   group.ends[group.n - 1]->branch);
}

/* One that is only being tokenised: of the stream's generations it is none yet. */
static bool has_written(const struct generation *g)
{
    return g->gen != NULL || (g->has_begun && !g->resumes);
}

static int branch_at_number(struct branch *branch, int32_t number, struct err *err)
{
    const struct generation *g = branch->source->generation;
    if (g == NULL || !has_written(g))
        return branch_of_ended(branch, number, err);
    if (number < g->n_branches)
        return branch_running(branch, number, err);
    return err_set(err, "ERR BRANCH %d: the generation that runs has %d, from 0 on", number,
                   g->n_branches);
}

static int branch_at_id(struct branch *branch, struct stream_id id, struct err *err)
{
    const struct stream *s = branch->source->stream;
    int64_t at = stream_index(s, id);
    if (at >= 0) {
        const struct entry *entry = stream_entry(s, (size_t)at);
        branch->n = (size_t)at + !PLANTED(AT_EXCLUSIVE);
        if (entry->kind == ENTRY_END)
            branch_at_end(branch, entry);
        return 0;
    }
    const struct piece *piece = pieces_find(&branch->source->pieces, id);
    if (piece != NULL)
        return branch_at_piece(branch, piece, err);
    char text[STREAM_ID_TEXT];
    stream_id_format(text, id);
    return err_set(err, "ERR AT %s names neither an entry nor a live piece of the source", text);
}

static int branch_make(struct branch *branch, const struct fork_request *r, struct err *err)
{
    branch->n = branch->source->stream->n;
    if (r->has_at)
        return branch_at_id(branch, r->at, err);
    if (r->has_branch)
        return branch_at_number(branch, r->branch, err);
    return branch->source->generation != NULL ? branch_running(branch, 0, err) : 0;
}

/* ---- writing -------------------------------------------------------------------------------- */

/* The first child; the others are copies of it. */
static struct stream *child_stream(const struct branch *branch)
{
    struct stream *child = stream_copy(branch->source->stream, branch->n);
    if (child == NULL)
        return NULL;
    if (branch->end != NULL && !stream_reserve(child, 1)) {
        stream_free(child);
        return NULL;
    }
    if (branch->end != NULL) {
        stream_append(child, entry_take(branch->end));
        if (branch->opening != NULL)
            stream_slot(child, child->n - 1)->run = token_run_take(branch->opening);
    }
    group_prune(child, branch->group, branch->chosen);
    return child;
}

/* What runs on a key; NULL: nothing does. */
static struct gen *gen_of(const struct key *key)
{
    return key->generation != NULL ? key->generation->gen : NULL;
}

static void write_child(struct keyspace *ks, const struct branch *branch,
                        const struct fork_request *r, int32_t i, struct stream *child)
{
    struct key *old = keys_lookup(ks, r->target_db, r->targets[i]);
    if (old != NULL)
        key_remove(old, KEY_EVENT_NONE);
    struct key *key = keys_create(ks, r->target_db, r->targets[i]);
    stream_free(key->stream);
    key->stream = child;
    if (branch->source->lineage != NULL)
        engine_fork_lineage(ks->config.engine, gen_of(branch->source), &branch->source->lineage,
                            &key->lineage);
    key_set_born(key);
    key_copy_expiry(key, branch->source);
    key_changed(key, KEY_EVENT_COPY_TO);
    if (child->n > 0)
        watch_signal(key, stream_entry(child, child->n - 1)->id);
}

static int write_all(struct keyspace *ks, const struct branch *branch, const struct fork_request *r,
                     struct err *err)
{
    struct stream **children = xcalloc((size_t)r->n_targets, sizeof *children);
    int32_t n = 0;
    while (n < r->n_targets &&
           (children[n] =
                n == 0 ? child_stream(branch) : stream_copy(children[0], children[0]->n)) != NULL)
        n++;
    bool has_all = n == r->n_targets;
    struct gen *gen = gen_of(branch->source);
    if (has_all && gen != NULL)
        engine_publish_branch(ks->config.engine, gen, branch->number);
    size_t n_entries = n > 0 ? children[0]->n : branch->n;
    for (int32_t i = 0; i < n; i++) {
        if (has_all)
            write_child(ks, branch, r, i, children[i]);
        else
            stream_free(children[i]);
    }
    xfree(children);
    if (!has_all)
        return err_set(err, "OOM no memory for %d copies of %zu entries", r->n_targets, n_entries);
    return n;
}

int32_t keys_fork(struct keyspace *ks, const struct fork_request *request, struct err *err)
{
    struct branch branch = {0};
    if (check_targets(request, err) < 0)
        return -1;
    branch.source = keys_find_read(ks, request->source_db, request->source);
    if (branch.source == NULL)
        return 0;
    int is_free = targets_are_free(ks, request, err);
    if (is_free <= 0)
        return is_free;
    int rc = branch_make(&branch, request, err);
    if (rc == 0)
        rc = write_all(ks, &branch, request, err);
    entry_put(branch.end);
    return rc;
}
