/* test_cache_rules.c - the cache's rules, one scenario for each fault that the design names. */
#include "cache_fixture.h"

/* ---- hits ------------------------------------------------------------------------------------ */

static void test_full_blocks_are_hit_again(void **state)
{
    (void)state;
    struct rig r = rig_new(8, 4, 64);
    seq_cached(&r, 1, 2, 3, 4, 5, 6, 7, 8);
    struct seq *s = seq_new(&r, 1, 2, 3, 4, 5, 6, 7, 8, 9);
    assert_true(seq_admit(&r, s, 0));
    assert_int_equal(s->table.computed, 8);
    assert_int_equal(s->copy.n_tokens, 0);
    rig_free(&r);
}

static void test_unfinished_step_is_no_hit(void **state)
{
    (void)state;
    struct rig r = rig_new(8, 4, 64);
    struct seq *a = seq_new(&r, 1, 2, 3, 4, 5, 6);
    assert_true(seq_admit(&r, a, 0));
    seq_step(&r, a, 3);
    assert_int_equal(probe(&r, 1, 2, 3, 4, 5), 0);
    seq_step(&r, a, 1);
    assert_int_equal(probe(&r, 1, 2, 3, 4, 5), 4);
    rig_free(&r);
}

static void test_one_token_is_left_to_compute(void **state)
{
    (void)state;
    struct rig r = rig_new(8, 4, 64);
    seq_cached(&r, 1, 2, 3, 4, 5, 6, 7, 8);
    struct seq *s = seq_new(&r, 1, 2, 3, 4, 5, 6, 7, 8);
    assert_true(seq_admit(&r, s, 0));
    assert_int_equal(s->table.computed, 4);
    assert_int_equal(s->table.ahead, 3); /* the last block is copied from, but for its last slot */
    assert_int_equal(probe(&r, 1, 2, 3, 4, 5, 6, 7, 8), 7);
    assert_int_equal(probe(&r, 1, 2, 3, 4), 3);
    assert_int_equal(probe(&r, 1), 0);
    rig_free(&r);
}

static void test_users_do_not_meet(void **state)
{
    (void)state;
    struct rig r = rig_new(8, 2, 64);
    const int32_t ids[] = {1, 2, 3, 4, 5};
    struct seq *a = seq_new_of(&r, 1, ids, 5), *b = seq_new_of(&r, 2, ids, 5);
    assert_true(seq_admit(&r, a, 0));
    seq_prefill(&r, a);
    seq_release(&r, a);
    assert_int_equal(seq_look(&r, b)->n_hits, 0);
    rig_free(&r);
}

/* History that is rewritten at a block's edge: what was there for (10 x 15, 11) never answers for
 * (10 x 15, X). */
static void test_rewritten_history_is_not_found(void **state)
{
    (void)state;
    enum { X = 28 };
    struct rig r = rig_new(8, 16, 64);
    struct seq *a = seq_new(&r, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10);
    assert_true(seq_admit(&r, a, 0));
    seq_prefill(&r, a);
    seq_decode(&r, a, X);
    seq_release(&r, a);
    a->n_ids = 15; /* the last id is cut off, and 11 put in its place */
    a->ids[a->n_ids++] = 11;
    a->ids[a->n_ids++] = 12;
    assert_true(seq_admit(&r, a, 0));
    assert_int_equal(a->table.computed + a->table.ahead, 15);
    seq_prefill(&r, a);
    seq_release(&r, a);
    int32_t x_block = a->found.source; /* of (10 x 15, X), copied from above */
    struct seq *b = seq_new(&r, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, X, 13);
    assert_int_equal(seq_look(&r, b)->n_hits, 1);
    assert_int_equal(b->table.blocks[0], x_block);
    rig_free(&r);
}

/* Through the whole cache: 1,000 prompts of few tokens over a digest of 8 bits. */
static void test_cut_hash_gives_the_same_hits(void **state)
{
    (void)state;
    struct rig full = rig_new(300, 2, 64), cut = rig_new(300, 2, 8);
    struct rig *rigs[] = {&full, &cut};
    uint32_t random = 1;
    for (int i = 0; i < 1000; i++) {
        int32_t ids[9], tokens[2];
        for (int k = 0; k < 9; k++)
            ids[k] = (int32_t)((random = random * 1664525u + 1013904223u) >> 29);
        for (int k = 0; k < 2; k++) {
            rigs[k]->n_seqs = 0;
            struct seq *s = seq_new_of(rigs[k], 0, ids, 9);
            assert_true(seq_admit(rigs[k], s, 0));
            tokens[k] = s->table.computed + s->table.ahead;
            seq_prefill(rigs[k], s);
            seq_release(rigs[k], s);
            cache_close(rigs[k]->cache, &s->table);
        }
        assert_int_equal(tokens[0], tokens[1]);
    }
    assert_int_equal(rig_stats(&full).rejected_matches, 0);
    assert_true(rig_stats(&cut).rejected_matches > 1000);
    rig_free(&full);
    rig_free(&cut);
}

/* ---- admission ------------------------------------------------------------------------------- */

static void test_failed_admission_changes_nothing(void **state)
{
    (void)state;
    struct rig r = rig_new(4, 2, 64);
    seq_cached(&r, 1, 2, 3, 4);
    struct seq *s = seq_new(&r, 1, 2, 3, 4, 5, 6, 7, 8, 9);
    struct cache_stats before = rig_stats(&r);
    assert_false(seq_admit(&r, s, 0)); /* five blocks of four */
    struct cache_stats after = rig_stats(&r);
    assert_memory_equal(&before, &after, sizeof before);
    assert_int_equal(s->table.n_blocks, 0);
    rig_free(&r);
}

/* The pool holds exactly hits and new blocks: taking first would evict what was matched. */
static void test_matched_blocks_are_counted_before_new_ones_are_taken(void **state)
{
    (void)state;
    struct rig r = rig_new(4, 2, 64);
    seq_cached(&r, 1, 2, 3, 4);
    seq_cached(&r, 9, 9, 8, 8);
    struct seq *s = seq_new(&r, 1, 2, 3, 4, 5, 6, 7);
    assert_true(seq_admit(&r, s, 0));
    assert_int_equal(s->table.computed, 4);
    assert_int_equal(rig_stats(&r).evictions, 2);
    assert_int_equal(probe(&r, 1, 2, 3, 4, 0), 4);
    assert_int_equal(probe(&r, 9, 9, 8, 8, 0), 0);
    rig_free(&r);
}

static void test_admission_leaves_what_it_is_told_to_keep(void **state)
{
    (void)state;
    struct rig r = rig_new(4, 2, 64);
    struct seq *s = seq_new(&r, 1, 2, 3);
    assert_int_equal(seq_look(&r, s)->n_hits, 0);
    assert_false(seq_reserve(&r, s, 3));
    assert_true(seq_reserve(&r, s, 2));
    assert_int_equal(cache_available(r.cache), 2);
    rig_free(&r);
}

/* Comparable servers counted them once for each that shares them. */
static void test_shared_blocks_are_available_once(void **state)
{
    (void)state;
    struct rig r = rig_new(20, 2, 64);
    for (int32_t i = 0; i < 10; i++) {
        struct seq *s = seq_new(&r, 1, 2, 3, 4, 5, 6, 7, 8, 100 + i, 0);
        assert_true(seq_admit(&r, s, 0));
        seq_prefill(&r, s);
    }
    assert_int_equal(rig_stats(&r).used_blocks, 4 + 10);
    for (int32_t i = 0; i < 10; i++)
        seq_release(&r, &r.seqs[i]);
    assert_int_equal(cache_available(r.cache), 20);
    assert_int_equal(rig_stats(&r).free_blocks + rig_stats(&r).cached_blocks, 20);
    rig_free(&r);
}

/* ---- copies ---------------------------------------------------------------------------------- */

static void test_source_of_a_copy_is_pinned_until_its_step_is_done(void **state)
{
    (void)state;
    struct rig r = rig_new(3, 4, 64);
    seq_cached(&r, 1, 2, 3);
    struct seq *s = seq_new(&r, 1, 2, 9);
    assert_true(seq_admit(&r, s, 0));
    assert_int_equal(s->copy.n_tokens, 2);
    assert_int_equal(cache_available(r.cache), 1);
    seq_prefill(&r, s);
    assert_int_equal(cache_available(r.cache), 2);
    rig_free(&r);
}

static void test_copy_is_given_up_when_its_source_is_the_block_that_lacks(void **state)
{
    (void)state;
    struct rig r = rig_new(2, 4, 64);
    seq_cached(&r, 1, 2, 3);
    struct seq *s = seq_new(&r, 1, 2, 9, 9, 9);
    assert_int_equal(seq_look(&r, s)->n_run, 2);
    assert_true(seq_reserve(&r, s, 0));
    assert_int_equal(s->copy.n_tokens, 0);
    assert_int_equal(s->table.ahead, 0);
    assert_int_equal(rig_stats(&r).copies_given_up, 1);
    rig_free(&r);
}

static void test_target_of_a_running_copy_is_not_published(void **state)
{
    (void)state;
    struct rig r = rig_new(4, 4, 64);
    seq_cached(&r, 1, 2, 3);
    struct seq *s = seq_new(&r, 1, 2, 9);
    assert_true(seq_admit(&r, s, 0));
    cache_publish(r.cache, &s->table, s->ids);
    seq_release(&r, s); /* cancelled while the step runs */
    assert_int_equal(probe(&r, 1, 2, 9, 9), 2);
    assert_int_equal(rig_stats(&r).cached_blocks, 0); /* the source is pinned, the target free */
    seq_step(&r, s, 0);
    assert_int_equal(rig_stats(&r).cached_blocks, 1);
    rig_free(&r);
}

static void test_shared_block_is_copied_before_it_is_written(void **state)
{
    (void)state;
    struct rig r = rig_new(6, 4, 64);
    struct seq *a = seq_new(&r, 1, 2, 3, 4, 5, 6), *b = seq_new(&r, 1, 2, 3, 4, 5, 6);
    assert_true(seq_admit(&r, a, 0));
    seq_prefill(&r, a);
    cache_share(r.cache, &a->table, &b->table);
    rig_audit(&r);
    int32_t shared = a->table.blocks[1];
    assert_int_equal(cache_shared(r.cache, &a->table), 2);
    assert_int_equal(cache_write_need(r.cache, &b->table), 1);
    seq_decode(&r, b, 7);
    assert_int_not_equal(b->table.blocks[1], shared);
    assert_int_equal(cache_write_need(r.cache, &a->table), 0); /* alone in it now */
    seq_decode(&r, a, 8);
    assert_int_equal(a->table.blocks[1], shared);
    rig_free(&r);
}

static void test_copy_on_write_asks_for_the_confirmed_slots(void **state)
{
    (void)state;
    struct rig r = rig_new(6, 4, 64);
    struct seq *a = seq_new(&r, 1, 2, 3, 4, 5, 6), *b = seq_new(&r, 1, 2, 3, 4, 5, 6);
    assert_true(seq_admit(&r, a, 0));
    seq_prefill(&r, a);
    cache_share(r.cache, &a->table, &b->table);
    cache_write_room(r.cache, &b->table, &b->copy);
    rig_audit(&r);
    assert_int_equal(b->copy.src, a->table.blocks[1]);
    assert_int_equal(b->copy.dst, b->table.blocks[1]);
    assert_int_equal(b->copy.n_tokens, 2);
    rig_free(&r);
}

/* ---- tails ----------------------------------------------------------------------------------- */

static void test_half_filled_block_is_copied_from(void **state)
{
    (void)state;
    struct rig r = rig_new(8, 4, 64);
    seq_cached(&r, 1, 2, 3, 4, 5, 6);
    struct seq *s = seq_new(&r, 1, 2, 3, 4, 5, 6, 7);
    assert_true(seq_admit(&r, s, 0));
    assert_int_equal(s->table.computed, 4);
    assert_int_equal(s->table.ahead, 2);
    assert_int_equal(s->copy.src, s->found.source);
    assert_int_equal(s->copy.dst, s->table.blocks[1]);
    rig_free(&r);
}

static void test_tail_of_a_running_owner_holds_its_confirmed_count(void **state)
{
    (void)state;
    struct rig r = rig_new(8, 4, 64);
    struct seq *a = seq_new(&r, 1, 2, 3, 4, 5, 6);
    assert_true(seq_admit(&r, a, 0));
    seq_step(&r, a, 5);
    cache_publish(r.cache, &a->table, a->ids);
    rig_audit(&r);
    assert_int_equal(probe(&r, 1, 2, 3, 4, 5, 6, 7), 5); /* 6 is not computed yet */
    seq_step(&r, a, 1);
    assert_int_equal(probe(&r, 1, 2, 3, 4, 5, 6, 7), 5); /* nor published anew */
    cache_publish(r.cache, &a->table, a->ids);
    rig_audit(&r);
    assert_int_equal(probe(&r, 1, 2, 3, 4, 5, 6, 7), 6);
    rig_free(&r);
}

static void test_owner_of_a_tail_fills_it_without_a_copy(void **state)
{
    (void)state;
    struct rig r = rig_new(8, 4, 64);
    struct seq *a = seq_new(&r, 1, 2, 3, 4, 5, 6), *b = seq_new(&r, 1, 2, 3, 4, 5, 6, 9);
    assert_true(seq_admit(&r, a, 0));
    seq_prefill(&r, a);
    cache_publish(r.cache, &a->table, a->ids);
    assert_true(seq_admit(&r, b, 0)); /* pins the tail */
    assert_int_equal(b->copy.n_tokens, 2);
    int32_t own = a->table.blocks[1];
    assert_int_equal(cache_write_need(r.cache, &a->table), 0);
    seq_decode(&r, a, 7);
    seq_decode(&r, a, 8);
    assert_int_equal(a->table.blocks[1], own);
    assert_int_equal(probe(&r, 1, 2, 3, 4, 5, 6, 7, 8, 9), 8); /* full now */
    rig_free(&r);
}

static void test_confirmed_slots_are_no_target(void **state)
{
    (void)state;
    struct rig r = rig_new(8, 4, 64);
    struct seq *a = seq_new(&r, 1, 2, 3, 4, 5, 6);
    assert_true(seq_admit(&r, a, 0));
    assert_false(cache_is_confirmed(r.cache, a->table.blocks[0], 0)); /* promised */
    seq_prefill(&r, a);
    cache_publish(r.cache, &a->table, a->ids);
    assert_true(cache_is_confirmed(r.cache, a->table.blocks[0], 3));
    assert_true(cache_is_confirmed(r.cache, a->table.blocks[1], 1));
    assert_false(cache_is_confirmed(r.cache, a->table.blocks[1], 2));
    rig_free(&r);
}

static void test_covered_tail_is_not_kept(void **state)
{
    (void)state;
    struct rig r = rig_new(8, 4, 64);
    seq_cached(&r, 1, 2, 3);
    assert_int_equal(rig_stats(&r).cached_blocks, 1);
    seq_cached(&r, 1, 2);
    assert_int_equal(rig_stats(&r).cached_blocks, 1);
    rig_free(&r);
}

static void test_longer_block_drops_the_tail_that_it_extends(void **state)
{
    (void)state;
    struct rig r = rig_new(8, 4, 64);
    seq_cached(&r, 1, 2);
    seq_cached(&r, 1, 2, 3);
    assert_int_equal(rig_stats(&r).cached_blocks, 1);
    seq_cached(&r, 1, 2, 3, 4);
    assert_int_equal(rig_stats(&r).cached_blocks, 1);
    seq_cached(&r, 1, 9); /* another one: stays beside it */
    assert_int_equal(rig_stats(&r).cached_blocks, 2);
    rig_free(&r);
}

static void test_tail_that_somebody_holds_is_not_dropped(void **state)
{
    (void)state;
    struct rig r = rig_new(8, 4, 64);
    struct seq *a = seq_new(&r, 1, 2);
    assert_true(seq_admit(&r, a, 0));
    seq_prefill(&r, a);
    cache_publish(r.cache, &a->table, a->ids);
    seq_cached(&r, 1, 2, 3, 4);
    assert_int_equal(rig_stats(&r).used_blocks, 1);
    assert_int_equal(rig_stats(&r).cached_blocks, 1);
    rig_free(&r);
}

/* ---- eviction -------------------------------------------------------------------------------- */

static void test_eviction_takes_leaves_first(void **state)
{
    (void)state;
    struct rig r = rig_new(4, 2, 64);
    seq_cached(&r, 1, 2, 3, 4, 5, 6);
    struct seq *s = seq_new(&r, 9, 9, 9, 9);
    assert_true(seq_admit(&r, s, 0)); /* one free, one evicted: the end of the chain */
    assert_int_equal(probe(&r, 1, 2, 3, 4, 5, 6, 7), 4);
    rig_free(&r);
}

static void test_least_recently_used_goes_first(void **state)
{
    (void)state;
    struct rig r = rig_new(3, 2, 64);
    seq_cached(&r, 1, 1);
    seq_cached(&r, 2, 2);
    seq_cached(&r, 3, 3);
    seq_cached(&r, 1, 1, 1); /* the oldest is used again; its own new block evicts 2 */
    assert_int_equal(probe(&r, 1, 1, 1, 0), 3);
    assert_int_equal(probe(&r, 2, 2, 0), 0);
    assert_int_equal(probe(&r, 3, 3, 0), 2);
    rig_free(&r);
}

static void test_clear_drops_what_nobody_holds(void **state)
{
    (void)state;
    struct rig r = rig_new(8, 2, 64);
    struct seq *a = seq_new(&r, 1, 2, 3, 4, 5);
    assert_true(seq_admit(&r, a, 0));
    seq_prefill(&r, a);
    seq_cached(&r, 1, 2, 9, 9, 9, 9);
    seq_cached(&r, 7, 7, 7);
    assert_int_equal(cache_clear(r.cache), 4);
    rig_audit(&r);
    assert_int_equal(probe(&r, 1, 2, 9, 9, 9), 2);
    assert_int_equal(probe(&r, 7, 7, 7, 7), 0);
    seq_decode(&r, a, 6);
    seq_release(&r, a);
    assert_int_equal(cache_clear(r.cache), 3);
    assert_int_equal(rig_stats(&r).free_blocks, 8);
    rig_free(&r);
}

/* ---- promises and merging -------------------------------------------------------------------- */

static void test_promise_is_found_and_no_hit(void **state)
{
    (void)state;
    struct rig r = rig_new(8, 2, 64);
    struct seq *a = seq_new(&r, 1, 2, 3, 4, 5), *b = seq_new(&r, 1, 2, 3, 4, 6);
    assert_true(seq_admit(&r, a, 0));
    const struct cache_found *found = seq_look(&r, b);
    assert_ptr_equal(found->promised_by, &a->owner);
    assert_int_equal(found->n_hits, 0);
    assert_int_equal(probe(&r, 1, 2, 3, 4, 6), 0);
    rig_free(&r);
}

static void test_kept_promise_is_a_hit(void **state)
{
    (void)state;
    struct rig r = rig_new(8, 2, 64);
    struct seq *a = seq_new(&r, 1, 2, 3, 4, 5), *b = seq_new(&r, 1, 2, 3, 4, 6);
    assert_true(seq_admit(&r, a, 0));
    seq_look(&r, b);
    assert_true(cache_is_promised(r.cache, &b->found));
    seq_step(&r, a, 2);
    assert_false(cache_is_promised(r.cache, &b->found));
    assert_ptr_equal(seq_look(&r, b)->promised_by, &a->owner); /* the next one */
    seq_step(&r, a, 2);
    assert_true(seq_admit(&r, b, 0));
    assert_int_equal(b->table.computed, 4);
    rig_free(&r);
}

static void test_dropped_promise_frees_those_who_wait(void **state)
{
    (void)state;
    struct rig r = rig_new(8, 2, 64);
    struct seq *a = seq_new(&r, 1, 2, 3, 4, 5), *b = seq_new(&r, 1, 2, 3, 4, 6);
    assert_true(seq_admit(&r, a, 0));
    seq_look(&r, b);
    seq_step(&r, a, 3);
    seq_release(&r, a); /* cancelled */
    assert_false(cache_is_promised(r.cache, &b->found));
    assert_true(seq_admit(&r, b, 0));
    assert_int_equal(b->table.computed + b->table.ahead, 3);
    assert_int_equal(b->owner.n_promises, 1);
    rig_free(&r);
}

static void test_promised_last_block_is_not_waited_for(void **state)
{
    (void)state;
    struct rig r = rig_new(8, 2, 64);
    struct seq *a = seq_new(&r, 1, 2, 3, 4, 5), *b = seq_new(&r, 1, 2);
    assert_true(seq_admit(&r, a, 0));
    assert_true(seq_admit(&r, b, 0));
    assert_int_equal(b->owner.n_promises, 0);
    rig_free(&r);
}

static void test_equal_full_blocks_are_merged(void **state)
{
    (void)state;
    struct rig r = rig_new(8, 4, 64);
    struct seq *a = seq_new(&r, 1, 2, 3), *b = seq_new(&r, 1, 2, 3);
    assert_true(seq_admit(&r, a, 0));
    assert_true(seq_admit(&r, b, 0));
    seq_prefill(&r, a);
    seq_prefill(&r, b);
    seq_decode(&r, a, 4);
    assert_int_not_equal(a->table.blocks[0], b->table.blocks[0]);
    seq_decode(&r, b, 4);
    assert_int_equal(a->table.blocks[0], b->table.blocks[0]);
    assert_int_equal(rig_stats(&r).merged, 1);
    assert_int_equal(rig_stats(&r).used_blocks, 1);
    rig_free(&r);
}

/* The last full block of b's prompt is promised by b; a fills an equal one while it decodes. */
static void test_confirmed_block_takes_the_place_of_an_equal_promise(void **state)
{
    (void)state;
    struct rig r = rig_new(12, 4, 64);
    struct seq *a = seq_new(&r, 1, 2, 3), *b = seq_new(&r, 1, 2, 3, 4, 5, 6, 7, 8, 9);
    struct seq *c = seq_new(&r, 1, 2, 3, 4, 5, 6, 7, 8, 10);
    assert_true(seq_admit(&r, a, 0));
    seq_prefill(&r, a);
    assert_true(seq_admit(&r, b, 0));
    assert_int_equal(b->owner.n_promises, 2);
    seq_decode(&r, a, 4);
    assert_int_equal(b->owner.n_promises, 0); /* those it has left too */
    assert_int_equal(rig_stats(&r).promises_taken, 1);
    assert_true(seq_admit(&r, c, 0)); /* nobody to wait for: hits a's block, leads the rest */
    assert_int_equal(c->table.computed, 4);
    assert_int_equal(c->owner.n_promises, 1);
    seq_prefill(&r, b); /* in its own blocks, then merged; now it takes c's promise */
    assert_int_equal(a->table.blocks[0], b->table.blocks[0]);
    assert_int_equal(c->owner.n_promises, 0);
    seq_prefill(&r, c);
    assert_int_equal(b->table.blocks[1], c->table.blocks[1]);
    rig_free(&r);
}

static void test_leader_merges_only_what_it_has_computed(void **state)
{
    (void)state;
    struct rig r = rig_new(8, 4, 64);
    struct seq *a = seq_new(&r, 1, 2, 3), *b = seq_new(&r, 1, 2, 3, 4);
    assert_true(seq_admit(&r, a, 0));
    seq_prefill(&r, a);
    assert_true(seq_admit(&r, b, 0));
    seq_decode(&r, a, 4); /* fills what is the whole rest of b's prompt */
    assert_true(b->table.computed + b->table.ahead < b->n_ids);
    seq_prefill(&r, b);
    assert_int_equal(a->table.blocks[0], b->table.blocks[0]);
    rig_free(&r);
}

/* ---- the audit itself ------------------------------------------------------------------------ */

static void test_audit_names_a_block_without_its_holder(void **state)
{
    (void)state;
    struct rig r = rig_new(4, 2, 64);
    struct seq *a = seq_new(&r, 1, 2, 3);
    assert_true(seq_admit(&r, a, 0));
    const struct block_table nobody = {.is_open = true, .owner = &a->owner};
    const struct block_table *tables[] = {&nobody};
    struct cache_holders holders = {.tables = tables, .n_tables = 1};
    struct err err = {""};
    assert_int_equal(cache_audit(r.cache, &holders, &err), -1);
    assert_memory_equal(err.text, "P1: ", 4);
    rig_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_blocks_are_hit_again),
        cmocka_unit_test(test_unfinished_step_is_no_hit),
        cmocka_unit_test(test_one_token_is_left_to_compute),
        cmocka_unit_test(test_users_do_not_meet),
        cmocka_unit_test(test_rewritten_history_is_not_found),
        cmocka_unit_test(test_cut_hash_gives_the_same_hits),
        cmocka_unit_test(test_failed_admission_changes_nothing),
        cmocka_unit_test(test_matched_blocks_are_counted_before_new_ones_are_taken),
        cmocka_unit_test(test_admission_leaves_what_it_is_told_to_keep),
        cmocka_unit_test(test_shared_blocks_are_available_once),
        cmocka_unit_test(test_source_of_a_copy_is_pinned_until_its_step_is_done),
        cmocka_unit_test(test_copy_is_given_up_when_its_source_is_the_block_that_lacks),
        cmocka_unit_test(test_target_of_a_running_copy_is_not_published),
        cmocka_unit_test(test_shared_block_is_copied_before_it_is_written),
        cmocka_unit_test(test_copy_on_write_asks_for_the_confirmed_slots),
        cmocka_unit_test(test_half_filled_block_is_copied_from),
        cmocka_unit_test(test_tail_of_a_running_owner_holds_its_confirmed_count),
        cmocka_unit_test(test_owner_of_a_tail_fills_it_without_a_copy),
        cmocka_unit_test(test_confirmed_slots_are_no_target),
        cmocka_unit_test(test_covered_tail_is_not_kept),
        cmocka_unit_test(test_longer_block_drops_the_tail_that_it_extends),
        cmocka_unit_test(test_tail_that_somebody_holds_is_not_dropped),
        cmocka_unit_test(test_eviction_takes_leaves_first),
        cmocka_unit_test(test_least_recently_used_goes_first),
        cmocka_unit_test(test_clear_drops_what_nobody_holds),
        cmocka_unit_test(test_promise_is_found_and_no_hit),
        cmocka_unit_test(test_kept_promise_is_a_hit),
        cmocka_unit_test(test_dropped_promise_frees_those_who_wait),
        cmocka_unit_test(test_promised_last_block_is_not_waited_for),
        cmocka_unit_test(test_equal_full_blocks_are_merged),
        cmocka_unit_test(test_confirmed_block_takes_the_place_of_an_equal_promise),
        cmocka_unit_test(test_leader_merges_only_what_it_has_computed),
        cmocka_unit_test(test_audit_names_a_block_without_its_holder),
    };
    return cmocka_run_group_tests_name("cache_rules", tests, NULL, NULL);
}
