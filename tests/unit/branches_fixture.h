/* branches_fixture.h - generations of several branches on keys: what each says, and what stands. */
#ifndef TESTS_UNIT_BRANCHES_FIXTURE_H
#define TESTS_UNIT_BRANCHES_FIXTURE_H

#include "keys_fixture.h"

#include "keyspace/conversation.h"
#include "keyspace/group.h"
#include "keyspace/keyspace.h"

static const struct gen_args three = {.key = "k", .prompt = "p", .n = 3};

/* Branches 0, 1, 2 say "abc", "de" and nothing. */
static inline void open_three(struct fixture *fx)
{
    fx_open(fx, "");
    fx->branch_says[0] = "abc";
    fx->branch_says[1] = "de";
    fx->branch_says[2] = "";
}

/* Branch 0 says "a" and ends; 1 and 2 say these, then more for ever. */
static inline void open_endless(struct fixture *fx, const char *one, const char *two)
{
    fx_open(fx, "");
    fx->never_ends = true;
    fx->branch_says[0] = "a\x01"; /* a stop string of the test */
    fx->branch_says[1] = one;
    fx->branch_says[2] = two;
}
static const struct gen_args endless = {.key = "k", .prompt = "p", .n = 3, .stop = "\x01"};

static inline void expect_texts(const struct client *c, const char *texts, int32_t n)
{
    assert_int_equal(c->n_answers, 1);
    assert_int_equal(c->kind, GEN_ANSWER_TEXT);
    assert_string_equal(c->text, texts);
    assert_int_equal(c->n_ends, n);
    assert_true(c->is_list);
}

/* "p1:b " a piece, "e1:de/stop " an end, "text " all else. */
static inline void note_entry(void *arg, const struct read_entry *entry)
{
    struct str *out = arg;
    struct bytes branch = {"-", 1}, finish = {NULL, 0}, piece = {NULL, 0};
    for (int32_t i = 0; i < entry->n_fields; i++) {
        if (bytes_equal(entry->fields[2 * i], BYTES("branch")))
            branch = entry->fields[2 * i + 1];
        if (bytes_equal(entry->fields[2 * i], BYTES("finish")))
            finish = entry->fields[2 * i + 1];
        if (bytes_equal(entry->fields[2 * i], BYTES("piece")))
            piece = entry->fields[2 * i + 1];
    }
    struct bytes text = entry->fields[1];
    if (piece.data != NULL || finish.data != NULL)
        str_printf(out, "%c%.*s:", piece.data != NULL ? 'p' : 'e', (int)branch.len, branch.data);
    str_append(out, text.data, text.len);
    if (finish.data != NULL)
        str_printf(out, "/%.*s", (int)finish.len, finish.data);
    str_append_char(out, ' ');
}

static inline void expect_noted(struct str *noted, const char *expected)
{
    assert_string_equal(noted->data ? noted->data : "", expected);
    str_free(noted);
}

/* Looks without counting as a reader. */
static inline void expect_held(struct fixture *fx, const char *name, const char *expected)
{
    struct str noted = {0};
    struct stream *s = key_stream(fx_key(fx, name));
    for (size_t i = 0; i < s->n; i++) {
        struct read_entry entry = read_entry_of(stream_entry(s, i));
        note_entry(&noted, &entry);
    }
    expect_noted(&noted, expected);
}

static inline const struct entry *end_of(struct fixture *fx, const char *name, int32_t branch)
{
    struct stream *s = key_stream(fx_key(fx, name));
    for (size_t i = s->n; i > 0; i--)
        if (stream_entry(s, i - 1)->kind == ENTRY_END && stream_entry(s, i - 1)->branch == branch)
            return stream_entry(s, i - 1);
    fail_msg("branch %d has no end entry", branch);
    return NULL;
}

static inline void delete_end(struct fixture *fx, int32_t branch)
{
    struct err err;
    struct stream_id id = end_of(fx, "k", branch)->id;
    assert_int_equal(keys_xdel(fx->ks, 0, BYTES("k"), &id, 1, &err), 1);
}

static inline void run_three(struct fixture *fx)
{
    struct client c;
    open_three(fx);
    fx_gen(fx, &c, three);
    fx_finish(fx);
    expect_texts(&c, "abc|de|", 3);
}

static inline int32_t fork_branch(struct fixture *fx, const char *to, int32_t branch,
                                  struct err *err)
{
    struct bytes target = bytes_from(to);
    struct fork_request r = {.source = BYTES("k"), .targets = &target, .n_targets = 1};
    r.has_branch = branch >= 0;
    r.branch = branch;
    return keys_fork(fx->ks, &r, err);
}

#endif
