/* test_cache_pool.c - where blocks are, who is taken next, in which order they are evicted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "cache/pool.h"

static void test_every_block_is_taken_once(void **state)
{
    (void)state;
    struct pool p;
    bool seen[5] = {false};
    pool_init(&p, 5);
    for (int i = 0; i < 5; i++) {
        int32_t b = pool_take(&p, -1);
        assert_in_range(b, 0, 4);
        assert_false(seen[b]);
        seen[b] = true;
    }
    assert_int_equal(pool_take(&p, -1), -1);
    pool_done(&p);
}

static void test_neighbour_of_the_last_block_is_preferred(void **state)
{
    (void)state;
    struct pool p;
    pool_init(&p, 8);
    int32_t a = pool_take(&p, -1);
    int32_t b = pool_take(&p, 4);
    assert_int_equal(a, 0);
    assert_int_equal(b, 5);
    assert_int_equal(pool_take(&p, a), 1);
    assert_int_equal(pool_take(&p, b), 6);
    assert_int_equal(pool_take(&p, 7), 2); /* 8 is outside: any free one */
    pool_done(&p);
}

static void test_serial_grows_with_each_take(void **state)
{
    (void)state;
    struct pool p;
    pool_init(&p, 1);
    int32_t b = pool_take(&p, -1);
    uint32_t first = p.blocks[b].serial;
    pool_drop(&p, b);
    assert_int_equal(pool_take(&p, -1), b);
    assert_true(p.blocks[b].serial > first);
    pool_done(&p);
}

static void test_findable_block_stays_cached_when_dropped(void **state)
{
    (void)state;
    struct pool p;
    pool_init(&p, 2);
    int32_t b = pool_take(&p, -1);
    pool_set_findable(&p, b, true);
    pool_drop(&p, b);
    assert_int_equal(p.blocks[b].place, POOL_LEAF);
    assert_int_equal(pool_available(&p), 2);
    assert_int_equal(pool_oldest_leaf(&p), b);
    pool_done(&p);
}

static void test_block_with_children_is_no_leaf(void **state)
{
    (void)state;
    struct pool p;
    pool_init(&p, 2);
    int32_t b = pool_take(&p, -1);
    pool_set_findable(&p, b, true);
    pool_add_child(&p, b, 1);
    pool_drop(&p, b);
    assert_int_equal(p.blocks[b].place, POOL_INNER);
    assert_int_equal(pool_oldest_leaf(&p), -1);
    pool_add_child(&p, b, -1);
    assert_int_equal(pool_oldest_leaf(&p), b);
    pool_done(&p);
}

static void test_pinned_block_is_held(void **state)
{
    (void)state;
    struct pool p;
    pool_init(&p, 1);
    int32_t b = pool_take(&p, -1);
    pool_set_findable(&p, b, true);
    pool_pin(&p, b);
    pool_drop(&p, b);
    assert_int_equal(pool_available(&p), 0);
    assert_int_equal(pool_oldest_leaf(&p), -1);
    pool_unpin(&p, b);
    assert_int_equal(pool_oldest_leaf(&p), b);
    pool_done(&p);
}

/* Leaves come out by the time they were let go, whatever happens to the others meanwhile. */
static void test_oldest_leaf_comes_first(void **state)
{
    (void)state;
    enum { N = 64 };
    struct pool p;
    pool_init(&p, N);
    for (int32_t b = 0; b < N; b++) {
        assert_int_equal(pool_take(&p, b - 1), b);
        pool_set_findable(&p, b, true);
    }
    for (int32_t i = 0; i < N; i++)
        pool_drop(&p, i * 29 % N); /* 29 and 64 have no common factor: all of them, in a mess */
    for (int32_t i = 0; i < N; i += 3)
        pool_hold(&p, i * 29 % N);
    for (int32_t i = 0; i < N; i++) {
        if (i % 3 == 0)
            continue;
        int32_t b = pool_oldest_leaf(&p);
        assert_int_equal(b, i * 29 % N);
        pool_set_findable(&p, b, false);
    }
    assert_int_equal(pool_oldest_leaf(&p), -1);
    pool_done(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_block_is_taken_once),
        cmocka_unit_test(test_neighbour_of_the_last_block_is_preferred),
        cmocka_unit_test(test_serial_grows_with_each_take),
        cmocka_unit_test(test_findable_block_stays_cached_when_dropped),
        cmocka_unit_test(test_block_with_children_is_no_leaf),
        cmocka_unit_test(test_pinned_block_is_held),
        cmocka_unit_test(test_oldest_leaf_comes_first),
    };
    return cmocka_run_group_tests_name("cache_pool", tests, NULL, NULL);
}
