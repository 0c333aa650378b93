/* resume.c - an orphan goes on: the same GEN came while its end entries were the key's last.
 *
 *     end 4-0 (0) stop   end 7-0 (1) orphaned   end 7-1 (2) orphaned          stood
 *     end 4-0 (0) stop   ...                                                  while it runs again
 *     end 4-0 (0) stop   end 9-0 (2) stop       end 9-5 (1) length            stands then
 *
 * Branches that had finished keep their entries. The others go on from their ids with the same seed,
 * each in its own stream of draws, so that they become what they would have been; their entries leave
 * when the engine has accepted, not before, and the new ones hold the whole text. A beam's branches
 * depend on each other and on what was dropped, so it is searched anew: nothing is drawn, so it ends
 * in the same answers. Main thread only. */
#include "keyspace/generation.h"

#include "base/mem.h"
#include "base/plant.h"

/* Called on arrival: which branches go on, from which of these entries. */
void resume_take(struct generation *g, const struct end_group *resumed)
{
    g->resumes = true;
    g->options.seed = g->key->attempt->seed;
    for (int32_t i = 0; i < g->n_branches; i++) {
        struct generation_branch *b = &g->branches[i];
        struct entry *end = resumed->ends[i];
        b->is_over = end->finish != GEN_ORPHANED && !g->options.beam && !PLANTED(OVER_RESUMED);
        *(b->is_over ? &b->end : &b->resumed) = entry_take(end);
        if (!b->is_over && !g->options.beam && !PLANTED(LINES_LOST))
            b->logprobs_before = entry_field(end, "logprobs");
    }
}

/* Called when the build is done. The limit may have been lowered since: what goes on must leave room
 * for one more id. -1: err. */
int resume_check(const struct generation *g, struct err *err)
{
    int32_t n_context = g->ks->config.n_context, longest = 0;
    for (int32_t i = 0; i < g->n_branches; i++) {
        const struct entry *resumed = g->branches[i].resumed;
        if (resumed != NULL && resumed->ids.n > longest && !g->options.beam)
            longest = resumed->ids.n;
    }
    if (g->build->ids.n + longest < n_context)
        return 0;
    return err_set(err,
                   "ERR the conversation has at least %d tokens, the context holds %d with one to "
                   "generate",
                   g->build->ids.n + longest, n_context);
}

/* [n_branches]: where each goes on; NULL: all begin at the prompt's end, as beams do again. The
 * caller frees. */
struct gen_start *resume_starts(const struct generation *g)
{
    if (!g->resumes || g->options.beam)
        return NULL;
    struct gen_start *starts = xcalloc((size_t)g->n_branches, sizeof *starts);
    for (int32_t i = 0; i < g->n_branches; i++) {
        const struct generation_branch *b = &g->branches[i];
        if (PLANTED(STARTS_PACKED) && i > 0 && g->branches[i - 1].resumed)
            b = &g->branches[i - 1];
        starts[i].is_over = b->is_over;
        if (b->resumed != NULL) {
            starts[i].ids = b->resumed->ids.data;
            starts[i].n = b->resumed->ids.n;
        }
    }
    return starts;
}

/* Called when the engine has accepted: the orphaned entries leave; new ones of the same group take
 * their places in the end. */
void resume_take_out(struct generation *g)
{
    struct stream_id ids[ENGINE_MAX_BRANCHES];
    size_t n = 0;
    for (int32_t i = 0; i < g->n_branches; i++) {
        const struct entry *resumed = g->branches[i].resumed;
        if (resumed == NULL)
            continue;
        if (!PLANTED(RESUME_RENAMED))
            g->attempt->group = resumed->group;
        if (!PLANTED(RESUME_ONE) || n == 0)
            ids[n++] = resumed->id;
    }
    if (PLANTED(RESUME_DOUBLES))
        return;
    (void)stream_delete_all(g->key->stream, ids, n); /* they are there: the key was busy */
    key_changed(g->key, KEY_EVENT_XDEL);
}

/* The pieces of answers that go on stay as they are; where they have gone, the new ones begin behind
 * the text that is known. Beams have none. */
void resume_pieces(struct generation *g, bool have_gone)
{
    struct pieces *pieces = &g->key->pieces;
    timer_stop(&g->ks->timers, &pieces->hold);
    if (have_gone)
        pieces_open(g->key, g->n_branches);
    for (int32_t i = 0; i < g->n_branches; i++) {
        struct generation_branch *b = &g->branches[i];
        if (b->is_over)
            continue;
        b->n_text = g->options.beam ? 0 : b->resumed->text.len;
        entry_put(pieces->branches[i].end);
        pieces->branches[i].end = NULL;
        if (have_gone)
            pieces->branches[i].base = b->n_text;
    }
}
