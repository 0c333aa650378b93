/* lineage.c - which blocks a conversation has used alone: they are worth nothing once it is gone.
 *
 * Cached blocks are evicted by last use. Those of a deleted conversation were used last, and would
 * push out others that may still be asked for. To let them go first one has to know that nobody
 * else's conversation has them in its sequence, and that cannot be read from the index: whoever has
 * a beginning in common with somebody leaves no trace in it.
 *
 * So each block remembers the one conversation that has used it, as long as it is one:
 *
 *     taken by A ──▶ A's ──used by A──▶ A's ──used by B──▶ shared, for good
 *                     └── A is deleted ──▶ nobody's, evicted first ──used by C──▶ C's
 *
 * A block that several have used keeps its place in the order also when they are gone: counting
 * them would take a list of users for each block.
 *
 * FORK gives the child a sequence whose blocks it has not used yet. What the source has by then is
 * of both, so it becomes a lineage of its own, above those of source and child:
 *
 *            A                 A'     C          a block of `up` is used by whoever stands below it
 *            |  fork             \   /           without becoming shared; it is let go with the last
 *         blocks                  up: blocks     of them
 *
 * A lineage that has only one left below it joins that one, so the tree is no deeper than forks
 * that are alive. All that AT leaves out of a child counts as its own all the same: the rule may
 * keep a block too long in its place, never drop one that a conversation has.
 *
 * Lists through the blocks: deletion costs as much as the conversation has blocks. Main thread
 * only. */
#include "cache/lineage.h"

#include "base/mem.h"
#include "base/plant.h"

/* Forks of forks that are looked through; whoever is deeper counts as somebody else. */
#define DEPTH_MAX 64

void lineages_init(struct lineages *s, int32_t n_blocks)
{
    *s = (struct lineages){.n_blocks = n_blocks};
    s->of = xcalloc((size_t)n_blocks, sizeof(struct lineage *));
    s->links = xcalloc((size_t)n_blocks, sizeof *s->links);
}

void lineages_done(struct lineages *s)
{
    xfree((void *)s->of);
    xfree(s->links);
    *s = (struct lineages){0};
}

/* ---- lists ----------------------------------------------------------------------------------- */

static void link_block(struct lineages *s, struct lineage *l, int32_t block)
{
    s->of[block] = l;
    s->links[block] = (struct lineage_link){.next = l->first, .prev = -1};
    if (l->first >= 0)
        s->links[l->first].prev = block;
    l->first = block;
    l->n_blocks++;
}

static void unlink_block(struct lineages *s, int32_t block)
{
    struct lineage *l = s->of[block];
    struct lineage_link link = s->links[block];

    s->of[block] = NULL;
    if (!l || l == &s->shared)
        return;
    if (link.prev >= 0)
        s->links[link.prev].next = link.next;
    else
        l->first = link.next;
    if (link.next >= 0)
        s->links[link.next].prev = link.prev;
    l->n_blocks--;
}

/* ---- conversations --------------------------------------------------------------------------- */

/* Of a conversation that begins: one reference. */
struct lineage *lineage_new(void)
{
    struct lineage *l = xcalloc(1, sizeof *l);

    l->n_refs = 1;
    l->first = -1;
    return l;
}

/* What has only l behind it is l's own. */
static void absorb(struct lineages *s, struct lineage *l)
{
    while (l->up && l->up->n_refs == 1) {
        struct lineage *up = l->up;
        while (up->first >= 0) {
            int32_t block = up->first;
            unlink_block(s, block);
            link_block(s, l, block);
        }
        l->up = up->up;
        xfree(up);
    }
}

/* *child [out, one reference] begins with all that *from has; *from may change. */
void lineage_fork(struct lineages *s, struct lineage **from, struct lineage **child)
{
    struct lineage *before = *from;

    absorb(s, before);
    *child = lineage_new();
    if (PLANTED(GONE_FORKED))
        return;
    if (before->n_blocks == 0) { /* forked a moment ago, or nothing is computed yet */
        (*child)->up = before->up;
        if (before->up)
            before->up->n_refs++;
        return;
    }
    *from = lineage_new();
    (*from)->up = (*child)->up = before;
    before->n_refs++; /* the one reference was the conversation's */
}

void lineage_put(struct lineages *s, struct lineage *l, void (*left)(void *arg, int32_t block),
                 void *arg)
{
    while (l && --l->n_refs == 0) {
        struct lineage *up = l->up;
        while (l->first >= 0) {
            int32_t block = l->first;
            unlink_block(s, block);
            left(arg, block);
        }
        xfree(l);
        l = up;
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* It was free, and is filled now; l NULL: by nobody who could be deleted. */
void lineage_take(struct lineages *s, struct lineage *l, int32_t block)
{
    unlink_block(s, block);
    if (l)
        link_block(s, l, block);
    else
        s->of[block] = &s->shared;
}

/* It is named by a table, or copied from. */
void lineage_use(struct lineages *s, struct lineage *l, int32_t block)
{
    struct lineage *of = s->of[block], *at = l;

    if (of == &s->shared)
        return;
    for (int32_t i = 0; of && at && at != of; i++)
        at = i < DEPTH_MAX ? at->up : NULL;
    if (of && (at || PLANTED(GONE_SHARED)))
        return;
    unlink_block(s, block);
    if (!of && l)
        link_block(s, l, block);
    else
        s->of[block] = &s->shared;
}

/* The lists agree with what the blocks say. 0, or -1 and the fault by its name. */
int lineage_audit(const struct lineages *s, struct err *err)
{
    for (int32_t b = 0; b < s->n_blocks; b++) {
        const struct lineage *l = s->of[b];
        struct lineage_link link = s->links[b];
        if (!l || l == &s->shared)
            continue;
        if (link.prev < 0 ? l->first != b : s->of[link.prev] != l || s->links[link.prev].next != b)
            return err_set(err, "L1 block %d is in no list of its lineage", b);
        if (link.next >= 0 && (s->of[link.next] != l || s->links[link.next].prev != b))
            return err_set(err, "L1 block %d is followed by %d of another lineage", b, link.next);
    }
    return 0;
}
