/* swapping.c - the blocks of a preempted group, to host memory and back.
 *
 * A group goes as a whole: a block that several of its branches name is copied once, and its slot
 * counted by each of them. It goes only if the free slots hold all that it has computed; else it is
 * computed again. While the copies run, the transfers hold the blocks, and nothing is taken in that
 * step; its tables are released as ever, so what goes out stays findable until it is evicted.
 *
 * On return what can still be found is preferred to its slot. The rest is copied into new blocks,
 * which are confirmed when that step is done, and the slots are let go. Main thread only. */
#include "cache/state.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/plant.h"

static int32_t computed_blocks(const struct cache *c, const struct block_table *t)
{
    return (t->computed + c->prefix.block_size - 1) / c->prefix.block_size;
}

/* A slot for each block that tables [n] have computed something of, held by its transfer, and noted
 * in slot_of. */
static int32_t take_slots(struct cache *c, struct block_table *const *tables, int32_t n,
                          struct cache_move *moves)
{
    int32_t n_found = 0;

    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < computed_blocks(c, tables[i]); j++) {
            int32_t b = tables[i]->blocks[j];
            if (c->slot_of[b] >= 0)
                continue;
            c->slot_of[b] = swap_take(&c->swap);
            moves[n_found++] = (struct cache_move){.block = b, .slot = c->slot_of[b]};
        }
    if (PLANTED(SWAP_CROSSED) && n_found > 1) {
        moves[0].slot = moves[1].slot;
        moves[1].slot = c->slot_of[moves[0].block];
    }
    return n_found;
}

static void unmark(struct cache *c, const struct cache_move *moves, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        c->slot_of[moves[i].block] = -1;
}

/* The free slots hold all that tables [n] have computed, and there is something. */
static bool has_slots(struct cache *c, struct block_table *const *tables, int32_t n)
{
    int32_t n_found = 0, room = c->swap.n_free;
    bool fits = true;

    for (int32_t i = 0; i < n && fits; i++)
        for (int32_t j = 0; j < computed_blocks(c, tables[i]) && fits; j++) {
            int32_t *mark = &c->slot_of[tables[i]->blocks[j]];
            fits = *mark >= 0 || n_found < room;
            n_found += *mark < 0 && fits;
            *mark = 0;
        }
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < computed_blocks(c, tables[i]); j++)
            c->slot_of[tables[i]->blocks[j]] = -1;
    return fits && n_found > 0;
}

/* Lists of slots for tables [n], made when they are first needed. False: there is no memory for them,
 * and the group is computed again like one for which the host is full. */
static bool make_lists(struct block_table *const *tables, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        struct block_table *t = tables[i];
        if (!t->slots)
            t->slots = try_malloc(MEM_CACHE, (size_t)t->cap * sizeof *t->slots);
        if (!t->slots)
            return false;
    }
    return true;
}

static void save_table(struct cache *c, struct block_table *t)
{
    ASSERT(t->n_slots == 0 && t->ahead == 0);
    t->n_slots = computed_blocks(c, t);
    t->saved = PLANTED(SWAP_LONG) ? t->n_slots * c->prefix.block_size : t->computed;
    for (int32_t j = 0; j < t->n_slots; j++) {
        t->slots[j] = c->slot_of[t->blocks[j]];
        swap_hold(&c->swap, t->slots[j]);
    }
}

bool cache_swap_out(struct cache *c, struct block_table *const *tables, int32_t n,
                    struct cache_move *moves, int32_t *n_moves)
{
    if (!has_slots(c, tables, PLANTED(SWAP_ROOM_FIRST) ? 1 : n) || !make_lists(tables, n)) {
        c->counted.swap_full++;
        return false;
    }
    moves += *n_moves;
    int32_t n_out = take_slots(c, tables, n, moves);
    for (int32_t i = 0; i < n_out && !PLANTED(SWAP_UNHELD); i++)
        pool_move(&c->pool, moves[i].block);
    for (int32_t i = 0; i < n; i++)
        save_table(c, tables[i]);
    unmark(c, moves, n_out);
    *n_moves += n_out;
    c->counted.swapped_out += (uint64_t)n_out;
    return true;
}

void cache_swap_in(struct cache *c, struct cache_seat *seats, int32_t n_seats, int32_t n_common,
                   struct cache_move *moves, int32_t *n_moves)
{
    for (int32_t i = 0; i < n_seats; i++) {
        struct block_table *t = seats[i].table;
        int32_t from = seats[i].found.n_hits;
        if (i > 0 && from < n_common && !PLANTED(SWAP_COMMON_TWICE))
            from = n_common; /* through the first seat */
        if (PLANTED(SWAP_OVER_HITS))
            from = 0;
        for (int32_t j = from; j < t->n_slots; j++) {
            if (!PLANTED(SLOT_EARLY))
                swap_hold(&c->swap, t->slots[j]);
            moves[(*n_moves)++] = (struct cache_move){.block = t->blocks[j], .slot = t->slots[j]};
            c->counted.swapped_in++;
        }
        cache_swap_drop(c, t);
    }
}

void cache_move_done(struct cache *c, const struct cache_move *move, bool is_out)
{
    if (is_out && !PLANTED(SWAP_UNHELD))
        pool_unmove(&c->pool, move->block);
    if (is_out || !PLANTED(SLOT_EARLY))
        swap_drop(&c->swap, move->slot);
}

void cache_swap_drop(struct cache *c, struct block_table *t)
{
    while (t->n_slots > 0)
        swap_drop(&c->swap, t->slots[--t->n_slots]);
    t->saved = 0;
}
