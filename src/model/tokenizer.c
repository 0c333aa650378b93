/* tokenizer.c - a vocabulary: text to ids and back.
 *
 * Encoding has four stages, each over the result of the one before:
 *
 *     bytes --clean--> UTF-8 --specials--> plain stretches --split--> pieces --merge--> ids
 *
 *  - clean: every byte outside well-formed UTF-8 becomes U+FFFD (text that is well-formed, nearly
 *    all, is not copied);
 *  - specials: tokens that are found whole, before anything else: control tokens and marks where
 *    the caller asks, user-defined ones (runs of blanks, words) always. Content of a chat is
 *    encoded without, so no text can become a control token;
 *  - split: tok_split.c;  merge: tok_bpe.c.
 *
 * The spellings of specials are kept sorted. A search at one place walks down that array byte by
 * byte, narrowing the range of entries that still agree: a trie without its nodes. So the longest
 * spelling wins, and a place costs at most the length of the longest spelling, whatever the text.
 *
 * All tokens' bytes lie in one arena, borrowed to callers. Any thread: nothing changes after
 * tokenizer_build; each encode call makes its own scratch. */
#include "model/tokenizer.h"
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/table.h"
#include "model/tok_bpe.h"
#include "model/tok_split.h"

enum { ON_REQUEST = 1, ALWAYS = 2 }; /* when a special is looked for; bits */

struct tokenizer {
    int32_t n_vocab;
    char *arena;         /* owns the bytes of all tokens */
    uint32_t *ends;      /* [n_vocab] owns; token i is arena[ends[i-1] .. ends[i]) */
    char *kinds;         /* [n_vocab] owns; letters of struct tokenizer_spec */
    struct table *ids;   /* owns; spelling -> id + 1 */
    struct bpe *bpe;     /* owns */
    struct split *split; /* owns */
    int32_t *specials;   /* [n_specials] owns; ids, sorted by spelling */
    int32_t n_specials;
    uint8_t starts[256]; /* bits of the specials that begin with the byte */
    int32_t *end_ids;    /* [n_ends] owns; ascending */
    int32_t n_ends;
    int32_t bos; /* -1: none */
    bool add_bos;
    int32_t longest; /* bytes of the longest token, >= 1 */
};

/* ---- ids ------------------------------------------------------------------------------------ */

static void ids_reserve(struct ids *ids, int32_t more)
{
    int64_t need = (int64_t)ids->n + more;
    if (need <= ids->cap)
        return;
    ASSERT(need <= INT32_MAX); /* TOKENIZER_TEXT_MAX sees to it */
    int64_t cap = need + need / 2 + 16;
    ids->cap = cap > INT32_MAX ? INT32_MAX : (int32_t)cap;
    ids->data = xrealloc(ids->data, (size_t)ids->cap * sizeof *ids->data);
}

void ids_append(struct ids *ids, const int32_t *data, int32_t n)
{
    if (n == 0)
        return;
    ids_reserve(ids, n);
    memcpy(ids->data + ids->n, data, (size_t)n * sizeof *data);
    ids->n += n;
}

void ids_push(struct ids *ids, int32_t id)
{
    ids_reserve(ids, 1);
    ids->data[ids->n++] = id;
}

void ids_free(struct ids *ids)
{
    xfree(ids->data);
    *ids = (struct ids){0};
}

/* ---- building ------------------------------------------------------------------------------- */

/* Copies texts and kinds; 4 GiB of spellings are refused. */
static int copy_tokens(struct tokenizer *t, const struct tokenizer_spec *spec, struct err *err)
{
    size_t total = 0;
    for (int32_t i = 0; i < spec->n_vocab; i++)
        total += spec->texts[i].len;
    if (total > UINT32_MAX)
        return err_set(err, "vocabulary of %zu bytes, at most 4 GiB", total);
    t->n_vocab = spec->n_vocab;
    t->arena = xmalloc(total + 1);
    t->ends = xcalloc((size_t)spec->n_vocab, sizeof *t->ends);
    t->kinds = xmemdup(spec->kinds, (size_t)spec->n_vocab);
    t->longest = 1;
    uint32_t at = 0;
    for (int32_t i = 0; i < spec->n_vocab; i++) {
        if (spec->texts[i].len > 0)
            memcpy(t->arena + at, spec->texts[i].data, spec->texts[i].len);
        at += (uint32_t)spec->texts[i].len;
        t->ends[i] = at;
        if ((int32_t)spec->texts[i].len > t->longest)
            t->longest = (int32_t)spec->texts[i].len;
    }
    return 0;
}

/* Of equal spellings the lowest id is found. */
static void index_tokens(struct tokenizer *t)
{
    t->ids = table_new();
    for (int32_t i = 0; i < t->n_vocab; i++) {
        struct bytes text = tokenizer_spelling(t, i);
        if (text.len > 0 && t->kinds[i] != 'x' && t->kinds[i] != 'b' && !table_get(t->ids, text))
            (void)table_put(t->ids, text, (void *)(intptr_t)(i + 1));
    }
}

/* A normal token of one byte stands for it; a byte token only where there is none. */
static void find_byte_tokens(const struct tokenizer *t, int32_t byte_ids[256])
{
    for (int b = 0; b < 256; b++)
        byte_ids[b] = -1;
    for (int32_t i = t->n_vocab - 1; i >= 0; i--)
        if (t->kinds[i] == 'b' && tokenizer_spelling(t, i).len == 1)
            byte_ids[(uint8_t)tokenizer_spelling(t, i).data[0]] = i;
    for (int32_t i = t->n_vocab - 1; i >= 0; i--)
        if (t->kinds[i] == 'n' && tokenizer_spelling(t, i).len == 1)
            byte_ids[(uint8_t)tokenizer_spelling(t, i).data[0]] = i;
}

/* The normal token that stands for the bytes that text spells, or -1. scratch is overwritten. */
static int32_t find_part(const struct tokenizer *t, struct bytes text, const int32_t byte_ids[256],
                         struct str *scratch)
{
    str_clear(scratch);
    if (!bpe_unspell(text, scratch) || scratch->len == 0)
        return -1;
    if (scratch->len == 1)
        return byte_ids[(uint8_t)scratch->data[0]];
    int32_t id = tokenizer_find(t, bytes_of(scratch));
    return id >= 0 && t->kinds[id] == 'n' ? id : -1;
}

/* A merge whose parts or result are no tokens can not happen, or not be written: it is left out, as
 * its rank is (only the order counts). A text without a blank inside is a fault of the file. */
static int add_merge(struct tokenizer *t, struct bytes merge, const int32_t byte_ids[256],
                     struct str *scratch, struct err *err)
{
    const char *blank = merge.len > 2 ? memchr(merge.data + 1, ' ', merge.len - 2) : NULL;
    if (!blank)
        return err_set(err, "merge '%.*s' is not two symbols with a blank between",
                       (int)(merge.len < 60 ? merge.len : 60), merge.data);
    size_t n = (size_t)(blank - merge.data);
    int32_t left = find_part(t, (struct bytes){merge.data, n}, byte_ids, scratch);
    int32_t right = find_part(t, (struct bytes){blank + 1, merge.len - n - 1}, byte_ids, scratch);
    if (left < 0 || right < 0)
        return 0;
    str_clear(scratch);
    struct bytes a = tokenizer_spelling(t, left), b = tokenizer_spelling(t, right);
    str_append(scratch, a.data, a.len);
    str_append(scratch, b.data, b.len);
    int32_t result = tokenizer_find(t, bytes_of(scratch));
    if (result >= 0 && t->kinds[result] == 'n')
        bpe_add(t->bpe, left, right, result);
    return 0;
}

static int build_merges(struct tokenizer *t, const struct tokenizer_spec *spec, struct err *err)
{
    int32_t byte_ids[256];
    struct str scratch = {0};
    int rc = 0;
    find_byte_tokens(t, byte_ids);
    t->bpe = bpe_new(byte_ids, spec->n_merges);
    for (int32_t i = 0; i < spec->n_merges && rc == 0; i++)
        rc = add_merge(t, spec->merges[i], byte_ids, &scratch, err);
    str_free(&scratch);
    return rc;
}

/* When a token of this kind is looked for in text; 0: it comes out of merges only. */
static uint8_t looked_for(char kind)
{
    return kind == 'u' ? ALWAYS | ON_REQUEST : strchr("cem", kind) ? ON_REQUEST : 0;
}

static int compare_spelling(const void *a, const void *b, void *tokenizer)
{
    struct bytes x = tokenizer_spelling(tokenizer, *(const int32_t *)a);
    struct bytes y = tokenizer_spelling(tokenizer, *(const int32_t *)b);
    int order = memcmp(x.data, y.data, x.len < y.len ? x.len : y.len);
    return order ? order : x.len < y.len ? -1 : x.len > y.len;
}

static void build_specials(struct tokenizer *t)
{
    t->specials = xcalloc((size_t)t->n_vocab, sizeof *t->specials);
    t->end_ids = xcalloc((size_t)t->n_vocab, sizeof *t->end_ids);
    for (int32_t i = 0; i < t->n_vocab; i++) {
        struct bytes text = tokenizer_spelling(t, i);
        uint8_t when = looked_for(t->kinds[i]);
        if (t->kinds[i] == 'e')
            t->end_ids[t->n_ends++] = i;
        /* of equal spellings only the one that is found */
        if (!when || text.len == 0 || tokenizer_find(t, text) != i)
            continue;
        t->specials[t->n_specials++] = i;
        t->starts[(uint8_t)text.data[0]] |= when;
    }
    qsort_r(t->specials, (size_t)t->n_specials, sizeof *t->specials, compare_spelling, t);
}

struct tokenizer *tokenizer_build(const struct tokenizer_spec *spec, struct err *err)
{
    if (spec->n_vocab < 1)
        return err_null(err, "a vocabulary of %d tokens, at least 1", spec->n_vocab);
    if (spec->has_bos && (spec->bos < 0 || spec->bos >= spec->n_vocab))
        return err_null(err, "BOS id %d outside the vocabulary of %d", spec->bos, spec->n_vocab);
    struct tokenizer *t = xcalloc(1, sizeof *t);
    t->bos = spec->has_bos ? spec->bos : -1;
    t->add_bos = spec->has_bos && spec->add_bos;
    if (!(t->split = split_open(spec->pre, err)) || copy_tokens(t, spec, err) < 0)
        goto fail;
    index_tokens(t);
    if (build_merges(t, spec, err) < 0)
        goto fail;
    build_specials(t);
    return t;
fail:
    tokenizer_free(t);
    return NULL;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    xfree(t->end_ids);
    xfree(t->specials);
    split_free(t->split);
    bpe_free(t->bpe);
    if (t->ids)
        table_free(t->ids, NULL);
    xfree(t->kinds);
    xfree(t->ends);
    xfree(t->arena);
    xfree(t);
}

/* ---- text to ids ---------------------------------------------------------------------------- */

/* What one call of tokenizer_encode carries along. */
struct encoding {
    const struct tokenizer *t;
    struct split_walk walk;     /* owns */
    struct bpe_scratch scratch; /* owns */
    struct ids *out;
};

static void encode_piece(struct encoding *e, struct bytes piece)
{
    if (split_takes_whole(e->t->split)) {
        int32_t id = tokenizer_find(e->t, piece);
        if (id >= 0 && e->t->kinds[id] == 'n') {
            ids_push(e->out, id);
            return;
        }
    }
    bpe_encode(e->t->bpe, &e->scratch, piece, e->out);
}

static void encode_plain(struct encoding *e, struct bytes text)
{
    struct bytes piece;
    split_walk_start(&e->walk, text);
    while (split_walk_next(&e->walk, &piece))
        encode_piece(e, piece);
}

/* The first of the specials [low, high), which agree in the bytes before `depth` and are longer,
 * whose byte there is at least `byte`. */
static int32_t lower_bound(const struct tokenizer *t, int32_t low, int32_t high, size_t depth,
                           unsigned byte)
{
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if ((uint8_t)tokenizer_spelling(t, t->specials[middle]).data[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest special that text begins with and that is looked for (bit `when`); -1: none. Entries
 * [low, high) agree with the first `depth` bytes; of those the one that ends there stands first. */
static int32_t match_special(const struct tokenizer *t, struct bytes text, uint8_t when)
{
    int32_t low = 0, high = t->n_specials, best = -1;
    for (size_t depth = 0; low < high; depth++) {
        if (tokenizer_spelling(t, t->specials[low]).len == depth) {
            if (looked_for(t->kinds[t->specials[low]]) & when)
                best = t->specials[low];
            low++;
        }
        if (depth == text.len)
            break;
        uint8_t byte = (uint8_t)text.data[depth];
        low = lower_bound(t, low, high, depth, byte);
        high = lower_bound(t, low, high, depth, byte + 1u);
    }
    return best;
}

static void encode_clean(struct encoding *e, struct bytes text, uint8_t when)
{
    const struct tokenizer *t = e->t;
    size_t from = 0, at = 0;
    while (at < text.len) {
        struct bytes rest = {text.data + at, text.len - at};
        bool candidate = t->starts[(uint8_t)text.data[at]] & when;
        int32_t id = candidate ? match_special(t, rest, when) : -1;
        if (id < 0) {
            at++;
            continue;
        }
        encode_plain(e, (struct bytes){text.data + from, at - from});
        ids_push(e->out, id);
        from = at += tokenizer_spelling(t, id).len;
    }
    encode_plain(e, (struct bytes){text.data + from, text.len - from});
}

/* One U+FFFD for each byte that is not part of a character: of a character that is cut short,
 * llama.cpp and the ids in use replace every byte, where Unicode's advice is one mark for the whole
 * of it. */
static void append_clean(struct str *out, struct bytes text)
{
    for (size_t at = 0, from = 0; from < text.len;) {
        uint32_t cp;
        int bad, len = 0;
        while (at < text.len && (len = utf8_decode(text.data + at, text.len - at, &cp, &bad)) > 0)
            at += (size_t)len;
        str_append(out, text.data + from, at - from);
        if (at < text.len) {
            str_append(out, "\xef\xbf\xbd", 3);
            at++;
        }
        from = at;
    }
}

void tokenizer_encode(const struct tokenizer *t, struct bytes text, bool special, struct ids *out)
{
    struct encoding e = {.t = t, .out = out};
    struct str clean = {0};
    ASSERT(text.len <= TOKENIZER_TEXT_MAX);
    if (!utf8_is_valid(text.data, text.len)) {
        append_clean(&clean, text);
        text = bytes_of(&clean);
    }
    split_walk_open(&e.walk, t->split, 0);
    encode_clean(&e, text, special ? ON_REQUEST : ALWAYS);
    split_walk_close(&e.walk);
    bpe_scratch_free(&e.scratch);
    str_free(&clean);
}

/* ---- ids to text, and what there is --------------------------------------------------------- */

struct bytes tokenizer_spelling(const struct tokenizer *t, int32_t id)
{
    if (id < 0 || id >= t->n_vocab)
        return (struct bytes){"", 0};
    uint32_t from = id > 0 ? t->ends[id - 1] : 0;
    return (struct bytes){t->arena + from, t->ends[id] - from};
}

struct bytes tokenizer_token(const struct tokenizer *t, int32_t id)
{
    if (id < 0 || id >= t->n_vocab || strchr("cex", t->kinds[id]))
        return (struct bytes){"", 0};
    return tokenizer_spelling(t, id);
}

void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int32_t n, bool special,
                      struct str *out)
{
    for (int32_t i = 0; i < n; i++) {
        struct bytes text = special ? tokenizer_spelling(t, ids[i]) : tokenizer_token(t, ids[i]);
        str_append(out, text.data, text.len);
    }
}

int32_t tokenizer_find(const struct tokenizer *t, struct bytes spelling)
{
    return (int32_t)(intptr_t)table_get(t->ids, spelling) - 1;
}

int32_t tokenizer_n_vocab(const struct tokenizer *t)
{
    return t->n_vocab;
}

int32_t tokenizer_longest(const struct tokenizer *t)
{
    return t->longest;
}

bool tokenizer_is_end(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_vocab && t->kinds[id] == 'e';
}

const int32_t *tokenizer_end_ids(const struct tokenizer *t, int32_t *n)
{
    *n = t->n_ends;
    return t->end_ids;
}

int32_t tokenizer_bos(const struct tokenizer *t, bool *add)
{
    *add = t->add_bos;
    return t->bos;
}
