/* test_sharing.c - whose prefixes a GEN finds: those of its user, in whatever key; and what becomes of
 * a conversation's blocks when its key is renamed, copied, flushed or evicted. */
#include "tests/unit/keys_fixture.h"

#include "keyspace/evict.h"

/* 40 tokens: two full blocks and a half. */
static const char prompt[] = "all of this is one and the same prompt..";

static void gen(struct fixture *fx, const char *key, uint64_t user)
{
    struct client c;

    fx->says = "ok";
    fx_gen(fx, &c, (struct gen_args){.key = key, .prompt = prompt, .user = user});
    fx_finish(fx);
    assert_int_equal(c.n_answers, 1);
}

static int32_t found(struct fixture *fx, uint64_t user)
{
    int32_t n_tokens, n_cached;
    struct err err;

    if (fx_probe(fx, user, prompt, NULL, &n_tokens, &n_cached, &err) < 0)
        fail_msg("%s", err.text);
    return n_cached;
}

static int64_t cached_field(struct fixture *fx, const char *key)
{
    int64_t n;

    assert_true(parse_i64(last_field(fx, key, "cached"), &n));
    return n;
}

static struct gen_info info_of(struct fixture *fx, const char *key)
{
    struct gen_info info;

    keys_gen_info(fx->ks, 0, bytes_from(key), &info);
    return info;
}

static int32_t unwanted(struct fixture *fx)
{
    struct engine_stats stats;

    fx_audit(fx);
    engine_stats(fx->engine, &stats);
    return stats.unwanted_blocks;
}

static void test_a_prefix_is_found_by_all_keys_of_its_user_and_by_no_other_user(void **state)
{
    (void)state;
    struct fixture fx;
    fx_open(&fx, "");
    gen(&fx, "a", 1);
    assert_int_equal(found(&fx, 1), 39);
    assert_int_equal(found(&fx, 2), 0);
    assert_int_equal(found(&fx, 0), 0);
    gen(&fx, "b", 2);
    assert_int_equal(cached_field(&fx, "b"), 0);
    gen(&fx, "c", 1);
    assert_int_equal(cached_field(&fx, "c"), 39);
    fx_close_all(&fx);
}

static void test_share_prefixes_is_for_all_users_and_apart_from_their_own(void **state)
{
    (void)state;
    struct fixture fx;
    fx_open(&fx, "");
    gen(&fx, "private", 1);
    keyspace_options(fx.ks)->share_prefixes = true;
    assert_int_equal(found(&fx, 2), 0);
    assert_int_equal(found(&fx, 1), 0); /* it was computed when nothing was shared */
    gen(&fx, "shared", 1);
    assert_int_equal(found(&fx, 2), 39);
    gen(&fx, "other", 2);
    assert_int_equal(cached_field(&fx, "other"), 39);
    keyspace_options(fx.ks)->share_prefixes = false;
    assert_int_equal(found(&fx, 2), 0);
    assert_int_equal(found(&fx, 1), 39);
    fx_close_all(&fx);
}

/* Weights that are loaded anew, other weights and another K/V type find nothing of before. */
static void test_another_model_or_kv_type_finds_nothing(void **state)
{
    (void)state;
    struct fixture fx;
    fx_open(&fx, "");
    struct keyspace_config *config = keyspace_options(fx.ks);
    gen(&fx, "a", 0);
    config->kv_type++;
    assert_int_equal(found(&fx, 0), 0);
    config->kv_type--;
    config->model_digest++;
    assert_int_equal(found(&fx, 0), 0);
    config->model_digest--;
    assert_int_equal(found(&fx, 0), 39);
    fx_close_all(&fx);
}

static void test_blocks_follow_the_conversation_through_rename_and_go_with_it(void **state)
{
    (void)state;
    struct fixture fx;
    struct err err;
    fx_open(&fx, "");
    gen(&fx, "a", 0);
    int64_t own = info_of(&fx, "a").own_blocks;
    assert_int_equal(own, 3);
    assert_int_equal(keys_rename(fx.ks, 0, BYTES("a"), BYTES("b"), false, &err), 1);
    assert_int_equal(unwanted(&fx), 0);
    assert_int_equal(info_of(&fx, "b").own_blocks, own);
    keys_flush(fx.ks, 0);
    fx_turns(&fx, 3); /* keys are freed in slices */
    assert_int_equal(unwanted(&fx), own);
    gen(&fx, "c", 0); /* whoever finds them has them */
    assert_int_equal(unwanted(&fx), 0);
    assert_int_equal(info_of(&fx, "c").own_blocks, own);
    fx_close_all(&fx);
}

static void test_a_copy_keeps_them_from_going(void **state)
{
    (void)state;
    struct fixture fx;
    struct err err;
    struct bytes targets[] = {BYTES("b"), BYTES("c")};
    struct fork_request fork = {.source = BYTES("a"), .targets = targets, .n_targets = 2};
    fx_open(&fx, "");
    gen(&fx, "a", 0);
    int64_t own = info_of(&fx, "a").own_blocks;
    assert_int_equal(keys_fork(fx.ks, &fork, &err), 2);
    keys_delete(fx.ks, 0, BYTES("a"));
    keys_delete(fx.ks, 0, BYTES("c"));
    assert_int_equal(unwanted(&fx), 0);
    keys_delete(fx.ks, 0, BYTES("b"));
    assert_int_equal(unwanted(&fx), own);
    fx_close_all(&fx);
}

static void test_a_key_that_memory_pushes_out_lets_its_blocks_go(void **state)
{
    (void)state;
    struct fixture fx;
    fx_open(&fx, "");
    gen(&fx, "a", 0);
    int64_t own = info_of(&fx, "a").own_blocks;
    while (fx_key(&fx, "a") != NULL)
        assert_true(keys_evict(fx.ks, EVICT_BY_USE) != EVICTED_NOTHING);
    assert_int_equal(unwanted(&fx), own);
    fx_close_all(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_prefix_is_found_by_all_keys_of_its_user_and_by_no_other_user),
        cmocka_unit_test(test_share_prefixes_is_for_all_users_and_apart_from_their_own),
        cmocka_unit_test(test_another_model_or_kv_type_finds_nothing),
        cmocka_unit_test(test_blocks_follow_the_conversation_through_rename_and_go_with_it),
        cmocka_unit_test(test_a_copy_keeps_them_from_going),
        cmocka_unit_test(test_a_key_that_memory_pushes_out_lets_its_blocks_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
