/* gen_info.c - GENINFO: what a key's generation is doing, or what its last one has done.
 *
 * A generation with several branches is told as one: what they generated is added up, blocks count
 * once, prompt and cached tokens are of the prompt that they share. Main thread only. */
#include "keyspace/generation.h"

/* Called behind the last end. What is the same for all is taken from a branch that ended now; a
 * branch that had ended before counts with what it made. */
void generation_note_last(const struct generation *g)
{
    struct gen_info info = {.finish = gen_finish_name(g->attempt->finish)};
    for (int32_t i = 0; i < g->n_branches; i++) {
        const struct generation_branch *b = &g->branches[i];
        int64_t decode_ms = conversation_end_number(b->end, "decode-ms");
        info.generated += conversation_end_number(b->end, "generated");
        if (b->is_over)
            continue;
        info.prompt = conversation_end_number(b->end, "prompt");
        info.cached = conversation_end_number(b->end, "cached");
        info.queued_ms = conversation_end_number(b->end, "queued-ms");
        info.prefill_ms = conversation_end_number(b->end, "prefill-ms");
        info.decode_ms = decode_ms > info.decode_ms ? decode_ms : info.decode_ms;
    }
    info.computed = info.prompt - info.cached;
    g->key->last = info;
}

/* All of what the branches made; the rest is the same for all, or of the first that goes on. */
static int64_t view_all(const struct generation *g, struct gen_view *view)
{
    int64_t generated = 0;
    *view = (struct gen_view){.finish = GEN_NONE};
    for (int32_t i = g->n_branches - 1; i >= 0; i--) {
        const struct generation_branch *b = &g->branches[i];
        struct gen_view one;
        if (b->is_over) {
            generated += conversation_end_number(b->end, "generated");
            continue;
        }
        gen_view_branch(g->gen, i, &one);
        generated += one.n_generated;
        if (one.finish == GEN_NONE || view->n_branches == 0)
            *view = one;
    }
    return generated;
}

static void info_of_running(const struct generation *g, struct gen_info *info)
{
    struct gen_view view;
    info->state = "queued";
    if (g->gen == NULL)
        return;
    int64_t generated = view_all(g, &view);
    *info = (struct gen_info){
        .state = view.running ? "running" : "queued",
        .finish = info->finish,
        .place = view.place,
        .prompt = view.n_prompt,
        .cached = view.n_cached,
        .computed = view.n_computed,
        .generated = generated,
        .queued_ms = view.queued_ms,
        .prefill_ms = view.prefill_ms,
        .decode_ms = view.decode_ms,
    };
}

static void info_of_blocks(const struct key *key, struct gen_info *info)
{
    struct gen_blocks blocks = {0};
    int32_t n_cached = 0;
    info->own_blocks = 0;
    if (key->lineage != NULL)
        info->own_blocks = engine_count_lineage(key->ks->config.engine, key->lineage, &n_cached);
    if (key->generation != NULL && key->generation->gen != NULL)
        gen_count_blocks(key->generation->gen, &blocks);
    info->cached_blocks = n_cached;
    info->blocks = blocks.n;
    info->shared_blocks = blocks.n_shared;
    info->swapped_blocks = blocks.n_swapped;
}

void keys_gen_info(struct keyspace *ks, int32_t db, struct bytes name, struct gen_info *info)
{
    struct key *key = keys_lookup(ks, db, name);
    *info = (struct gen_info){.state = "none", .finish = ""};
    if (key == NULL) {
        const struct removed *removed = table_get(ks->removed[db], name);
        if (removed != NULL)
            info->finish = gen_finish_name(removed->finish);
        return;
    }
    const char *finish = key->last.finish ? key->last.finish : "";
    if (key->generation != NULL) {
        info->finish = finish;
        info_of_running(key->generation, info);
    } else {
        *info = key->last;
        info->state = "idle";
        info->finish = finish;
    }
    info_of_blocks(key, info);
}
