/* keys_fork.c - what a fork must hold, and what readers of a key must see. */
#include <string.h>
#include "base/clock.h"
#include "keyspace/fork.h"
#include "keyspace/generation.h"
#include "keys_world.h"

/* ---- FORK --------------------------------------------------------------------------------------- */

/* What a fork must give, and from where. */
struct fork_plan {
    int32_t n_entries; /* of the source that the children hold */
    int32_t n_answer;  /* letters of the answer behind them; -1: none */
    int32_t expected;  /* what FORK returns */
};

/* AT: an entry, or a piece where there are some. */
static struct stream_id choose_at(struct keys_world *k, int32_t source, int32_t at,
                                  struct fork_plan *plan)
{
    const struct plain_key *p = &k->plain[source];
    const struct pieces *pieces = &keys_real(k, source)->pieces;
    int32_t i = at % (p->n + pieces->n + 1);
    if (i < p->n) {
        plan->n_entries = i + 1;
        plan->n_answer = -1;
        return p->entries[i].id;
    }
    if (i == p->n + pieces->n) { /* names nothing */
        plan->expected = -1;
        return STREAM_ID_MIN;
    }
    const struct piece *piece = &pieces->items[i - p->n];
    const struct pieces_branch *branch = &pieces->branches[0];
    plan->n_answer = (int32_t)(branch->base + piece->text_end);
    if (branch->end && plan->n_answer > (int32_t)branch->end->text.len)
        plan->expected = -1; /* cut by a stop string that began before an orphan's end */
    for (plan->n_entries = 0; plan->n_entries < p->n; plan->n_entries++)
        if (stream_id_compare(p->entries[plan->n_entries].id, piece->id) > 0)
            break;
    return piece->id;
}

static int32_t n_generated(struct keys_world *k, int32_t source)
{
    struct key *key = keys_real(k, source);
    struct gen_view view;
    if (!key || !key->generation || !key->generation->gen)
        return 0;
    gen_view(key->generation->gen, &view);
    return view.n_ids;
}

/* The child's answer is what the source's had made so far. */
static void adopt_child(struct keys_world *k, const struct plain_key *source, int32_t child,
                        const struct fork_plan *plan, const char *answer)
{
    struct plain_key *q = &k->plain[child];
    struct key *key = keys_real(k, child);
    plain_remove(k, q);
    plain_copy(q, source, plan->n_entries);
    if (!key || plan->n_answer < 0)
        return;
    struct stream *s = key_stream(key);
    const struct entry *end = s->n > 0 ? stream_entry(s, s->n - 1) : NULL;
    if (!end || end->kind != ENTRY_END || end->finish != GEN_FORKED ||
        (int32_t)end->text.len != plan->n_answer ||
        memcmp(end->text.data, answer, end->text.len) != 0) {
        world_fault(k->world, "K3 a child does not hold the %d letters of the answer so far",
                    plan->n_answer);
        return;
    }
    plain_append(k, q, end);
}

/* answer <- all letters of what runs, or ran last, on the source. */
static void copy_answer(const struct plain_gen *gen, char *answer)
{
    for (int32_t i = gen ? gen->lone.n_prompt : 0; gen && i < gen->lone.n_ids; i++)
        *answer++ = (char)('a' + gen->lone.ids[i] - 1);
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

void keys_apply_fork(struct keys_world *k, const struct op *op)
{
    char answer[LONE_MAX_IDS];
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
    struct fork_plan plan = {.n_entries = p->n, .n_answer = n_generated(k, source)};
    struct err err;
    if (plan.n_answer == 0)
        plan.n_answer = -1;
    if (is_valid_fork(k, source, targets, n, r.replace, &plan) && op->args[KEY_AT] >= 0) {
        r.has_at = true;
        r.at = choose_at(k, source, op->args[KEY_AT], &plan);
    }
    copy_answer(p->running && !p->running->pending ? p->running : p->last, answer);
    int32_t got = keys_fork(k->keys, &r, &err);
    keys_expect(k, "FORK", got, plan.expected);
    for (int32_t i = 0; i < got; i++)
        adopt_child(k, p, targets[i], &plan, answer);
}

/* ---- reading ------------------------------------------------------------------------------------ */

struct reading {
    struct keys_world *k;
    struct plain_key *p;
    struct stream_id before;
    bool is_reverse;
    int64_t n;
};

static void on_entry(void *arg, const struct read_entry *entry)
{
    struct reading *r = arg;
    int order = r->n++ > 0 ? stream_id_compare(entry->id, r->before) : 0;
    if (r->is_reverse ? order > 0 : order < 0)
        world_fault(r->k->world, "K2 a reader gets entries out of order");
    r->before = entry->id;
    struct plain_gen *gen = r->p->last;
    if (gen && gen->finish != GEN_NONE && stream_id_compare(gen->end_id, entry->id) == 0)
        gen->is_delivered = true;
}

/* 0: XRANGE, 1: XREVRANGE, 2: XREAD from the beginning, pieces too. */
void keys_apply_read(struct keys_world *k, const struct op *op)
{
    char name[8];
    struct plain_key *p = keys_target(k, op, name);
    struct key *key = keys_find(k->keys, 0, bytes_from(name));
    int32_t how = op->args[KEY_REVERSE] % 3;
    struct reading r = {.k = k, .p = p, .is_reverse = how == 1};
    if (!key)
        return;
    int32_t n_pieces = how == 2 ? key->pieces.n : 0;
    int64_t n = how == 2
                    ? keys_read(key, STREAM_ID_MIN, 0, on_entry, &r)
                    : keys_range(key, STREAM_ID_MIN, STREAM_ID_MAX, r.is_reverse, -1, on_entry, &r);
    keys_expect(k, "a reader", n, p->n + n_pieces);
    if (n_pieces > 0 && p->running && p->running->orphan_us > 0)
        p->running->orphan_us = clock_now_us() + ORPHAN_MS * 1000;
}
