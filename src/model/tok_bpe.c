/* tok_bpe.c - byte-level byte-pair encoding of one piece.
 *
 * A piece starts as its bytes, one symbol each. Then, again and again, the neighbours whose merge
 * has the best rank (the leftmost of equals) become one symbol, until no neighbours have a merge.
 * The obvious loop looks at all neighbours for every merge and is quadratic: 64 Ki equal letters
 * would take minutes. So the symbols are a linked list inside an array, and the possible merges
 * wait in a heap:
 *
 *     symbols   [h] <-> [e] <-> [l] <-> [l] <-> [o]          heap: (rank, place, merge)
 *                                                                  best rank first, then leftmost
 *     pop (l l): [h] <-> [e] <-> [ll] <-> (dead) <-> [o]     push (e ll) and (ll o)
 *
 * Nothing is removed from the middle of the heap. A candidate knows the ids that it was proposed
 * for; when it is popped and the symbols at its place are others, it is stale and dropped. A merge
 * kills one symbol and pushes at most two candidates, so a piece of n bytes takes at most 3n
 * pushes: n log n.
 *
 * A character with a byte that has no token becomes one symbol of id GONE. It is left out of the
 * result, and since it merges with nothing, its neighbours do not close up over it.
 *
 * Merges are found by the pair of ids in a hash table of their own: key and value beside each
 * other, 16 bytes, one cache miss a look-up. Keys come from the model file alone, never from a
 * client, so an unseeded hash is enough.
 *
 * The algorithm is Sennrich's (ACL 2016) with GPT-2's byte alphabet; heap and list are the common
 * way to make it n log n. Any thread: struct bpe does not change after loading. */
#include "model/tok_bpe.h"
#include <string.h>
#include "base/err.h"
#include "base/mem.h"

enum {
    DEAD = -2, /* a symbol that was merged into its left neighbour */
    GONE = -1, /* a character without tokens */
    NONE = -1, /* no neighbour */
};

struct merge {
    uint64_t pair; /* left << 32 | right; PAIR_FREE in an empty slot */
    int32_t rank, result;
};
#define PAIR_FREE UINT64_MAX /* ids are not negative, so no pair looks like it */

struct bpe {
    int32_t byte_ids[256]; /* GONE: no token */
    struct merge *merges;  /* [mask + 1] owns; open addressing, linear probing, at most half full */
    size_t mask;
    int32_t n_ranks;
};

struct bpe_symbol {
    int32_t id;         /* token, GONE or DEAD */
    int32_t prev, next; /* places in the array, or NONE */
};

struct bpe_candidate {
    uint64_t order; /* rank << 32 | place of the left symbol: the least is the next */
    uint32_t merge; /* slot in bpe.merges: which ids it was proposed for, and their result */
};

/* ---- merges --------------------------------------------------------------------------------- */

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static size_t pair_hash(uint64_t pair)
{
    pair *= 0x9e3779b97f4a7c15; /* 2^64 / golden ratio; the high half is the mixed one */
    return (size_t)(pair ^ pair >> 32);
}

struct bpe *bpe_new(const int32_t byte_ids[256], int32_t n_merges)
{
    struct bpe *b = xcalloc(1, sizeof *b);
    size_t slots = 64;
    while (slots < 2 * (size_t)n_merges)
        slots *= 2;
    memcpy(b->byte_ids, byte_ids, sizeof b->byte_ids);
    b->merges = xcalloc(slots, sizeof *b->merges);
    b->mask = slots - 1;
    for (size_t i = 0; i < slots; i++)
        b->merges[i].pair = PAIR_FREE;
    return b;
}

void bpe_free(struct bpe *b)
{
    if (!b)
        return;
    xfree(b->merges);
    xfree(b);
}

/* The slot that holds pair, or the empty one where it belongs. */
static struct merge *slot_of(const struct bpe *b, uint64_t pair)
{
    size_t i = pair_hash(pair) & b->mask;
    while (b->merges[i].pair != pair && b->merges[i].pair != PAIR_FREE)
        i = (i + 1) & b->mask;
    return &b->merges[i];
}

void bpe_add(struct bpe *b, int32_t left, int32_t right, int32_t result)
{
    uint64_t pair = pair_of(left, right);
    struct merge *m = slot_of(b, pair);
    ASSERT(2 * (size_t)b->n_ranks <= b->mask);
    if (m->pair == PAIR_FREE)
        *m = (struct merge){.pair = pair, .rank = b->n_ranks, .result = result};
    b->n_ranks++;
}

/* ---- the heap of candidates ----------------------------------------------------------------- */

struct heap {
    struct bpe_candidate *items;
    int32_t n;
};

/* Four children a node: half the levels of a binary heap, and the children lie in one cache line
 * or two. */
static void heap_push(struct heap *h, struct bpe_candidate c)
{
    int32_t i = h->n++;
    while (i > 0 && c.order < h->items[(i - 1) / 4].order) {
        h->items[i] = h->items[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    h->items[i] = c;
}

static struct bpe_candidate heap_pop(struct heap *h)
{
    struct bpe_candidate top = h->items[0], last = h->items[--h->n];
    int32_t i = 0, child;
    while ((child = 4 * i + 1) < h->n) {
        int32_t end = child + 4 < h->n ? child + 4 : h->n;
        for (int32_t other = child + 1; other < end; other++)
            if (h->items[other].order < h->items[child].order)
                child = other;
        if (h->items[child].order >= last.order)
            break;
        h->items[i] = h->items[child];
        i = child;
    }
    h->items[i] = last;
    return top;
}

/* ---- one piece ------------------------------------------------------------------------------ */

/* Room for a piece of n bytes. A power of two, so that a walk over pieces grows it a few times
 * only, and the longest piece (1 MiB) needs 44 MiB and no more. */
static void scratch_reserve(struct bpe_scratch *s, size_t n)
{
    if (s->symbols_cap >= n)
        return;
    size_t cap = 256;
    while (cap < n)
        cap *= 2;
    s->symbols_cap = cap;
    s->symbols = xrealloc(s->symbols, cap * sizeof *s->symbols);
    /* n - 1 at the start; a merge pops one and pushes two at most, and there are n - 1 merges. */
    s->candidates = xrealloc(s->candidates, 2 * cap * sizeof *s->candidates);
}

void bpe_scratch_free(struct bpe_scratch *s)
{
    xfree(s->symbols);
    xfree(s->candidates);
    *s = (struct bpe_scratch){0};
}

/* Fills s->symbols [returned] with the bytes of piece, which is well-formed UTF-8. */
static int32_t start_symbols(const struct bpe *b, struct bpe_scratch *s, struct bytes piece)
{
    int32_t n = 0;
    for (size_t at = 0; at < piece.len;) {
        uint32_t cp;
        int bad, len = utf8_decode(piece.data + at, piece.len - at, &cp, &bad);
        bool gone = false;
        ASSERT(len > 0);
        for (int i = 0; i < len; i++)
            gone = gone || b->byte_ids[(uint8_t)piece.data[at + i]] == GONE;
        for (int i = 0; i < (gone ? 1 : len); i++, n++) {
            int32_t id = gone ? GONE : b->byte_ids[(uint8_t)piece.data[at + i]];
            s->symbols[n] = (struct bpe_symbol){.id = id, .prev = n - 1, .next = n + 1};
        }
        at += (size_t)len;
    }
    if (n > 0)
        s->symbols[n - 1].next = NONE;
    return n;
}

/* Pushes the merge of the symbols at `left` and `right` if there is one; either may be NONE. */
static void propose(const struct bpe *b, const struct bpe_symbol *symbols, struct heap *h,
                    int32_t left, int32_t right)
{
    if (left == NONE || right == NONE || symbols[left].id == GONE || symbols[right].id == GONE)
        return;
    const struct merge *m = slot_of(b, pair_of(symbols[left].id, symbols[right].id));
    if (m->pair != PAIR_FREE)
        heap_push(h, (struct bpe_candidate){.order = (uint64_t)m->rank << 32 | (uint32_t)left,
                                            .merge = (uint32_t)(m - b->merges)});
}

/* Carries out one candidate, unless it is stale. */
static void merge_one(const struct bpe *b, struct bpe_symbol *symbols, struct heap *h,
                      const struct bpe_candidate *c)
{
    const struct merge *m = &b->merges[c->merge];
    int32_t at = (int32_t)(uint32_t)c->order;
    struct bpe_symbol *left = &symbols[at];
    int32_t right = left->next;
    if (right == NONE || pair_of(left->id, symbols[right].id) != m->pair)
        return;
    left->id = m->result;
    left->next = symbols[right].next;
    symbols[right].id = DEAD;
    if (left->next != NONE)
        symbols[left->next].prev = at;
    propose(b, symbols, h, left->prev, at);
    propose(b, symbols, h, at, left->next);
}

/* Appends the ids of piece, well-formed UTF-8 of at most a few MiB (tok_split.c cuts so). */
void bpe_encode(const struct bpe *b, struct bpe_scratch *s, struct bytes piece, struct ids *out)
{
    scratch_reserve(s, piece.len);
    int32_t n = start_symbols(b, s, piece);
    struct heap heap = {.items = s->candidates};
    for (int32_t i = 0; i + 1 < n; i++)
        propose(b, s->symbols, &heap, i, i + 1);
    while (heap.n > 0) {
        struct bpe_candidate best = heap_pop(&heap);
        merge_one(b, s->symbols, &heap, &best);
    }
    /* The first symbol is never merged away: it has no left neighbour. */
    for (int32_t i = n > 0 ? 0 : NONE; i != NONE; i = s->symbols[i].next)
        if (s->symbols[i].id != GONE)
            ids_push(out, s->symbols[i].id);
}

/* ---- GPT-2's byte alphabet ------------------------------------------------------------------ */

/* Bytes that are visible Latin-1 characters stand for themselves. */
static bool is_plain(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad && byte <= 0xff);
}

/* The byte that a character of the alphabet stands for, or -1. The 68 others are spelled by the
 * code points from 256 on, in order: 0..32, 127..160, 173. */
static int byte_of(uint32_t cp)
{
    if (cp < 256)
        return is_plain(cp) ? (int)cp : -1;
    uint32_t n = cp - 256;
    if (n <= 0x20)
        return (int)n;
    if (n - 33 <= 160 - 127)
        return (int)(n - 33 + 127);
    return n == 67 ? 0xad : -1;
}

bool bpe_unspell(struct bytes text, struct str *out)
{
    size_t before = out->len;
    for (size_t at = 0; at < text.len;) {
        uint32_t cp;
        int bad, len = utf8_decode(text.data + at, text.len - at, &cp, &bad);
        int byte = len > 0 ? byte_of(cp) : -1;
        if (byte < 0) {
            out->len = before;
            return false;
        }
        str_append_char(out, (char)byte);
        at += (size_t)len;
    }
    return true;
}
