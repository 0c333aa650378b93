/* test_cache_prefix.c - the index alone: identity of parents, equal digests, roots, siblings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "cache/prefix.h"

struct index {
    struct pool pool;
    struct prefix prefix;
};

static void index_new(struct index *i, int32_t n_blocks, int32_t block_size, int32_t hash_bits)
{
    pool_init(&i->pool, n_blocks);
    prefix_init(&i->prefix, &i->pool, block_size, hash_bits);
}

static void index_free(struct index *i)
{
    prefix_done(&i->prefix);
    pool_done(&i->pool);
}

static const struct cache_namespace NS = {.model_digest = 1};

static int32_t link_full(struct index *i, struct prefix_parent parent, const int32_t *ids)
{
    int32_t b = pool_take(&i->pool, -1);
    prefix_link(&i->prefix, b, parent, ids, i->prefix.block_size, PREFIX_FULL, NULL);
    return b;
}

static void test_stale_parent_serial_never_matches(void **state)
{
    (void)state;
    struct index i;
    index_new(&i, 4, 2, 64);
    int32_t root = prefix_root_open(&i.prefix, &NS);
    int32_t p = link_full(&i, prefix_root_parent(&i.prefix, root), (int32_t[]){1, 2});
    struct prefix_parent stale = prefix_block_parent(&i.prefix, p);
    prefix_unlink(&i.prefix, p);
    pool_drop(&i.pool, p);
    assert_int_equal(link_full(&i, prefix_root_parent(&i.prefix, root), (int32_t[]){1, 2}), p);
    int32_t child = link_full(&i, prefix_block_parent(&i.prefix, p), (int32_t[]){3, 4});
    int32_t run;
    assert_int_equal(prefix_find(&i.prefix, prefix_block_parent(&i.prefix, p), (int32_t[]){3, 4}),
                     child);
    assert_int_equal(prefix_find(&i.prefix, stale, (int32_t[]){3, 4}), -1);
    assert_int_equal(prefix_find_run(&i.prefix, stale, (int32_t[]){3, 4}, 2, &run), -1);
    index_free(&i);
}

/* With 8 bits every bucket is full of strangers, and each is told apart by its tokens. */
static void test_equal_digests_are_told_apart_by_tokens(void **state)
{
    (void)state;
    enum { N = 1000 };
    struct index i;
    index_new(&i, N, 2, 8);
    int32_t root = prefix_root_open(&i.prefix, &NS);
    struct prefix_parent parent = prefix_root_parent(&i.prefix, root);
    int32_t blocks[N];
    for (int32_t k = 0; k < N; k++)
        blocks[k] = link_full(&i, parent, (int32_t[]){k, k * k});
    for (int32_t k = 0; k < N; k++)
        assert_int_equal(prefix_find(&i.prefix, parent, (int32_t[]){k, k * k}), blocks[k]);
    for (int32_t k = 0; k < N; k++)
        assert_int_equal(prefix_find(&i.prefix, parent, (int32_t[]){k, k * k + 1}), -1);
    assert_true(i.prefix.rejected > N);
    index_free(&i);
}

static void test_same_ids_under_another_parent_are_another_block(void **state)
{
    (void)state;
    struct index i;
    index_new(&i, 4, 1, 8);
    int32_t root = prefix_root_open(&i.prefix, &NS);
    int32_t a = link_full(&i, prefix_root_parent(&i.prefix, root), (int32_t[]){5});
    int32_t b = link_full(&i, prefix_block_parent(&i.prefix, a), (int32_t[]){5});
    assert_int_equal(prefix_find(&i.prefix, prefix_root_parent(&i.prefix, root), (int32_t[]){5}),
                     a);
    assert_int_equal(prefix_find(&i.prefix, prefix_block_parent(&i.prefix, a), (int32_t[]){5}), b);
    assert_int_equal(prefix_find(&i.prefix, prefix_block_parent(&i.prefix, b), (int32_t[]){5}), -1);
    index_free(&i);
}

static void test_namespaces_differ_in_any_one_field(void **state)
{
    (void)state;
    struct index i;
    index_new(&i, 1, 1, 64);
    const struct cache_namespace all[] = {
        {1, 2, 3, 4}, {9, 2, 3, 4}, {1, 9, 3, 4}, {1, 2, 9, 4}, {1, 2, 3, 9}};
    for (int a = 0; a < 5; a++)
        for (int b = 0; b < 5; b++)
            assert_int_equal(prefix_root_open(&i.prefix, &all[a]) ==
                                 prefix_root_open(&i.prefix, &all[b]),
                             a == b);
    index_free(&i);
}

static void test_root_lives_while_used_or_populated(void **state)
{
    (void)state;
    struct index i;
    index_new(&i, 1, 1, 64);
    int32_t root = prefix_root_open(&i.prefix, &NS);
    int32_t b = link_full(&i, prefix_root_parent(&i.prefix, root), (int32_t[]){5});
    prefix_root_close(&i.prefix, root);
    assert_int_equal(prefix_root_find(&i.prefix, &NS), root);
    prefix_unlink(&i.prefix, b);
    assert_int_equal(prefix_root_find(&i.prefix, &NS), -1);
    assert_int_equal(i.prefix.n_roots, 0);
    index_free(&i);
}

static void test_reused_root_slot_gets_a_new_serial(void **state)
{
    (void)state;
    struct index i;
    index_new(&i, 1, 1, 64);
    int32_t root = prefix_root_open(&i.prefix, &NS);
    struct prefix_parent before = prefix_root_parent(&i.prefix, root);
    prefix_root_close(&i.prefix, root);
    root = prefix_root_open(&i.prefix, &(struct cache_namespace){.user = 5});
    struct prefix_parent after = prefix_root_parent(&i.prefix, root);
    assert_int_equal(before.number, after.number);
    assert_int_not_equal(before.serial, after.serial);
    index_free(&i);
}

static void test_thousand_namespaces_are_found_again(void **state)
{
    (void)state;
    struct index i;
    index_new(&i, 1, 1, 64);
    int32_t roots[1000];
    for (uint64_t u = 0; u < 1000; u++)
        roots[u] = prefix_root_open(&i.prefix, &(struct cache_namespace){.user = u});
    for (uint64_t u = 0; u < 1000; u++)
        assert_int_equal(prefix_root_find(&i.prefix, &(struct cache_namespace){.user = u}),
                         roots[u]);
    for (int32_t u = 0; u < 1000; u++)
        prefix_root_close(&i.prefix, roots[u]);
    assert_int_equal(i.prefix.n_roots, 0);
    index_free(&i);
}

static void test_longest_common_run_wins(void **state)
{
    (void)state;
    struct index i;
    index_new(&i, 4, 4, 64);
    int32_t root = prefix_root_open(&i.prefix, &NS);
    struct prefix_parent parent = prefix_root_parent(&i.prefix, root);
    link_full(&i, parent, (int32_t[]){1, 2, 9, 9});
    int32_t best = link_full(&i, parent, (int32_t[]){1, 2, 3, 9});
    link_full(&i, parent, (int32_t[]){1, 9, 9, 9});
    link_full(&i, parent, (int32_t[]){2, 2, 3, 4});
    int32_t run;
    assert_int_equal(prefix_find_run(&i.prefix, parent, (int32_t[]){1, 2, 3, 4}, 4, &run), best);
    assert_int_equal(run, 3);
    assert_int_equal(prefix_find_run(&i.prefix, parent, (int32_t[]){1, 2, 3, 4}, 1, &run) >= 0, 1);
    assert_int_equal(run, 1);
    assert_int_equal(prefix_find_run(&i.prefix, parent, (int32_t[]){7, 2, 3, 4}, 4, &run), -1);
    assert_int_equal(run, 0);
    index_free(&i);
}

/* A root of a popular first id: the search stops, and what it saw last is the newest. */
static void test_search_among_siblings_is_bounded(void **state)
{
    (void)state;
    enum { N = 4 * PREFIX_KIN_MAX };
    struct index i;
    index_new(&i, N, 3, 64);
    int32_t root = prefix_root_open(&i.prefix, &NS);
    struct prefix_parent parent = prefix_root_parent(&i.prefix, root);
    for (int32_t k = 0; k < N; k++)
        link_full(&i, parent, (int32_t[]){1, k, 0});
    int32_t run;
    prefix_find_run(&i.prefix, parent, (int32_t[]){1, N - PREFIX_KIN_MAX, 5}, 3, &run);
    assert_int_equal(run, 2);
    prefix_find_run(&i.prefix, parent, (int32_t[]){1, N - PREFIX_KIN_MAX - 1, 5}, 3, &run);
    assert_int_equal(run, 1);
    index_free(&i);
}

static void test_promises_of_one_owner_drop_together(void **state)
{
    (void)state;
    struct index i;
    index_new(&i, 4, 1, 64);
    struct cache_owner a = {0}, b = {0};
    int32_t root = prefix_root_open(&i.prefix, &NS);
    struct prefix_parent parent = prefix_root_parent(&i.prefix, root);
    for (int32_t k = 0; k < 4; k++) {
        int32_t block = pool_take(&i.pool, -1);
        prefix_link(&i.prefix, block, parent, &k, 1, PREFIX_PROMISED, k % 2 ? &a : &b);
    }
    prefix_drop_promises(&i.prefix, &a);
    assert_int_equal(a.n_promises, 0);
    assert_int_equal(b.n_promises, 2);
    for (int32_t k = 0; k < 4; k++)
        assert_int_equal(prefix_find(&i.prefix, parent, &k) >= 0, k % 2 == 0);
    index_free(&i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stale_parent_serial_never_matches),
        cmocka_unit_test(test_equal_digests_are_told_apart_by_tokens),
        cmocka_unit_test(test_same_ids_under_another_parent_are_another_block),
        cmocka_unit_test(test_namespaces_differ_in_any_one_field),
        cmocka_unit_test(test_root_lives_while_used_or_populated),
        cmocka_unit_test(test_reused_root_slot_gets_a_new_serial),
        cmocka_unit_test(test_thousand_namespaces_are_found_again),
        cmocka_unit_test(test_longest_common_run_wins),
        cmocka_unit_test(test_search_among_siblings_is_bounded),
        cmocka_unit_test(test_promises_of_one_owner_drop_together),
    };
    return cmocka_run_group_tests_name("cache_prefix", tests, NULL, NULL);
}
