/* test_conversation.c - GEN from prompt to end entry: kinds, rules of going on, pieces, tokens. */
#include "keys_fixture.h"
#include <poll.h>
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

static void expect_error(const struct client *c, const char *part)
{
    assert_int_equal(c->n_answers, 1);
    assert_int_equal(c->kind, GEN_ANSWER_ERROR);
    if (strstr(c->text, part) == NULL)
        fail_msg("'%s' is not in: %s", part, c->text);
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

/* ---- stages, refusals, information ---------------------------------------------------------- */

static void test_a_refusal_writes_nothing(void **state)
{
    struct fixture fx;
    struct client c;
    static char text[5000];
    fx_open(&fx, "x");
    memset(text, 'a', sizeof text - 1);
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = text});
    assert_int_equal(c.n_answers, 0); /* long: a job tokenises it */
    expect_state(&fx, "k", "queued", "");
    fx_turn(&fx);
    expect_error(&c, "ERR ");
    assert_null(fx_key(&fx, "k"));
    assert_int_equal(keys_count(fx.ks, 0), 0);
    expect_state(&fx, "k", "none", "");
    fx_close_all(&fx);
}

static void test_a_key_is_busy_while_its_prompt_is_tokenised(void **state)
{
    struct fixture fx;
    struct client a, b;
    struct err err;
    struct stream_id id;
    static char text[3000];
    fx_open(&fx, "");
    memset(text, 'a', sizeof text - 1);
    fx_gen(&fx, &a, (struct gen_args){.key = "k", .prompt = text});
    fx_gen(&fx, &b, (struct gen_args){.key = "k", .prompt = "other"});
    expect_error(&b, "BUSYKEY ");
    assert_int_equal(fx_add(&fx, "k", (const char *const[]){"text", "x"}, 1, &id, &err), -1);
    assert_memory_equal(err.text, "BUSYKEY ", 8);
    assert_int_equal(keys_count(fx.ks, 0), 0);
    assert_true(keys_cancel(fx.ks, 0, BYTES("k")));
    expect_error(&a, "CANCELLED ");
    assert_false(keys_cancel(fx.ks, 0, BYTES("k")));
    fx_turn(&fx);
    assert_int_equal(keys_count(fx.ks, 0), 0);
    assert_int_equal(a.n_answers, 1);
    fx_close_all(&fx);
}

static void test_del_of_a_key_that_tokenises_answers_and_counts_nothing(void **state)
{
    struct fixture fx;
    struct client a;
    static char text[3000];
    fx_open(&fx, "");
    memset(text, 'a', sizeof text - 1);
    fx_gen(&fx, &a, (struct gen_args){.key = "k", .prompt = text});
    assert_false(keys_delete(fx.ks, 0, BYTES("k")));
    expect_error(&a, "the key is gone");
    fx_turn(&fx);
    fx_close_all(&fx);
}

static void test_inside_multi_the_id_comes_at_once_and_a_refusal_is_an_end_entry(void **state)
{
    struct fixture fx;
    struct client c;
    static char text[5000];
    fx_open(&fx, "x");
    memset(text, 'a', sizeof text - 1);
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = text, .in_multi = true});
    assert_int_equal(c.kind, GEN_ANSWER_ID);
    assert_int_equal(stream_id_compare(c.id, key_last_id(fx_key(&fx, "k"))), 0);
    fx_turn(&fx);
    assert_int_equal(keys_n_generating(fx.ks), 0);
    expect_bytes(last_field(&fx, "k", "finish"), "error");
    assert_memory_equal(last_field(&fx, "k", "error").data, "ERR ", 4);
    expect_state(&fx, "k", "idle", "error");
    fx_close_all(&fx);
}

static void test_a_long_prompt_is_tokenised_by_a_job_and_its_ids_stay(void **state)
{
    struct fixture fx;
    struct client c;
    static char text[3000];
    fx_open(&fx, "yes");
    memset(text, 'a', sizeof text - 1);
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = text, .with_info = true});
    assert_null(fx_key(&fx, "k"));
    assert_int_equal(jobs_pending(fx.jobs), 1);
    fx_finish(&fx);
    assert_string_equal(c.text, "yes");
    assert_string_equal(c.finish, "stop");
    expect_bytes(last_field(&fx, "k", "prompt"), "2999");
    fx.says = "again";
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "b"});
    assert_int_equal(jobs_pending(fx.jobs), 0); /* only the new text is tokenised */
    fx_finish(&fx);
    expect_bytes(last_field(&fx, "k", "prompt"), "3003");
    fx_close_all(&fx);
}

/* Two children that share entries whose ids are not made yet, each with a job on a real thread: what
 * one installs, the other's job must not be reading. */
static void test_jobs_on_threads_share_entries(void **state)
{
    struct fixture fx;
    struct client c, d;
    struct err err;
    static char text[3000];
    struct bytes target = BYTES("x");
    struct fork_request fork = {.source = BYTES("k"), .targets = &target, .n_targets = 1};
    fx_open(&fx, "");
    jobs_free(fx.jobs);
    fx.jobs = keyspace_options(fx.ks)->jobs = jobs_new(2);
    memset(text, 'a', sizeof text - 1);
    fx_text(&fx, "k", text);
    assert_int_equal(keys_fork(fx.ks, &fork, &err), 1);
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p"});
    fx_gen(&fx, &d, (struct gen_args){.key = "x", .prompt = "p"});
    while (jobs_pending(fx.jobs) > 0) {
        struct pollfd fd = {.fd = jobs_fd(fx.jobs), .events = POLLIN};
        assert_int_equal(poll(&fd, 1, 10000), 1);
        fx_turn(&fx);
    }
    fx_finish(&fx);
    assert_int_equal(c.kind, GEN_ANSWER_TEXT);
    assert_int_equal(d.kind, GEN_ANSWER_TEXT);
    expect_bytes(last_field(&fx, "x", "prompt"), "3000");
    fx_close_all(&fx);
}

static void test_a_prompt_that_can_never_fit_is_refused_before_it_is_copied(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "");
    size_t len = 1 << 20;
    char *text = xcalloc(len + 1, 1);
    memset(text, 'a', len);
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = text});
    expect_error(&c, "ERR a prompt of 1048576 bytes can never fit the context of 4096 tokens");
    assert_int_equal(jobs_pending(fx.jobs), 0);
    xfree(text);
    fx_close_all(&fx);
}

static void test_a_gen_without_memory_is_refused_and_leaves_no_key(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "");
    for (uint64_t n = 1; n <= 3; n++) { /* prompt, room in the stream, the walk */
        mem_fail_at(n, false);
        fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p"});
        mem_fail_at(0, false);
        expect_error(&c, "OOM ");
        assert_null(fx_key(&fx, "k"));
        assert_int_equal(keys_n_generating(fx.ks), 0);
    }
    fx_close_all(&fx);
}

static void test_an_end_entry_without_memory_says_so(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "abc");
    fx.never_ends = true;
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p"});
    fx_turns(&fx, 4);
    mem_fail_at(1, false);
    (void)keys_cancel(fx.ks, 0, BYTES("k"));
    mem_fail_at(0, false);
    fx_turn(&fx);
    expect_error(&c, "GENFAILED ");
    expect_bytes(last_field(&fx, "k", "finish"), "error");
    fx_close_all(&fx);
}

static void test_a_failed_answer_may_be_started_again(void **state)
{
    static const char *const templates[] = {"chatml", "llama-2", "gemma"};
    for (size_t i = 0; i < 3; i++) {
        struct fixture fx;
        struct client c;
        struct err err;
        fx_open(&fx, "abc");
        keyspace_options(fx.ks)->chat = chat_find(templates[i], &err);
        fx.never_ends = true;
        fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "q", .role = "user"});
        fx_turns(&fx, 4);
        fx.fails = true;
        fx_finish(&fx);
        expect_error(&c, "GENFAILED ");
        assert_non_null(strstr(c.text, "the device is gone"));
        fx.fails = fx.never_ends = false;
        fx.says = "better";
        fx_gen(&fx, &c, (struct gen_args){.key = "k"});
        fx_finish(&fx);
        assert_string_equal(c.text, "better");
        fx.says = "and on";
        fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "r"});
        fx_finish(&fx);
        assert_string_equal(c.text, "and on");
        fx_close_all(&fx);
    }
}

static void test_a_gen_is_refused_where_entry_ids_run_out(void **state)
{
    struct fixture fx;
    struct client c;
    struct stream_id id;
    struct err err;
    struct bytes fields[2] = {BYTES("text"), BYTES("x")};
    struct xadd add = {.id_kind = XADD_EXPLICIT,
                       .id = {UINT64_MAX, UINT64_MAX - 100},
                       .fields = fields,
                       .n_fields = 1};
    fx_open(&fx, "x");
    assert_int_equal(keys_xadd(fx.ks, 0, BYTES("k"), &add, &id, &err), 1);
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p"});
    expect_error(&c, "2^32");
    fx_close_all(&fx);
}

static void test_geninfo_follows_a_key_from_none_to_idle_and_beyond_its_removal(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "abc");
    expect_state(&fx, "k", "none", "");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p"});
    expect_state(&fx, "k", "queued", "");
    fx_turns(&fx, 2);
    expect_state(&fx, "k", "running", "");
    fx_finish(&fx);
    expect_state(&fx, "k", "idle", "stop");
    assert_true(keys_delete(fx.ks, 0, BYTES("k")));
    expect_state(&fx, "k", "none", "stop");
    fx_advance(&fx, 60000);
    expect_state(&fx, "k", "none", "");
    fx_close_all(&fx);
}

static void test_cancel_keeps_the_partial_text(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "abc");
    fx.never_ends = true;
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p"});
    fx_turns(&fx, 4);
    assert_true(keys_cancel(fx.ks, 0, BYTES("k")));
    assert_false(keys_cancel(fx.ks, 0, BYTES("k")));
    fx_turn(&fx);
    expect_error(&c, "CANCELLED the generation on 'k' was cancelled; entry ");
    expect_range(&fx, "k", "text=p;text=abc;");
    expect_bytes(last_field(&fx, "k", "finish"), "cancelled");
    fx_close_all(&fx);
}

static void test_a_deadline_ends_it_and_withinfo_shows_the_entry(void **state)
{
    struct fixture fx;
    struct client plain, info;
    fx_open(&fx, "");
    fx.never_ends = true;
    fx_gen(&fx, &plain, (struct gen_args){.key = "a", .prompt = "p", .deadline_ms = 100});
    fx_gen(&fx, &info,
           (struct gen_args){.key = "b", .prompt = "p", .deadline_ms = 100, .with_info = true});
    fx_turns(&fx, 3);
    fx_advance(&fx, 100);
    fx_turn(&fx);
    expect_error(&plain, "TIMEDOUT ");
    assert_int_equal(info.kind, GEN_ANSWER_ENTRY);
    assert_string_equal(info.finish, "deadline");
    fx_close_all(&fx);
}

static void test_block_returns_null_and_the_generation_runs_on(void **state)
{
    struct fixture fx;
    struct client c;
    fx_open(&fx, "");
    fx.never_ends = true;
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = "p", .block_ms = 50});
    fx_advance(&fx, 50);
    assert_int_equal(c.n_answers, 1);
    assert_int_equal(c.kind, GEN_ANSWER_TIMEOUT);
    assert_int_equal(keys_n_generating(fx.ks), 1);
    fx_close_all(&fx);
}

static void test_a_default_is_lowered_to_what_fits_and_a_wish_is_refused(void **state)
{
    struct fixture fx;
    struct client c;
    static char text[3000];
    fx_open_with(&fx, "ok", 100); /* blocks of 16: 1,600 tokens */
    keyspace_options(fx.ks)->default_max_tokens = 2000;
    memset(text, 'a', 1000);
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = text});
    fx_finish(&fx);
    assert_string_equal(c.text, "ok");
    fx_gen(&fx, &c, (struct gen_args){.key = "j", .prompt = text, .max_tokens = 2000});
    expect_error(&c, "OOM ");
    assert_null(fx_key(&fx, "j"));
    fx_close_all(&fx);
}

static void test_a_full_queue_is_refused_with_its_own_prefix(void **state)
{
    struct fixture fx;
    struct client c[64];
    char name[16];
    int n = 0;
    fx_open(&fx, "");
    do {
        snprintf(name, sizeof name, "k%d", n);
        fx_gen(&fx, &c[n], (struct gen_args){.key = name, .prompt = "p"});
    } while (c[n].n_answers == 0 && ++n < 64);
    assert_in_range(n, 8, 63);
    expect_error(&c[n], "QUEUEFULL ");
    assert_null(fx_key(&fx, name));
    fx_close_all(&fx);
}

static void test_probe_tells_tokens_and_cached_and_writes_nothing(void **state)
{
    struct fixture fx;
    struct client c;
    struct err err;
    int32_t n, cached;
    static const char prompt[] = "0123456789abcdef0123456789abcdef!";
    fx_open(&fx, "ok");
    fx_gen(&fx, &c, (struct gen_args){.key = "k", .prompt = prompt});
    fx_finish(&fx);
    struct bytes none = {NULL, 0};
    assert_int_equal(keys_probe(fx.ks, 0, 0, bytes_from(prompt), none, none, &n, &cached, &err), 0);
    assert_int_equal(n, 33);
    assert_int_equal(cached, 32);
    assert_int_equal(keys_probe(fx.ks, 0, 7, bytes_from(prompt), none, none, &n, &cached, &err), 0);
    assert_int_equal(cached, 0); /* another user */
    keyspace_options(fx.ks)->share_prefixes = true;
    assert_int_equal(keys_probe(fx.ks, 0, 7, bytes_from(prompt), none, none, &n, &cached, &err), 0);
    assert_int_equal(cached, 0); /* what was computed for one user is not everybody's */
    keyspace_options(fx.ks)->share_prefixes = false;
    assert_int_equal(keys_probe(fx.ks, 0, 0, BYTES("?"), none, BYTES("k"), &n, &cached, &err), 0);
    assert_int_equal(n, 36);
    assert_int_equal(keys_probe(fx.ks, 0, 0, BYTES(""), none, none, &n, &cached, &err), -1);
    assert_int_equal(keys_count(fx.ks, 0), 1);
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
        cmocka_unit_test(test_a_refusal_writes_nothing),
        cmocka_unit_test(test_a_key_is_busy_while_its_prompt_is_tokenised),
        cmocka_unit_test(test_del_of_a_key_that_tokenises_answers_and_counts_nothing),
        cmocka_unit_test(test_inside_multi_the_id_comes_at_once_and_a_refusal_is_an_end_entry),
        cmocka_unit_test(test_a_long_prompt_is_tokenised_by_a_job_and_its_ids_stay),
        cmocka_unit_test(test_jobs_on_threads_share_entries),
        cmocka_unit_test(test_a_prompt_that_can_never_fit_is_refused_before_it_is_copied),
        cmocka_unit_test(test_a_gen_without_memory_is_refused_and_leaves_no_key),
        cmocka_unit_test(test_an_end_entry_without_memory_says_so),
        cmocka_unit_test(test_a_failed_answer_may_be_started_again),
        cmocka_unit_test(test_a_gen_is_refused_where_entry_ids_run_out),
        cmocka_unit_test(test_geninfo_follows_a_key_from_none_to_idle_and_beyond_its_removal),
        cmocka_unit_test(test_cancel_keeps_the_partial_text),
        cmocka_unit_test(test_a_deadline_ends_it_and_withinfo_shows_the_entry),
        cmocka_unit_test(test_block_returns_null_and_the_generation_runs_on),
        cmocka_unit_test(test_a_default_is_lowered_to_what_fits_and_a_wish_is_refused),
        cmocka_unit_test(test_a_full_queue_is_refused_with_its_own_prefix),
        cmocka_unit_test(test_probe_tells_tokens_and_cached_and_writes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
