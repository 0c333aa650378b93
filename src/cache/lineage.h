/* lineage.h - which blocks a conversation has used alone: they are worth nothing once it is gone. */
#ifndef CACHE_LINEAGE_H
#define CACHE_LINEAGE_H

#include <stdint.h>
#include "base/err.h"

/* One conversation, or what several forks of one have in common. Counted; main thread only. */
struct lineage {
    struct lineage *up; /* shares; what was before it was forked; NULL: nothing */
    int32_t n_refs;     /* its conversation, or the lineages behind it */
    int32_t first;      /* of its blocks: list through lineage_links; -1: none */
    int32_t n_blocks;
};

/* Of every block who has used it alone. Owned by the cache. */
struct lineages {
    struct lineage **of; /* [n_blocks] owns the array; NULL: nobody; &shared: several */
    struct lineage_link {
        int32_t next, prev; /* blocks of one lineage, -1 at the ends */
    } * links;              /* [n_blocks] owns */
    int32_t n_blocks;
    struct lineage shared; /* only its address counts */
};

void lineages_init(struct lineages *s, int32_t n_blocks);
void lineages_done(struct lineages *s); /* all lineages were put before */

struct lineage *lineage_new(void);
void lineage_fork(struct lineages *s, struct lineage **from, struct lineage **child);
/* The lineage is gone with the last reference, and then those before it whose last it was; `left` is
 * called for each block that they had. */
void lineage_put(struct lineages *s, struct lineage *l, void (*left)(void *arg, int32_t block),
                 void *arg);

void lineage_take(struct lineages *s, struct lineage *l, int32_t block);
void lineage_use(struct lineages *s, struct lineage *l, int32_t block);
int lineage_audit(const struct lineages *s, struct err *err);

#endif
