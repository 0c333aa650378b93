/* group.h - the end entries of one generation, one a branch: which of them stand, and which one the
 * conversation goes on with. */
#ifndef KEYSPACE_GROUP_H
#define KEYSPACE_GROUP_H

#include "keyspace/stream.h"

struct end_group {
    struct entry *ends[ENGINE_MAX_BRANCHES]; /* [n] borrows; by branch, the lowest first */
    int32_t n;
    size_t from, end; /* indices in the stream: of the first of them, and behind the last */
};
/* All that stand of the generation to which the end entry at index i belongs. */
void group_at(const struct stream *s, size_t i, struct end_group *group);
/* Does the sequence that the model sees hold this entry? All but the ends of other branches. For a
 * walk in order: met is zeroed before, and holds the group met last, so that each is looked at once,
 * however many its branches are and whatever stands behind them. */
bool group_goes_on(const struct stream *s, size_t i, struct end_group *met);
/* For a stream that nobody has seen yet. Of the end entries with this group only `chosen` (may be
 * NULL) stays, 0-0 names none; of all others what goes on. */
void group_prune(struct stream *s, struct stream_id group, const struct entry *chosen);

#endif
