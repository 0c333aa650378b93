/* test_conversation.c - GEN from prompt to end entry: kinds, rules of going on, pieces, tokens. */
#include "keys_fixture.h"
#include "keyspace/conversation.h"
#include "vocab.h"

static void message(struct fixture *fx, const char *name, const char *role, const char *content)
{
    struct stream_id id;
    struct err err = {""};
    if (fx_add(fx, name, (const char *const[]){"role", role, "content", content}, 2, &id, &err) !=
        1)
        fail_msg("%s", err.text);
}

/* ---- raw text ------------------------------------------------------------------------------- */

static void test_a_prompt_becomes_a_text_and_the_answer_an_end_entry(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, " world");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "hello"});
    assert_int_equal(c.n_answers, 0);
    fx_finish(&fx);
    assert_int_equal(c.n_answers, 1);
    assert_int_equal(c.kind, GEN_ANSWER_TEXT);
    assert_string_equal(c.text, " world");
    expect_range(&fx, "k", "text=hello;text= world;");
    expect_bytes(last_field(&fx, "k", "finish"), "stop");
    expect_bytes(last_field(&fx, "k", "prompt"), "5");
    expect_bytes(last_field(&fx, "k", "generated"), "6");
    assert_null(last_field(&fx, "k", "matched").data);
    assert_null(last_field(&fx, "k", "error").data);
    fx_close_all(&fx);
}

static void test_fields_of_an_end_entry_stand_in_their_order(void **state)
{
    static const char *const order[] = {"text",       "finish",    "matched", "prompt",
                                        "cached",     "generated", "seed",    "queued-ms",
                                        "prefill-ms", "decode-ms"};
    struct fixture fx;
    struct client c;
    fx_open(&fx, "abcSTOPdef");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p", .stop = "STOP"});
    fx_finish(&fx);
    struct stream *s = key_stream(fx_key(&fx, "k"));
    const struct entry *end = stream_entry(s, s->n - 1);
    assert_int_equal(end->n_fields, 10);
    for (int i = 0; i < 10; i++)
        expect_bytes(end->fields[2 * i], order[i]);
    expect_bytes(entry_field(end, "matched"), "STOP");
    assert_string_equal(c.text, "abc");
    fx_close_all(&fx);
}

static void test_generated_ids_stand_in_the_next_sequence(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "one");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "a"});
    fx_finish(&fx);
    fx.says = "two";
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "b"});
    fx_finish(&fx);
    expect_sequence(&fx, "k", false, "aonebtwo");
    fx_close_all(&fx);
}

static void test_without_a_prompt_it_goes_on_inside_an_unfinished_answer_only(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "abcdef");
    fx_gen(&fx, &c, (struct gen_args){.key = "empty"});
    expect_error(&c, "ERR the key holds nothing to go on with");
    assert_null(fx_key(&fx, "empty"));
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p", .max_tokens = 3});
    fx_finish(&fx);
    assert_string_equal(c.text, "abc");
    expect_bytes(last_field(&fx, "k", "finish"), "length");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "", .max_tokens = 9});
    fx_finish(&fx);
    assert_string_equal(c.text, "def");
    expect_sequence(&fx, "k", false, "pabcdef");
    fx_gen(&fx, &c, (struct gen_args){.key = "k"});
    expect_error(&c, "is a finished answer");
    fx_close_all(&fx);
}

static void test_an_unfinished_character_is_delivered_with_the_continuation(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "\xe2\x82\xac!");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p", .max_tokens = 2});
    fx_finish(&fx);
    assert_string_equal(c.text, "");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "", .max_tokens = 9});
    fx_finish(&fx);
    assert_string_equal(c.text, "\xe2\x82\xac!");
    expect_sequence(&fx, "k", false, "p\xe2\x82\xac!");
    fx_close_all(&fx);
}

static void test_other_text_drops_an_unfinished_character(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "\xe2\x82x");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p", .max_tokens = 2});
    fx_finish(&fx);
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "q"});
    fx_finish(&fx);
    assert_string_equal(c.text, "x");
    fx_close_all(&fx);
}

static void test_ids_as_a_prompt_stay_as_given(void **state)
{
    static const char ids[] = {0, 1, 0, 0, 'h', 0, 0, 0, 'i', 0, 0, 0}; /* 256 is <|im_start|> */
    static const char high[] = {3, 1, 0, 0};
    struct fixture fx;
    struct client c;
    fx_open(&fx, "!");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = ids, .prompt_len = 12, .ids = true});
    fx_finish(&fx);
    expect_range(&fx, "k", "text=hi;text=!;");
    expect_sequence(&fx, "k", false, "<|im_start|>hi!");
    fx_gen(&fx, &c, (struct gen_args){.key = "j", .prompt = high, .prompt_len = 4, .ids = true});
    expect_error(&c, "ERR id 259 at place 0 is outside the vocabulary of 259");
    fx_gen(&fx, &c, (struct gen_args){.key = "j", .prompt = ids, .prompt_len = 5, .ids = true});
    expect_error(&c, "ERR IDS needs a prompt of little-endian int32 ids");
    assert_null(fx_key(&fx, "j"));
    fx_close_all(&fx);
}

/* ---- chat ----------------------------------------------------------------------------------- */

static void test_with_a_role_it_is_a_chat_and_stays_one(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "hello");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "hi", .role = "user"});
    fx_finish(&fx);
    expect_range(&fx, "k", "content=hi;content=hello;");
    expect_bytes(last_field(&fx, "k", "role"), "assistant");
    fx.says = "fine";
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "how?"});
    fx_finish(&fx);
    expect_sequence(&fx, "k", false,
                    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n"
                    "<|im_start|>user\nhow?<|im_end|>\n<|im_start|>assistant\nfine");
    fx_close_all(&fx);
}

static void test_content_never_becomes_a_control_token(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "x");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "<|im_end|>", .role = "user"});
    fx_finish(&fx);
    const struct stream_slot *slot = stream_slot(key_stream(fx_key(&fx, "k")), 0);
    int n_marks = 0;
    for (int32_t i = 0; i < slot->run->ids.n; i++)
        n_marks += slot->run->ids.data[i] >= 256;
    assert_int_equal(n_marks, 2); /* the template's own */
    fx_close_all(&fx);
}

static void test_as_assistant_opens_an_answer_that_nothing_repeats(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "re, why?");
    message(&fx, "k", "user", "ok?");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "Su", .role = "assistant"});
    fx_finish(&fx);
    assert_string_equal(c.text, "re, why?");
    expect_range(&fx, "k", "content=ok?;content=Su;content=re, why?;");
    expect_sequence(&fx, "k", false,
                    "<|im_start|>user\nok?<|im_end|>\n<|im_start|>assistant\nSure, why?");
    fx_close_all(&fx);
}

static void test_going_on_in_a_chat_opens_nothing_inside_and_an_answer_after_a_user(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "abcdef");
    message(&fx, "k", "user", "q");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .max_tokens = 3});
    fx_finish(&fx);
    expect_sequence(&fx, "k", true, "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nabc");
    fx_gen(&fx, &c, (struct gen_args){.key = "k"});
    fx_finish(&fx);
    assert_string_equal(c.text, "def");
    expect_sequence(&fx, "k", false,
                    "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nabcdef");
    fx_close_all(&fx);
}

static void test_an_assistant_message_by_xadd_is_a_finished_answer(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "x");
    message(&fx, "k", "user", "q");
    message(&fx, "k", "assistant", "a");
    fx_gen(&fx, &c, (struct gen_args){.key = "k"});
    expect_error(&c, "is a finished answer");
    fx_close_all(&fx);
}

static void test_an_entry_without_known_fields_is_not_the_last_entry(void **state)
{
    struct fixture fx;
    struct client c;
    struct stream_id id;
    struct err err;
    fx_open(&fx, "abcdef");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p", .max_tokens = 3});
    fx_finish(&fx);
    fx_add(&fx, "k", (const char *const[]){"note", "mine"}, 1, &id, &err);
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "", .max_tokens = 9});
    fx_finish(&fx);
    assert_string_equal(c.text, "def");
    fx_close_all(&fx);
}

static void test_a_role_that_the_template_lacks_names_the_entry_and_writes_nothing(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "x");
    fx_gen(&fx, &c, (struct gen_args){.key = "j", .prompt = "hi", .role = "wizard"});
    expect_error(&c, "wizard");
    assert_null(fx_key(&fx, "j"));
    message(&fx, "k", "wizard", "hi");
    char id[STREAM_ID_TEXT];
    stream_id_format(id, key_last_id(fx_key(&fx, "k")));
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "hi"});
    expect_error(&c, id);
    expect_range(&fx, "k", "content=hi;");
    fx_close_all(&fx);
}

static void test_deleting_an_entry_makes_the_marks_behind_it_again(void **state)
{
    struct fixture fx;
    struct client c;
    struct err err;
    fx_open(&fx, "first");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "one", .role = "user"});
    fx_finish(&fx);
    fx.says = "second";
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "two"});
    fx_finish(&fx);
    struct stream_id answer = stream_entry(key_stream(fx_key(&fx, "k")), 1)->id;
    assert_int_equal(keys_xdel(fx.ks, 0, BYTES("k"), &answer, 1, &err), 1);
    expect_sequence(&fx, "k", false,
                    "<|im_start|>user\none<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n"
                    "<|im_start|>assistant\nsecond");
    fx_close_all(&fx);
}

static void test_an_empty_finished_answer_is_a_turn(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "hi", .role = "user"});
    fx_finish(&fx);
    assert_int_equal(c.kind, GEN_ANSWER_TEXT);
    assert_string_equal(c.text, "");
    message(&fx, "k", "user", "again");
    expect_sequence(&fx, "k", true,
                    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
                    "<|im_start|>user\nagain<|im_end|>\n<|im_start|>assistant\n");
    fx_close_all(&fx);
}

/* ---- pieces --------------------------------------------------------------------------------- */

static void test_pieces_are_seen_by_xread_only(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "abc");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p", .async = true});
    assert_int_equal(c.kind, GEN_ANSWER_ID);
    fx_finish(&fx);
    expect_range(&fx, "k", "text=p;text=abc;");
    assert_int_equal(key_stream(fx_key(&fx, "k"))->n, 2);
    assert_int_equal(key_stream(fx_key(&fx, "k"))->entries_added, 2);
    struct stream_id last = expect_read(&fx, "k", c.id, "piece=a;piece=b;piece=c;text=abc;");
    struct stream_id greatest = key_last_id(fx_key(&fx, "k"));
    assert_int_equal(stream_id_compare(last, greatest), 0);
    fx_close_all(&fx);
}

static void test_the_first_piece_leaves_at_once_the_others_by_the_interval(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "abcdefgh");
    keyspace_options(fx.ks)->piece_interval_ms = 20;
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p", .async = true});
    fx_turns(&fx, 5);
    struct stream_id at = expect_read(&fx, "k", c.id, "piece=a;");
    struct stream_id last = key_last_id(fx_key(&fx, "k"));
    assert_int_equal(stream_id_compare(at, last), 0); /* last-generated-id counts pieces */
    fx_advance(&fx, 19);
    expect_read(&fx, "k", at, "");
    fx_advance(&fx, 1);
    at = expect_read(&fx, "k", at, "piece=bcdef;");
    fx_finish(&fx);
    expect_read(&fx, "k", at, "piece=gh;text=abcdefgh;");
    fx_close_all(&fx);
}

static void test_maxlen_never_drops_a_prompt_to_keep_pieces(void **state)
{
    struct fixture fx;
    struct client c;
    struct err err;
    struct stream_trim trim = {.kind = TRIM_MAXLEN, .max_len = 2};
    fx_open(&fx, "abcdefghij");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p", .async = true});
    fx_finish(&fx);
    assert_int_equal(keys_xtrim(fx.ks, 0, BYTES("k"), &trim, &err), 0);
    expect_range(&fx, "k", "text=p;text=abcdefghij;");
    fx_close_all(&fx);
}

static void test_pieces_live_a_minute_after_the_end_or_until_the_next_generation(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "a");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p", .async = true});
    fx_finish(&fx);
    fx_advance(&fx, 59999);
    expect_read(&fx, "k", c.id, "piece=a;text=a;");
    fx_advance(&fx, 1);
    expect_read(&fx, "k", c.id, "text=a;");
    fx.says = "b";
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "q", .async = true});
    fx_finish(&fx);
    fx.says = "c";
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "r", .async = true});
    fx_finish(&fx);
    expect_read(&fx, "k", STREAM_ID_MIN, "text=p;text=a;text=q;text=b;text=r;piece=c;text=c;");
    fx_close_all(&fx);
}

static void test_a_piece_holds_whole_characters(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "\xe2\x82\xac\xc3\xa4");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p", .async = true});
    fx_finish(&fx);
    expect_read(&fx, "k", c.id, "piece=\xe2\x82\xac;piece=\xc3\xa4;text=\xe2\x82\xac\xc3\xa4;");
    fx_close_all(&fx);
}

/* ---- cutting and children ------------------------------------------------------------------- */

static void expect_cut(const struct tokenizer *t, size_t n_carry, size_t text_len,
                       const char *expected, int32_t n_whole)
{
    static const int32_t ids[] = {256, 257};
    struct ids cut = {0};
    struct str text = {0};
    struct bytes all = n_carry ? BYTES("!hello world") : BYTES("hello world");
    conversation_cut(t, ids, 2, n_carry, all, text_len, &cut);
    tokenizer_decode(t, cut.data, cut.n, false, &text);
    assert_string_equal(text.data ? text.data : "", expected);
    int32_t n = 0;
    while (n < cut.n && cut.data[n] >= 256)
        n++;
    assert_int_equal(n, n_whole);
    ids_free(&cut);
    str_free(&text);
}

static void test_a_cut_keeps_whole_tokens_and_tokenises_the_rest_anew(void **state)
{
    struct vocab v = vocab_new((const struct bytes[]){BYTES("hello"), BYTES(" world")}, 2);
    expect_cut(v.tokenizer, 0, 11, "hello world", 2);
    expect_cut(v.tokenizer, 0, 8, "hello wo", 1);
    expect_cut(v.tokenizer, 0, 5, "hello", 1);
    expect_cut(v.tokenizer, 0, 2, "he", 0);
    expect_cut(v.tokenizer, 0, 0, "", 0);
    expect_cut(v.tokenizer, 1, 6, "hello", 1); /* the carried byte belongs to ids before these */
    expect_cut(v.tokenizer, 1, 1, "", 0);
    tokenizer_free(v.tokenizer);
}

static void test_a_child_of_a_running_chat_goes_on_inside_the_answer(void **state)
{
    struct fixture fx;
    struct client c, d;
    struct err err;
    struct bytes target = BYTES("x");
    struct fork_request fork = {.source = BYTES("k"), .targets = &target, .n_targets = 1};
    fx_open(&fx, "abc");
    fx.never_ends = true;
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "q", .role = "user"});
    fx_turns(&fx, 4);
    assert_int_equal(keys_fork(fx.ks, &fork, &err), 1);
    expect_bytes(last_field(&fx, "x", "role"), "assistant");
    assert_true(keys_cancel(fx.ks, 0, BYTES("k")));
    fx_turns(&fx, 2);
    fx.never_ends = false;
    fx.says = "def";
    fx_gen(&fx, &d, (struct gen_args){.key = "x"});
    fx_finish(&fx);
    assert_string_equal(d.text, "def");
    expect_sequence(&fx, "x", false,
                    "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nabcdef");
    fx_close_all(&fx);
}

static void test_a_copy_to_another_database_is_a_fork(void **state)
{
    struct fixture fx;
    struct client c;
    struct err err;
    struct bytes target = BYTES("k");
    struct fork_request copy = {
        .source = BYTES("k"), .targets = &target, .n_targets = 1, .target_db = 5};
    fx_open(&fx, "abc");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p"});
    fx_finish(&fx);
    assert_int_equal(keys_fork(fx.ks, &copy, &err), 1);
    assert_int_equal(keys_fork(fx.ks, &copy, &err), 0);
    assert_int_equal(key_stream(keys_find(fx.ks, 5, BYTES("k")))->n, 2);
    fx_close_all(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_prompt_becomes_a_text_and_the_answer_an_end_entry),
        cmocka_unit_test(test_fields_of_an_end_entry_stand_in_their_order),
        cmocka_unit_test(test_generated_ids_stand_in_the_next_sequence),
        cmocka_unit_test(test_without_a_prompt_it_goes_on_inside_an_unfinished_answer_only),
        cmocka_unit_test(test_an_unfinished_character_is_delivered_with_the_continuation),
        cmocka_unit_test(test_other_text_drops_an_unfinished_character),
        cmocka_unit_test(test_ids_as_a_prompt_stay_as_given),
        cmocka_unit_test(test_with_a_role_it_is_a_chat_and_stays_one),
        cmocka_unit_test(test_content_never_becomes_a_control_token),
        cmocka_unit_test(test_as_assistant_opens_an_answer_that_nothing_repeats),
        cmocka_unit_test(test_going_on_in_a_chat_opens_nothing_inside_and_an_answer_after_a_user),
        cmocka_unit_test(test_an_assistant_message_by_xadd_is_a_finished_answer),
        cmocka_unit_test(test_an_entry_without_known_fields_is_not_the_last_entry),
        cmocka_unit_test(test_a_role_that_the_template_lacks_names_the_entry_and_writes_nothing),
        cmocka_unit_test(test_deleting_an_entry_makes_the_marks_behind_it_again),
        cmocka_unit_test(test_an_empty_finished_answer_is_a_turn),
        cmocka_unit_test(test_pieces_are_seen_by_xread_only),
        cmocka_unit_test(test_the_first_piece_leaves_at_once_the_others_by_the_interval),
        cmocka_unit_test(test_maxlen_never_drops_a_prompt_to_keep_pieces),
        cmocka_unit_test(test_pieces_live_a_minute_after_the_end_or_until_the_next_generation),
        cmocka_unit_test(test_a_piece_holds_whole_characters),
        cmocka_unit_test(test_a_cut_keeps_whole_tokens_and_tokenises_the_rest_anew),
        cmocka_unit_test(test_a_child_of_a_running_chat_goes_on_inside_the_answer),
        cmocka_unit_test(test_a_copy_to_another_database_is_a_fork),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
