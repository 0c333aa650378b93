/* test_cache_lineage.c - what a deleted conversation alone has used is evicted first, and nothing
 * else is; longer tails outlive the shorter ones that they replaced. */
#include "tests/unit/cache_fixture.h"

#include "base/rng.h"

enum { BLOCK = 4 };

/* A conversation with lineage `l` computes ids [n], lets them go; its copy is done. */
static void use(struct rig *r, struct lineage *l, const int32_t *ids, int32_t n)
{
    struct seq *s = seq_new_of(r, 0, ids, n);
    s->owner.lineage = l;
    assert_true(seq_admit(r, s, 0));
    seq_prefill(r, s);
    seq_release(r, s);
    cache_close(r->cache, &s->table);
    r->n_seqs--; /* it was the last */
}

/* Ids that begin alike for equal `kind`s. */
static void fill(int32_t *ids, int32_t n, int32_t kind)
{
    for (int32_t i = 0; i < n; i++)
        ids[i] = kind * 1000 + i;
}

static int32_t found(struct rig *r, const int32_t *ids, int32_t n)
{
    return rig_probe(r, ids, n);
}

/* Takes n blocks for somebody else. */
static void push(struct rig *r, int32_t n)
{
    int32_t ids[SEQ_IDS];

    fill(ids, n * BLOCK, 77);
    use(r, NULL, ids, n * BLOCK);
}

static int32_t cached_of(struct rig *r, const struct lineage *l)
{
    int32_t n_cached, n = cache_count_lineage(r->cache, l, &n_cached);
    assert_int_equal(n, n_cached); /* nobody runs */
    return n;
}

static void test_blocks_of_a_deleted_conversation_go_before_older_ones(void **state)
{
    (void)state;
    struct rig r = rig_new(12, BLOCK, 0);
    int32_t old[21], deleted[21];
    struct lineage *a = lineage_new(), *b = lineage_new();

    fill(old, 21, 1);
    fill(deleted, 21, 2);
    use(&r, a, old, 21);
    use(&r, b, deleted, 21);
    assert_int_equal(cached_of(&r, b), 6);
    cache_drop_lineage(r.cache, b);
    rig_audit(&r);
    assert_int_equal(rig_stats(&r).unwanted_blocks, 6);
    push(&r, 2); /* of 12, all are cached */
    assert_int_equal(found(&r, old, 21), 20);
    assert_int_equal(found(&r, deleted, 21), 16); /* from its end */
    push(&r, 6);
    assert_int_equal(found(&r, old, 21), 20);
    assert_int_equal(found(&r, deleted, 21), 0);
    assert_int_equal(rig_stats(&r).unwanted_blocks, 0);
    cache_drop_lineage(r.cache, a);
    rig_free(&r);
}

static void test_a_beginning_that_somebody_else_used_stays_in_its_place(void **state)
{
    (void)state;
    struct rig r = rig_new(16, BLOCK, 0);
    int32_t a_ids[24], b_ids[16];
    struct lineage *a = lineage_new(), *b = lineage_new();

    fill(a_ids, 24, 1);
    fill(b_ids, 16, 2);
    memcpy(b_ids, a_ids, 8 * sizeof *b_ids); /* two blocks in common */
    use(&r, a, a_ids, 24);
    use(&r, b, b_ids, 16);
    assert_int_equal(cached_of(&r, a), 4);
    assert_int_equal(cached_of(&r, b), 2);
    cache_drop_lineage(r.cache, a);
    assert_int_equal(rig_stats(&r).unwanted_blocks, 4);
    push(&r, 12);
    assert_int_equal(found(&r, a_ids, 24), 8);
    assert_int_equal(found(&r, b_ids, 16), 15);
    cache_drop_lineage(r.cache, b); /* nor does it go with the second one: several used it */
    rig_free(&r);
}

/* Only its end has been evicted: what is left is found all the same. */
static void test_a_conversation_that_was_evicted_in_part_is_let_go_whole(void **state)
{
    (void)state;
    struct rig r = rig_new(8, BLOCK, 0);
    int32_t ids[24];
    struct lineage *a = lineage_new();

    fill(ids, 24, 1);
    use(&r, a, ids, 24);
    push(&r, 4);
    assert_int_equal(found(&r, ids, 24), 16);
    assert_int_equal(cached_of(&r, a), 4);
    cache_drop_lineage(r.cache, a);
    assert_int_equal(rig_stats(&r).unwanted_blocks, 4);
    rig_free(&r);
}

static void test_whoever_finds_a_block_of_a_deleted_one_takes_it_over(void **state)
{
    (void)state;
    struct rig r = rig_new(8, BLOCK, 0);
    int32_t ids[13];
    struct lineage *a = lineage_new(), *b = lineage_new();

    fill(ids, 13, 1);
    use(&r, a, ids, 13);
    cache_drop_lineage(r.cache, a);
    use(&r, b, ids, 13);
    assert_int_equal(rig_stats(&r).unwanted_blocks, 0);
    assert_int_equal(cached_of(&r, b), 4);
    push(&r, 4);
    assert_int_equal(found(&r, ids, 13), 12);
    cache_drop_lineage(r.cache, b);
    assert_int_equal(rig_stats(&r).unwanted_blocks, 4);
    rig_free(&r);
}

/* ---- forks ---------------------------------------------------------------------------------- */

static void test_a_child_keeps_what_its_deleted_source_had_computed(void **state)
{
    (void)state;
    struct rig r = rig_new(16, BLOCK, 0);
    int32_t source[32], own[24];
    struct lineage *a = lineage_new(), *child;

    fill(source, 32, 1);
    fill(own, 24, 2);
    use(&r, a, source, 16);
    cache_fork_lineage(r.cache, &a, &child); /* at 16 tokens */
    use(&r, a, source, 32);
    cache_drop_lineage(r.cache, a);
    rig_audit(&r);
    assert_int_equal(rig_stats(&r).unwanted_blocks, 4);
    memcpy(own, source, 16 * sizeof *own);
    use(&r, child, own, 24);
    assert_int_equal(rig_stats(&r).unwanted_blocks, 4);
    cache_drop_lineage(r.cache, child); /* the last that had them */
    rig_audit(&r);
    assert_int_equal(rig_stats(&r).unwanted_blocks, 10);
    rig_free(&r);
}

static void test_the_trunk_goes_with_the_last_of_all_forks(void **state)
{
    (void)state;
    struct rig r = rig_new(64, BLOCK, 0);
    int32_t ids[24];
    struct lineage *all[5] = {lineage_new()};

    fill(ids, 16, 1);
    use(&r, all[0], ids, 16);
    for (int32_t i = 1; i < 5; i++)
        cache_fork_lineage(r.cache, &all[i / 2], &all[i]); /* forks of forks, too */
    for (int32_t i = 0; i < 5; i++) {
        fill(ids + 16, 8, 10 + i);
        use(&r, all[i], ids, 24);
    }
    for (int32_t i = 0; i < 5; i++) {
        cache_drop_lineage(r.cache, all[i]);
        rig_audit(&r);
        assert_int_equal(rig_stats(&r).unwanted_blocks, 2 * (i + 1) + (i == 4) * 4);
    }
    rig_free(&r);
}

/* Forked and deleted a thousand times: what is left behind is one lineage, not a thousand. */
static void test_a_chain_of_forks_stays_short(void **state)
{
    (void)state;
    struct rig r = rig_new(64, BLOCK, 0);
    int32_t ids[8], depth = 0;
    struct lineage *l = lineage_new(), *child;

    fill(ids, 8, 1);
    for (int32_t i = 0; i < 1000; i++) {
        ids[7] = i;
        use(&r, l, ids, 8);
        cache_fork_lineage(r.cache, &l, &child);
        cache_drop_lineage(r.cache, l);
        l = child;
        rig_audit(&r);
    }
    for (const struct lineage *at = l->up; at; at = at->up)
        depth++;
    assert_in_range(depth, 0, 2);
    cache_drop_lineage(r.cache, l);
    rig_free(&r);
}

/* ---- tails ---------------------------------------------------------------------------------- */

/* A conversation that goes on leaves a longer tail: the shorter one is gone with it, and what is
 * evicted then is somebody else's older one. */
static void test_a_longer_tail_outlives_the_shorter_one_that_it_replaced(void **state)
{
    (void)state;
    struct rig r = rig_new(4, BLOCK, 0);
    const int32_t other[] = {9, 9};
    const int32_t ids[] = {1, 2, 3};

    use(&r, NULL, ids, 1);
    use(&r, NULL, other, 2);
    use(&r, NULL, ids, 2);
    use(&r, NULL, ids, 3);
    assert_int_equal(rig_stats(&r).cached_blocks, 2); /* one of each */
    assert_int_equal(found(&r, (const int32_t[]){1, 2, 3, 4}, 4), 3);
    push(&r, 3); /* one has to go: it is the other's, though it came later than the first */
    assert_int_equal(found(&r, (const int32_t[]){1, 2, 3, 4}, 4), 3);
    assert_int_equal(found(&r, (const int32_t[]){9, 9, 1}, 3), 0);
    rig_free(&r);
}

/* Somebody reads the shorter tail while the longer one is let go: it stays, but goes first. */
static void test_a_shorter_tail_that_is_read_goes_before_the_longer_one(void **state)
{
    (void)state;
    struct rig r = rig_new(5, BLOCK, 0);
    const int32_t ids[] = {1, 2, 3};

    use(&r, NULL, ids, 2);
    struct seq *longer = seq_new(&r, 1, 2, 3);
    struct seq *reader = seq_new(&r, 1, 2, 8);
    assert_true(seq_admit(&r, longer, 0));
    seq_prefill(&r, longer);
    assert_true(seq_admit(&r, reader, 0)); /* its copy is under way */
    seq_release(&r, longer);
    assert_int_equal(rig_stats(&r).cached_blocks, 1);
    seq_prefill(&r, reader);
    seq_release(&r, reader);
    push(&r, 3);
    assert_int_equal(found(&r, (const int32_t[]){1, 2, 3, 4}, 4), 3);
    assert_int_equal(found(&r, (const int32_t[]){1, 2, 8, 4}, 4), 3);
    rig_free(&r);
}

/* ---- against a plain model ------------------------------------------------------------------ */

enum { CONVERSATIONS = 10, POOL = 40, STEPS = 4000, LENGTH = 48 };

/* Who has used a block, by its number and serial. */
struct user {
    uint32_t serial;
    uint64_t used_by; /* bits of conversations, as long as one of them lives */
    bool by_several, is_let_go;
};
struct plain {
    struct rig rig;
    struct user users[POOL];
    struct conversation {
        struct lineage *lineage; /* NULL: there is none */
        int32_t ids[LENGTH], n;
    } all[CONVERSATIONS];
};

static struct user *user_of(struct plain *p, int32_t b)
{
    const struct pool_block *block = &cache_blocks(p->rig.cache)->blocks[b];

    if (p->users[b].serial != block->serial)
        p->users[b] = (struct user){.serial = block->serial};
    return &p->users[b];
}

static void note_use(struct plain *p, int32_t b, int32_t i)
{
    struct user *u = user_of(p, b);

    u->by_several |= u->used_by != 0 && u->used_by != 1ull << i;
    u->used_by |= 1ull << i;
    u->is_let_go = false;
}

static void note_all(struct plain *p, const struct seq *s, int32_t n, int32_t source, int32_t i)
{
    for (int32_t k = 0; k < n; k++)
        note_use(p, s->table.blocks[k], i);
    if (source >= 0)
        note_use(p, source, i);
}

/* Conversation i grows by `more` ids, drawn so that some have beginnings in common. */
static void go_on(struct plain *p, int32_t i, int32_t more, int32_t id)
{
    struct conversation *c = &p->all[i];

    if (!c->lineage) {
        c->lineage = lineage_new();
        c->n = 0;
    }
    for (; more > 0 && c->n < LENGTH; more--, c->n++)
        c->ids[c->n] = c->n < 10 ? i % 3 : id;
    struct seq *s = seq_new_of(&p->rig, 0, c->ids, c->n);
    s->owner.lineage = c->lineage;
    assert_true(seq_admit(&p->rig, s, 0));
    note_all(p, s, s->table.n_blocks, s->copy.n_tokens > 0 ? s->copy.src : -1, i);
    seq_prefill(&p->rig, s);
    seq_release(&p->rig, s);
    s->ids[s->n_ids++] = 99; /* where its blocks are now: they may have merged */
    seq_look(&p->rig, s);
    note_all(p, s, s->found.n_hits, s->found.source, i);
    cache_close(p->rig.cache, &s->table);
    p->rig.n_seqs--;
}

/* A block of exactly one conversation is let go with it, others never are. */
static void delete_one(struct plain *p, int32_t i)
{
    for (int32_t b = 0; b < POOL; b++) {
        struct user *u = user_of(p, b);
        u->is_let_go |= !u->by_several && u->used_by == 1ull << i;
        if (u->is_let_go)
            u->used_by = 0;
    }
    cache_drop_lineage(p->rig.cache, p->all[i].lineage);
    p->all[i].lineage = NULL;
}

static int32_t check_unwanted(struct plain *p)
{
    int32_t n = 0;

    for (int32_t b = 0; b < POOL; b++) {
        const struct pool_block *block = &cache_blocks(p->rig.cache)->blocks[b];
        bool is_cached = block->place == POOL_LEAF || block->place == POOL_INNER;
        assert_int_equal(block->is_unwanted, is_cached && user_of(p, b)->is_let_go);
        n += block->is_unwanted;
    }
    return n;
}

static void test_what_is_unwanted_equals_a_plain_model(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        static struct plain p;
        int32_t most = 0;
        p = (struct plain){.rig = rig_new(POOL, BLOCK, 0)};
        for (uint32_t step = 0; step < STEPS; step++) {
            int32_t i = (int32_t)(rng_at(seed, 0, step) % CONVERSATIONS);
            if (p.all[i].lineage && rng_at(seed, 1, step) % 5 == 0)
                delete_one(&p, i);
            else
                go_on(&p, i, 1 + (int32_t)(rng_at(seed, 2, step) % 9),
                      (int32_t)(rng_at(seed, 3, step) % 2));
            int32_t n = check_unwanted(&p);
            most = n > most ? n : most;
        }
        assert_true(most > 5);
        for (int32_t i = 0; i < CONVERSATIONS; i++)
            if (p.all[i].lineage)
                delete_one(&p, i);
        rig_free(&p.rig);
    }
}

/* Conversations that come, are asked two or three times, and are deleted or not: with a pool that
 * is short, those that stay find more of themselves when the others are let go. */
static double share_found(bool lets_go)
{
    struct rig r = rig_new(64, BLOCK, 0);
    int32_t ids[CONVERSATIONS][LENGTH], n_found = 0, n_asked = 0;
    struct lineage *l[CONVERSATIONS] = {NULL};

    for (uint32_t step = 0; step < 3000; step++) {
        int32_t i = (int32_t)(rng_at(9, 0, step) % CONVERSATIONS);
        if (!l[i]) {
            l[i] = lineage_new();
            fill(ids[i], LENGTH, (int32_t)step + 1);
        } else {
            n_found += found(&r, ids[i], LENGTH);
            n_asked += LENGTH - 1;
        }
        use(&r, lets_go ? l[i] : NULL, ids[i], LENGTH);
        if (rng_at(9, 1, step) % 3 == 0) {
            cache_drop_lineage(r.cache, l[i]);
            l[i] = NULL;
        }
    }
    for (int32_t i = 0; i < CONVERSATIONS; i++)
        if (l[i])
            cache_drop_lineage(r.cache, l[i]);
    rig_free(&r);
    return (double)n_found / n_asked;
}

static void test_those_that_stay_find_more_of_themselves(void **state)
{
    (void)state;
    double with = share_found(true), without = share_found(false);

    print_message("# found again: %.1f %%, without letting go %.1f %%\n", 100 * with,
                  100 * without);
    assert_true(with > without);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_of_a_deleted_conversation_go_before_older_ones),
        cmocka_unit_test(test_a_beginning_that_somebody_else_used_stays_in_its_place),
        cmocka_unit_test(test_a_conversation_that_was_evicted_in_part_is_let_go_whole),
        cmocka_unit_test(test_whoever_finds_a_block_of_a_deleted_one_takes_it_over),
        cmocka_unit_test(test_a_child_keeps_what_its_deleted_source_had_computed),
        cmocka_unit_test(test_the_trunk_goes_with_the_last_of_all_forks),
        cmocka_unit_test(test_a_chain_of_forks_stays_short),
        cmocka_unit_test(test_a_longer_tail_outlives_the_shorter_one_that_it_replaced),
        cmocka_unit_test(test_a_shorter_tail_that_is_read_goes_before_the_longer_one),
        cmocka_unit_test(test_what_is_unwanted_equals_a_plain_model),
        cmocka_unit_test(test_those_that_stay_find_more_of_themselves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
