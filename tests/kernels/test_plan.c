/* test_plan.c - a plan holds what was added, and derives rows and slots from the block tables. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/plan.h"

#define COUNT(a) ((int32_t)(sizeof(a) / sizeof((a)[0])))

static const struct plan_limits limits = {
    .max_rows = 40,
    .max_seqs = 4,
    .max_table_blocks = 16,
    .max_copies = 2,
    .max_bias = 3,
    .max_counts = 4,
    .block_size = 16,
};

static void test_rows_of_a_prompt_cross_blocks(void **state)
{
    (void)state;
    struct plan *p = plan_new(&limits);
    int32_t ids[20], blocks[] = {5, 2};
    for (int32_t i = 0; i < 20; i++)
        ids[i] = 100 + i;
    assert_int_equal(plan_add_seq(p, 0, ids, 20, blocks, COUNT(blocks)), 0);
    plan_finish(p);

    assert_int_equal(p->n_rows, 20);
    for (int32_t i = 0; i < 20; i++) {
        assert_int_equal(p->ids[i], 100 + i);
        assert_int_equal(p->positions[i], i);
        assert_int_equal(p->row_seq[i], 0);
        assert_int_equal(p->slots[i], i < 16 ? 5 * 16 + i : 2 * 16 + i - 16);
    }
    plan_free(p);
}

static void test_sequences_keep_their_own_tables(void **state)
{
    (void)state;
    struct plan *p = plan_new(&limits);
    int32_t a[] = {7, 8, 9}, b[] = {1}, table_a[] = {3, 0, 6}, table_b[] = {3, 4};
    plan_add_seq(p, 31, a, COUNT(a), table_a, COUNT(table_a));
    assert_int_equal(plan_add_seq(p, 17, b, COUNT(b), table_b, COUNT(table_b)), 1);
    plan_finish(p);

    const int32_t positions[] = {31, 32, 33, 17};
    const int32_t slots[] = {15, 96, 97, 65}, seqs[] = {0, 0, 0, 1};
    assert_memory_equal(p->positions, positions, sizeof(positions));
    assert_memory_equal(p->slots, slots, sizeof(slots));
    assert_memory_equal(p->row_seq, seqs, sizeof(seqs));
    assert_int_equal(p->seqs[1].first_row, 3);
    assert_int_equal(p->seqs[1].table_at, 3);
    plan_free(p);
}

static void test_samples_copy_their_arrays_into_the_pools(void **state)
{
    (void)state;
    struct plan *p = plan_new(&limits);
    int32_t id = 4, block = 0, recent[] = {4, 4, 9};
    struct plan_count counts[] = {{9, 2}};
    struct plan_bias bias[] = {{1, 0.5f}, {2, -1.0f}};
    struct plan_sample first = {.row = 0, .position = 1, .seed = 11};
    struct plan_sample second = {.row = 1, .position = 3, .seed = 12, .branch = 2};

    plan_add_seq(p, 0, &id, 1, &block, 1);
    plan_add_seq(p, 2, &id, 1, &block, 1);
    plan_add_sample(p, &first, recent, 3, NULL, 0, bias, 1);
    assert_int_equal(plan_add_sample(p, &second, recent, 2, counts, 1, bias, 2), 1);
    memset(recent, 0, sizeof(recent)); /* the plan has its own copy */
    plan_finish(p);

    const struct plan_sample *s = &p->samples[1];
    assert_int_equal(p->n_samples, 2);
    assert_int_equal(s->seed, 12);
    assert_int_equal(s->branch, 2);
    assert_int_equal(s->recent_at, 3);
    assert_int_equal(s->n_recent, 2);
    assert_int_equal(p->recent[s->recent_at], 4);
    assert_int_equal(p->counts[s->counts_at].count, 2);
    assert_int_equal(s->bias_at, 1);
    assert_int_equal(p->bias[s->bias_at + 1].id, 2);
    plan_free(p);
}

static void test_clear_makes_room_for_the_next_step(void **state)
{
    (void)state;
    struct plan *p = plan_new(&limits);
    int32_t ids[40] = {0}, blocks[] = {1, 2, 3};
    struct plan_sample sample = {.row = 39};
    for (int round = 0; round < 3; round++) {
        plan_clear(p);
        plan_add_copy(p, 9, 1, 16);
        plan_add_copy(p, 9, 2, 1);
        plan_add_seq(p, 0, ids, 40, blocks, 3);
        for (int i = 0; i < 4; i++)
            plan_add_sample(p, &sample, NULL, 0, NULL, 0, NULL, 0);
        plan_finish(p);
        assert_int_equal(p->n_copies, 2);
        assert_int_equal(p->copies[1].n_tokens, 1);
        assert_int_equal(p->n_samples, 4);
        assert_int_equal(p->slots[39], 3 * 16 + 7);
    }
    plan_free(p);
    plan_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_a_prompt_cross_blocks),
        cmocka_unit_test(test_sequences_keep_their_own_tables),
        cmocka_unit_test(test_samples_copy_their_arrays_into_the_pools),
        cmocka_unit_test(test_clear_makes_room_for_the_next_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
