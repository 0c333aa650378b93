/* group.c - the end entries of one generation: which stand, which one goes on.
 *
 * GEN with N or BEAM ends in an entry a branch, each written when its branch ends, so in any order:
 *
 *     text 1-0   end 4-0 (1)   end 5-0 (0)   end 9-3 (2)   text 10-0
 *                └──────────── one group ──────────────┘
 *
 * While it runs the key is busy and nothing comes between. An orphaned group that is resumed may get
 * its last ends behind entries that the model ignores; so a group is what stands together, those
 * left aside. Its name is the key's last id when its first piece was still to come: no other
 * generation of the key, or of a child that holds its entries, has the same.
 *
 * The conversation goes on with branch 0, or, when its end was deleted, with the lowest that stands.
 * All else of the group is shown to readers and to nobody else. Main thread only. */
#include "keyspace/group.h"

#include "base/mem.h"
#include "base/plant.h"

static bool is_same(const struct entry *a, const struct entry *b)
{
    return a->kind == ENTRY_END && stream_id_compare(a->group, b->group) == 0;
}

static void put(struct end_group *group, struct entry *end)
{
    int32_t at = group->n++;
    ASSERT(group->n <= ENGINE_MAX_BRANCHES);
    for (; at > 0 && group->ends[at - 1]->branch > end->branch && !PLANTED(ENDS_UNSORTED); at--)
        group->ends[at] = group->ends[at - 1];
    group->ends[at] = end;
}

void group_at(const struct stream *s, size_t i, struct end_group *group)
{
    struct entry *end = stream_entry(s, i);
    *group = (struct end_group){.from = i};
    for (size_t k = i; k > 0; k--) {
        const struct entry *before = stream_entry(s, k - 1);
        if (stream_id_compare(before->id, end->group) <= 0)
            break; /* it stood before the generation began */
        if (is_same(before, end))
            group->from = k - 1;
        else if (before->kind != ENTRY_OTHER || PLANTED(GROUP_SPLIT))
            break;
    }
    for (size_t k = group->from; k < s->n; k++) {
        struct entry *entry = stream_entry(s, k);
        if (is_same(entry, end)) {
            put(group, entry);
            group->end = k + 1;
        } else if (entry->kind != ENTRY_OTHER || PLANTED(GROUP_SPLIT)) {
            break;
        }
    }
}

bool group_goes_on(const struct stream *s, size_t i, struct end_group *met)
{
    if (stream_entry(s, i)->kind != ENTRY_END || PLANTED(FOLLOW_ALL))
        return true;
    if (i < met->from || i >= met->end)
        group_at(s, i, met);
    return met->ends[PLANTED(FOLLOW_HIGHEST) ? met->n - 1 : 0] == stream_entry(s, i);
}

/* Is entry i, a known one, left aside? met: as of group_goes_on. */
static bool is_aside(const struct stream *s, size_t i, struct stream_id group,
                     const struct entry *chosen, struct end_group *met)
{
    const struct entry *entry = stream_entry(s, i);
    if (entry->kind == ENTRY_END && stream_id_compare(entry->group, group) == 0)
        return entry != chosen && !PLANTED(SIBLINGS_KEPT);
    return !group_goes_on(s, i, met);
}

void group_prune(struct stream *s, struct stream_id group, const struct entry *chosen)
{
    bool *is_gone = NULL; /* most conversations have nothing to leave aside */
    struct end_group met = {.n = 0};
    for (size_t i = stream_next_known(s, 0); i < s->n; i = stream_next_known(s, i + 1)) {
        if (!is_aside(s, i, group, chosen, &met))
            continue;
        if (is_gone == NULL)
            is_gone = xcalloc(s->n, sizeof *is_gone);
        is_gone[i] = true;
    }
    if (is_gone != NULL)
        (void)stream_drop(s, is_gone);
    xfree(is_gone);
}
