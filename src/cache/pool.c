/* pool.c - the blocks: who is free, held, cached; counts, serial numbers, least recently used.
 *
 * A block is in exactly one place, and where follows from four facts: is it referenced (by tables,
 * by pending copies or by transfers), does the index find it, has it children there.
 *
 *                    referenced?  yes ------------------------------> HELD
 *                                 no, not findable -----------------> FREE   (a list)
 *                                 no, findable, no children --------> LEAF   (a heap by stamp)
 *                                 no, findable, with children ------> INNER  (in neither)
 *
 * Every change of a fact calls settle(), which moves the block; so no caller can forget to. Only
 * leaves may be evicted: a child without its parent could never be found again. A held block keeps
 * all its ancestors held (its table names them), so every INNER block becomes a leaf sooner or
 * later, and "available" is simply all that is not held: blocks shared by many are counted once.
 *
 * The free list is last in, first out, but prefers the block that follows the caller's last one: a
 * sequence then lies in runs, which attention reads faster. A heap instead of a plain list of last
 * use: a block becomes a leaf long after it was let go, and a list would have to be searched for
 * its place. Main thread only. */
#include "cache/pool.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/plant.h"

/* ---- free list ------------------------------------------------------------------------------- */

static void free_push(struct pool *p, int32_t b)
{
    struct pool_block *block = &p->blocks[b];
    block->prev = -1;
    block->next = p->first_free;
    if (p->first_free >= 0)
        p->blocks[p->first_free].prev = b;
    p->first_free = b;
}

static void free_remove(struct pool *p, int32_t b)
{
    struct pool_block *block = &p->blocks[b];
    if (block->prev >= 0)
        p->blocks[block->prev].next = block->next;
    else
        p->first_free = block->next;
    if (block->next >= 0)
        p->blocks[block->next].prev = block->prev;
}

/* ---- heap of leaves, oldest stamp on top ----------------------------------------------------- */

static void heap_set(struct pool *p, int32_t at, int32_t b)
{
    p->heap[at] = b;
    p->blocks[b].heap_at = at;
}

static void heap_up(struct pool *p, int32_t at, int32_t b)
{
    while (at > 0) {
        int32_t parent = (at - 1) / 2;
        if (p->blocks[p->heap[parent]].stamp <= p->blocks[b].stamp)
            break;
        heap_set(p, at, p->heap[parent]);
        at = parent;
    }
    heap_set(p, at, b);
}

static void heap_down(struct pool *p, int32_t at, int32_t b)
{
    for (;;) {
        int32_t child = 2 * at + 1;
        if (child >= p->n_leaves)
            break;
        if (child + 1 < p->n_leaves &&
            p->blocks[p->heap[child + 1]].stamp < p->blocks[p->heap[child]].stamp)
            child++;
        if (p->blocks[b].stamp <= p->blocks[p->heap[child]].stamp)
            break;
        heap_set(p, at, p->heap[child]);
        at = child;
    }
    heap_set(p, at, b);
}

static void heap_remove(struct pool *p, int32_t b)
{
    int32_t at = p->blocks[b].heap_at;
    int32_t last = p->heap[--p->n_leaves];
    if (last == b)
        return;
    heap_up(p, at, last);
    if (!PLANTED(HEAP_UNSIFTED))
        heap_down(p, p->blocks[last].heap_at, last);
}

/* ---- places ---------------------------------------------------------------------------------- */

static enum pool_place place_of(const struct pool *p, int32_t b)
{
    const struct pool_block *block = &p->blocks[b];
    if (pool_is_held(p, b))
        return POOL_HELD;
    if (!block->is_findable)
        return POOL_FREE;
    return block->n_children > 0 ? POOL_INNER : POOL_LEAF;
}

/* Whoever looked for it, or nothing is in it any more. */
static void want(struct pool *p, int32_t b)
{
    p->n_unwanted -= p->blocks[b].is_unwanted;
    p->blocks[b].is_unwanted = false;
}

static void settle(struct pool *p, int32_t b)
{
    struct pool_block *block = &p->blocks[b];
    enum pool_place place = place_of(p, b);
    bool is_leaving = block->n_moves > 0 && block->n_tables + block->n_pins == 0;
    p->n_leaving += is_leaving - block->is_leaving;
    block->is_leaving = is_leaving;
    if (place == block->place)
        return;
    p->n_in[block->place]--;
    p->n_in[place]++;
    if (block->place == POOL_FREE)
        free_remove(p, b);
    else if (block->place == POOL_LEAF)
        heap_remove(p, b);
    if (block->place == POOL_HELD && !(PLANTED(EVICT_FIRST_IN) && block->stamp > 0))
        block->stamp = block->is_unwanted ? 0 : ++p->clock;
    if (PLANTED(LEAF_USED) && block->place == POOL_INNER && place == POOL_LEAF)
        block->stamp = ++p->clock;
    if (place == POOL_FREE)
        want(p, b);
    block->place = (uint8_t)place;
    if (place == POOL_FREE)
        free_push(p, b);
    else if (place == POOL_LEAF)
        heap_up(p, p->n_leaves++, b);
}

/* All blocks free, the lowest on top of the list. */
void pool_init(struct pool *p, int32_t n_blocks)
{
    ASSERT(n_blocks > 0);
    *p = (struct pool){.n_blocks = n_blocks, .first_free = -1};
    p->blocks = xcalloc((size_t)n_blocks, sizeof *p->blocks);
    p->heap = xcalloc((size_t)n_blocks, sizeof *p->heap);
    for (int32_t b = n_blocks - 1; b >= 0; b--)
        free_push(p, b);
    p->n_in[POOL_FREE] = n_blocks;
}

void pool_done(struct pool *p)
{
    xfree(p->blocks);
    xfree(p->heap);
    *p = (struct pool){0};
}

int32_t pool_take(struct pool *p, int32_t near)
{
    int32_t b = p->first_free;
    if (b < 0)
        return -1;
    if (near >= 0 && near + 1 < p->n_blocks && p->blocks[near + 1].place == POOL_FREE)
        b = near + 1;
    p->blocks[b].serial++;
    if (PLANTED(EVICT_FIRST_IN))
        p->blocks[b].stamp = 0;
    ASSERT(p->blocks[b].n_children == 0);
    p->blocks[b].n_tables = 1;
    settle(p, b);
    return b;
}

/* Planted: another leaf than the oldest. */
static int32_t wrong_leaf(const struct pool *p)
{
    int32_t best = p->heap[PLANTED(EVICT_ANY_LEAF) && p->n_leaves > 1];
    for (int32_t i = 0; i < p->n_leaves; i++) {
        int32_t b = p->heap[i];
        if ((PLANTED(EVICT_NEWEST) && p->blocks[b].stamp > p->blocks[best].stamp) ||
            (PLANTED(EVICT_LOWEST) && b < best))
            best = b;
    }
    return best;
}

int32_t pool_oldest_leaf(const struct pool *p)
{
    if ((PLANTED(EVICT_NEWEST) || PLANTED(EVICT_LOWEST) || PLANTED(EVICT_ANY_LEAF)) &&
        p->n_leaves > 0)
        return wrong_leaf(p);
    return p->n_leaves > 0 ? p->heap[0] : -1;
}

/* ---- counts ---------------------------------------------------------------------------------- */

static void count_up(uint16_t *n)
{
    ASSERT(*n < UINT16_MAX);
    ++*n;
    if (PLANTED(NARROW_COUNT))
        *n &= 7;
}

static void count_down(uint16_t *n)
{
    ASSERT(*n > 0);
    --*n;
}

void pool_hold(struct pool *p, int32_t b)
{
    want(p, b);
    count_up(&p->blocks[b].n_tables);
    p->n_shared += p->blocks[b].n_tables == 2;
    settle(p, b);
}

void pool_drop(struct pool *p, int32_t b)
{
    p->n_shared -= p->blocks[b].n_tables == 2;
    count_down(&p->blocks[b].n_tables);
    settle(p, b);
}

void pool_pin(struct pool *p, int32_t b)
{
    want(p, b);
    count_up(&p->blocks[b].n_pins);
    settle(p, b);
}

void pool_unpin(struct pool *p, int32_t b)
{
    uint64_t stamp = p->blocks[b].stamp;
    count_down(&p->blocks[b].n_pins);
    settle(p, b);
    if (PLANTED(COPY_UNUSED) && p->blocks[b].place == POOL_LEAF) {
        p->blocks[b].stamp = stamp;
        heap_up(p, p->blocks[b].heap_at, b);
    }
}

void pool_move(struct pool *p, int32_t b)
{
    count_up(&p->blocks[b].n_moves);
    settle(p, b);
}

void pool_unmove(struct pool *p, int32_t b)
{
    count_down(&p->blocks[b].n_moves);
    settle(p, b);
}

/* No table names it. */
void pool_set_unwanted(struct pool *p, int32_t b)
{
    struct pool_block *block = &p->blocks[b];

    ASSERT(block->n_tables == 0);
    if (block->is_unwanted || block->place == POOL_FREE)
        return;
    block->is_unwanted = true;
    p->n_unwanted++;
    block->stamp = 0;
    if (block->place == POOL_LEAF)
        heap_up(p, block->heap_at, b);
}

void pool_set_findable(struct pool *p, int32_t b, bool is_findable)
{
    p->blocks[b].is_findable = is_findable;
    settle(p, b);
}

void pool_add_child(struct pool *p, int32_t b, int32_t change)
{
    p->blocks[b].n_children += change;
    ASSERT(p->blocks[b].n_children >= 0);
    settle(p, b);
}
