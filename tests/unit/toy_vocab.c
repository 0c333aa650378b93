/* toy_vocab.c - a small vocabulary for tests: all 256 bytes, some merges, some specials. */
#include "tests/unit/toy_vocab.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>
#include "base/err.h"
#include "model/tok_bpe.h"

enum { TOY_MAX = 512 };

struct building {
    char bytes[256];
    struct str arena[TOY_MAX]; /* texts of merged tokens */
    struct bytes texts[TOY_MAX], merges[TOY_MAX];
    char kinds[TOY_MAX];
    int32_t n;
};

static void add(struct building *b, struct bytes text, char kind)
{
    assert_true(b->n < TOY_MAX);
    b->texts[b->n] = text;
    b->kinds[b->n++] = kind;
}

static void add_merge(struct building *b, const char *merge, int32_t i)
{
    const char *blank = strchr(merge, ' ');
    struct str *text = &b->arena[i];
    b->merges[i] = bytes_from(merge);
    assert_non_null(blank);
    assert_true(bpe_unspell((struct bytes){merge, (size_t)(blank - merge)}, text));
    assert_true(bpe_unspell(bytes_from(blank + 1), text));
    add(b, bytes_of(text), 'n');
}

struct tokenizer *toy_vocab_build(const struct toy_vocab *v)
{
    static struct building b; /* 20 KiB; tests are single-threaded */
    struct tokenizer_spec spec = {.pre = v->pre ? v->pre : "gpt-2", .add_bos = v->add_bos};
    struct err err;
    b = (struct building){0};
    for (int i = 0; i < 256; i++) {
        bool missing = v->missing && i > 0 && strchr(v->missing, i);
        b.bytes[i] = (char)i;
        add(&b, (struct bytes){&b.bytes[i], 1}, missing ? 'x' : 'n');
    }
    for (int32_t i = 0; v->merges && v->merges[i]; i++)
        add_merge(&b, v->merges[spec.n_merges++], i);
    for (int32_t i = 0; v->specials && v->specials[i]; i++) {
        if (v->bos && strcmp(v->bos, v->specials[i] + 1) == 0) {
            spec.has_bos = true;
            spec.bos = b.n;
        }
        add(&b, bytes_from(v->specials[i] + 1), v->specials[i][0]);
    }
    spec.n_vocab = b.n;
    spec.texts = b.texts;
    spec.kinds = b.kinds;
    spec.merges = b.merges;
    struct tokenizer *t = tokenizer_build(&spec, &err);
    if (!t)
        fail_msg("%s", err.text);
    for (int32_t i = 0; i < spec.n_merges; i++)
        str_free(&b.arena[i]);
    return t;
}

int32_t toy_vocab_find(const struct tokenizer *t, const char *spelling)
{
    int32_t id = tokenizer_find(t, bytes_from(spelling));
    if (id < 0)
        fail_msg("no token '%s'", spelling);
    return id;
}
