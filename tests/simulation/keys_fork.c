/* keys_fork.c - what a fork must hold, and what readers of a key must see. */
#include <string.h>
#include "base/clock.h"
#include "engine/generation.h"
#include "keyspace/fork.h"
#include "keys_world.h"

/* ---- FORK --------------------------------------------------------------------------------------- */

/* What a fork must give, and from where. */
struct fork_plan {
    int32_t n_entries; /* of the source that the children hold, other branches' ends aside */
    int64_t group;     /* of whose end entries they hold `chosen` only; 0: none in particular */
    int32_t chosen;    /* entry of the source; -1: none */
    int32_t branch;    /* whose answer stands behind them */
    int32_t n_answer;  /* letters of it; 0: there is none */
    char answer[LONE_MAX_IDS];
    int32_t expected; /* what FORK returns */
};

static void copy_letters(const int32_t *ids, int32_t n, char *letters)
{
    for (int32_t i = 0; i < n; i++)
        letters[i] = (char)('a' + ids[i] - 1);
}

/* The entry with which a branch has ended; -1: it stands no more. */
static int32_t find_end(const struct plain_key *p, int64_t group, int32_t branch)
{
    for (int32_t i = 0; i < p->n; i++)
        if (p->entries[i].kind == ENTRY_END && p->entries[i].group == group &&
            p->entries[i].branch == branch)
            return i;
    return -1;
}

/* The i-th best of what goes on behind the steps that the beam has made: by its sum, then its row. */
static void beam_so_far(const struct plain_gen *gen, int32_t i, struct fork_plan *plan)
{
    const struct plain_beam *b = gen->beam;
    int32_t ids[LONE_MAX_IDS], n = gen->n_beam_steps;
    for (int32_t row = 0; n > 0 && row < gen->n_branches; row++) {
        int32_t n_better = 0;
        for (int32_t o = 0; o < gen->n_branches; o++)
            n_better += b->rows[n - 1][o].sum > b->rows[n - 1][row].sum ||
                        (b->rows[n - 1][o].sum == b->rows[n - 1][row].sum && o < row);
        if (n_better != i)
            continue;
        plain_beam_row(b, n, row, ids);
        copy_letters(ids + b->n_prompt, n, plan->answer);
        plan->n_answer = n;
    }
}

/* What runs: the end of that branch, or what it has made so far. */
static void follow_running(struct keys_world *k, int32_t source, int32_t branch,
                           struct fork_plan *plan)
{
    const struct plain_gen *gen = k->plain[source].running;
    struct gen_view view;
    if (branch >= gen->n_branches) {
        plan->expected = -1;
        return;
    }
    plan->group = gen->group;
    plan->branch = branch;
    if (gen->branches[branch].finish != GEN_NONE) {
        plan->chosen = find_end(&k->plain[source], gen->group, branch);
        return;
    }
    if (gen->beam) {
        beam_so_far(gen, branch, plan);
        return;
    }
    const struct lone *l = &gen->branches[branch].lone;
    gen_view_branch(keys_gen(k, source), branch, &view);
    plan->n_answer = view.n_ids;
    if (view.n_ids < gen->branches[branch].n_resumed || view.n_ids > l->n_ids - l->n_prompt)
        world_fault(k->world, "K3 branch %d has made %d ids", branch, view.n_ids);
    else
        copy_letters(l->ids + l->n_prompt, view.n_ids, plan->answer);
}

/* What ran last, by the entries alone: the children end there. */
static void follow_ended(const struct plain_key *p, int32_t branch, struct fork_plan *plan)
{
    int32_t last = p->n - 1;
    while (last >= 0 && p->entries[last].kind != ENTRY_END)
        last--;
    plan->expected = -1;
    if (last < 0)
        return;
    plan->group = p->entries[last].group;
    plan->chosen = find_end(p, plan->group, branch);
    plan->n_entries = last + 1;
    plan->expected = plan->chosen >= 0 ? 1 : -1;
}

/* An answer that ends with a piece of it. */
static void follow_piece(struct keys_world *k, int32_t source, const struct piece *piece,
                         struct fork_plan *plan)
{
    const struct plain_key *p = &k->plain[source];
    const struct plain_gen *gen = p->running && !p->running->pending ? p->running : p->last;
    const struct pieces_branch *branch = &keys_real(k, source)->pieces.branches[piece->branch];
    int32_t n = (int32_t)(branch->base + piece->text_end);
    if (!gen || piece->branch >= gen->n_branches) {
        world_fault(k->world, "K3 key %d has a piece of branch %d", source, piece->branch);
        return;
    }
    const struct lone *l = &gen->branches[piece->branch].lone;
    if (branch->end && n > (int32_t)branch->end->text.len)
        plan->expected = -1; /* cut by a stop string that began before an orphan's end */
    plan->group = gen->group;
    plan->branch = piece->branch;
    plan->n_answer = n;
    copy_letters(l->ids + l->n_prompt, n, plan->answer);
    for (plan->n_entries = 0; plan->n_entries < p->n; plan->n_entries++)
        if (stream_id_compare(p->entries[plan->n_entries].id, piece->id) > 0)
            break;
}

/* AT: an entry, or a piece where there are some. */
static struct stream_id choose_at(struct keys_world *k, int32_t source, int32_t at,
                                  struct fork_plan *plan)
{
    const struct plain_key *p = &k->plain[source];
    const struct pieces *pieces = &keys_real(k, source)->pieces;
    int32_t i = at % (p->n + pieces->n + 1);
    if (i < p->n) {
        plan->n_entries = i + 1;
        if (p->entries[i].kind == ENTRY_END) {
            plan->group = p->entries[i].group;
            plan->chosen = i;
        }
        return p->entries[i].id;
    }
    if (i == p->n + pieces->n) { /* names nothing */
        plan->expected = -1;
        return STREAM_ID_MIN;
    }
    follow_piece(k, source, &pieces->items[i - p->n], plan);
    return pieces->items[i - p->n].id;
}

/* Entries of the source that mean something in a child: of the group that is followed the chosen
 * one, of others the lowest branch among those that the child holds. */
static void copy_entries(struct plain_key *q, const struct plain_key *p,
                         const struct fork_plan *plan)
{
    for (int32_t i = 0; i < plan->n_entries; i++) {
        const struct plain_entry *e = &p->entries[i];
        bool is_of_group = e->kind == ENTRY_END && plan->group > 0 && e->group == plan->group;
        if (is_of_group ? i == plan->chosen : plain_goes_on(p->entries, plan->n_entries, i, 0))
            q->entries[q->n++] = *e;
    }
    q->exists = true;
    q->expires_us = p->expires_us;
}

/* The child's answer is what the source's had made so far. */
static void adopt_child(struct keys_world *k, const struct plain_key *source, int32_t child,
                        const struct fork_plan *plan)
{
    struct plain_key *q = &k->plain[child];
    struct key *key = keys_real(k, child);
    plain_remove(k, q);
    copy_entries(q, source, plan);
    lru_fork(k->world->lru, (int32_t)(source - k->plain), child);
    if (!key || plan->n_answer == 0)
        return;
    struct stream *s = key_stream(key);
    const struct entry *end = s->n > 0 ? stream_entry(s, s->n - 1) : NULL;
    if (!end || end->kind != ENTRY_END || end->finish != GEN_FORKED ||
        end->branch != plan->branch || (int32_t)end->text.len != plan->n_answer ||
        memcmp(end->text.data, plan->answer, end->text.len) != 0) {
        world_fault(k->world, "K3 a child does not hold the %d letters of branch %d so far",
                    plan->n_answer, plan->branch);
        return;
    }
    plain_append(k, q, end, plan->group);
}

static bool is_valid_fork(const struct keys_world *k, int32_t source, const int32_t *targets,
                          int32_t n, bool replace, struct fork_plan *plan)
{
    plan->expected = n;
    for (int32_t i = 0; i < n; i++)
        if (targets[i] == source || (i > 0 && targets[i] == targets[0])) {
            plan->expected = -1;
            return false;
        }
    for (int32_t i = 0; i < n && !replace && plan->expected > 0; i++)
        if (k->plain[targets[i]].exists)
            plan->expected = 0;
        else if (k->plain[targets[i]].running) /* about to be there */
            plan->expected = -1;
    if (!k->plain[source].exists)
        plan->expected = 0;
    return plan->expected > 0;
}

/* Without AT and BRANCH it follows branch 0 of what runs, or the whole of what stands. */
static void choose(struct keys_world *k, int32_t source, const struct op *op,
                   struct fork_request *r, struct fork_plan *plan)
{
    const struct plain_gen *running = k->plain[source].running;
    int32_t n_targets = plan->expected;
    bool is_running = running && !running->pending;
    r->has_at = op->args[KEY_AT] >= 0;
    r->has_branch = !r->has_at && op->args[KEY_BRANCH] > 0;
    r->branch = r->has_branch ? op->args[KEY_BRANCH] - 1 : 0;
    if (r->has_at)
        r->at = choose_at(k, source, op->args[KEY_AT], plan);
    else if (is_running)
        follow_running(k, source, r->branch, plan);
    else if (r->has_branch)
        follow_ended(&k->plain[source], r->branch, plan);
    if (plan->expected > 0)
        plan->expected = n_targets;
}

void keys_apply_fork(struct keys_world *k, const struct op *op)
{
    int32_t n_keys = k->world->config.n_keys, source = op->args[0] % n_keys;
    int32_t targets[2] = {op->args[KEY_TARGET] % n_keys, op->args[KEY_TARGET_TOO] % n_keys};
    int32_t n = op->args[KEY_TARGET_TOO] >= 0 ? 2 : 1;
    char names[3][8];
    struct bytes to[2] = {keys_name(targets[0], names[0]),
                          keys_name(targets[1] < 0 ? 0 : targets[1], names[1])};
    struct plain_key *p = &k->plain[source];
    struct fork_request r = {.source = keys_name(source, names[2]),
                             .targets = to,
                             .n_targets = n,
                             .replace = op->args[KEY_REPLACE]};
    struct fork_plan plan = {.n_entries = p->n, .chosen = -1};
    struct err err;
    if (is_valid_fork(k, source, targets, n, r.replace, &plan))
        choose(k, source, op, &r, &plan);
    int32_t got = keys_fork(k->keys, &r, &err);
    keys_expect(k, "FORK", got, plan.expected);
    for (int32_t i = 0; i < got && !world_is_wrong(k->world); i++)
        adopt_child(k, p, targets[i], &plan);
}

/* ---- reading ------------------------------------------------------------------------------------ */

struct reading {
    struct keys_world *k;
    struct plain_key *p;
    struct stream_id before;
    bool is_reverse;
    int64_t n, n_pieces;
};

/* Any end entry of a group delivers it, also while others are still to come. */
static void note_read(struct plain_key *p, struct stream_id id)
{
    for (int32_t i = 0; i < p->n; i++)
        if (p->last && p->entries[i].kind == ENTRY_END && p->entries[i].group == p->last->group &&
            stream_id_compare(p->entries[i].id, id) == 0)
            p->last->is_delivered = true;
}

static void on_entry(void *arg, const struct read_entry *entry)
{
    struct reading *r = arg;
    int order = r->n++ > 0 ? stream_id_compare(entry->id, r->before) : 0;
    if (r->is_reverse ? order > 0 : order < 0)
        world_fault(r->k->world, "K2 a reader gets entries out of order");
    r->before = entry->id;
    note_read(r->p, entry->id);
    bool is_piece = bytes_equal(entry->fields[0], BYTES("piece"));
    r->n_pieces += is_piece;
    if (is_piece && r->p->last && (entry->n_fields == 2) != (r->p->last->n_branches > 1))
        world_fault(r->k->world, "K3 a piece of %d branches has %d fields", r->p->last->n_branches,
                    entry->n_fields);
}

/* How many a reader must get. after: an entry of the key, or 0-0. */
static int64_t count_readable(struct keys_world *k, int32_t name, bool with_pieces,
                              struct stream_id after, int32_t most)
{
    const struct plain_key *p = &k->plain[name];
    const struct pieces *pieces = &keys_real(k, name)->pieces;
    int64_t n = 0;
    for (int32_t i = 0; i < p->n; i++)
        n += stream_id_compare(p->entries[i].id, after) > 0;
    for (int32_t i = 0; with_pieces && i < pieces->n; i++)
        n += stream_id_compare(pieces->items[i].id, after) > 0;
    return most > 0 && n > most ? most : n;
}

/* 0: XRANGE, 1: XREVRANGE, 2: XREAD, pieces too. */
void keys_apply_read(struct keys_world *k, const struct op *op)
{
    char name[8];
    struct plain_key *p = keys_target(k, op, name);
    struct key *key = keys_find(k->keys, 0, bytes_from(name));
    int32_t how = op->args[KEY_REVERSE] % 3, i = op->args[0] % k->world->config.n_keys;
    int32_t most = op->args[KEY_COUNT], from = op->args[KEY_FROM];
    struct reading r = {.k = k, .p = p, .is_reverse = how == 1};
    struct stream_id after =
        from > 0 && p->n > 0 ? p->entries[(from - 1) % p->n].id : STREAM_ID_MIN;
    struct stream_id low = after;
    if (!key)
        return;
    int64_t expected = count_readable(k, i, how == 2, after, most);
    (void)stream_id_next(&low);
    int64_t n = how == 2 ? keys_read(key, after, most, on_entry, &r)
                         : keys_range(key, low, STREAM_ID_MAX, r.is_reverse, most > 0 ? most : -1,
                                      on_entry, &r);
    keys_expect(k, "a reader", n, expected);
    if (r.n_pieces > 0 && p->running && p->running->orphan_us > 0)
        p->running->orphan_us = clock_now_us() + ORPHAN_MS * 1000;
}
