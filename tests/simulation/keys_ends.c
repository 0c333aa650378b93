/* keys_ends.c - what must be true of end entries, which are adopted into the model as they appear.
 *
 *   K3  an accepted generation ends once in each branch, by its lone run or by what somebody asked
 *       for, and the end entry is the beginning of the lone run's text; a beam's are the answers of
 *       its plain search, or of as much of it as was made
 *   K6  the fields of an end entry say what the model says: branch, seed, counts, log-probabilities
 *
 * Branches end in any order, each when it does; the generation is over behind the last. How far a
 * beam had come when somebody ended it is not told, but within an operation it goes on by one step
 * at most: so its answers are those of one of two plain searches. */
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "keys_world.h"
#include "keyspace/generation.h"

void keys_note(struct keys_world *k)
{
    for (int32_t i = 0; i < k->world->config.n_keys; i++) {
        struct plain_gen *gen = k->plain[i].running;
        if (gen && gen->beam)
            gen->n_beam_steps = keys_gen(k, i)->seqs[0].n_ids - gen->beam->n_prompt;
    }
}

static bool equal_letters(const int32_t *ids, struct bytes text)
{
    for (size_t i = 0; i < text.len; i++)
        if (text.data[i] != 'a' + ids[i] - 1)
            return false;
    return true;
}

bool plain_is_letters(const struct plain_branch *b, struct bytes text)
{
    const struct lone *l = &b->lone;
    return (int32_t)text.len <= l->n_ids - l->n_prompt && equal_letters(l->ids + l->n_prompt, text);
}

static bool is_due(const struct keys_world *k, const struct plain_gen *gen, enum gen_finish finish)
{
    switch (finish) {
    case GEN_ERROR:
        return k->is_failing;
    case GEN_DEADLINE:
        return gen->deadline_us > 0 && gen->deadline_us <= clock_now_us();
    case GEN_ORPHANED:
        return gen->orphan_us > 0 && gen->orphan_us <= clock_now_us() && !gen->is_unowned &&
               keys_waiting(k, gen) == 0;
    default:
        return finish == gen->asked && finish != GEN_NONE;
    }
}

static bool ends_itself(enum gen_finish finish)
{
    return finish == GEN_STOP || finish == GEN_LENGTH;
}

/* ---- fields ------------------------------------------------------------------------------------- */

/* What the model knows of an answer: as many ids as were generated. */
struct made {
    const int32_t *ids;
    const uint64_t *seen; /* what the log-probability of each follows from */
    int32_t n;
    uint32_t banned; /* of the best that are told beside */
    bool is_matched; /* by a stop string */
};

static void check_number(struct world *w, const struct entry *end, const char *name, bool is_there,
                         uint64_t expected)
{
    struct bytes field = entry_field(end, name);
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)expected);
    if ((field.data != NULL) != is_there)
        world_fault(w, "K6 field %s is %s", name, is_there ? "missing" : "there");
    else if (is_there && !bytes_equal(field, bytes_from(text)))
        world_fault(w, "K6 field %s is '%.*s', the model says %s", name, (int)field.len, field.data,
                    text);
}

/* Takes "id" or "id:log-probability", and the blank behind it. False: it is not that. */
static bool take_pair(const char **at, int32_t id, bool is_known, float logprob)
{
    char *end;
    bool ok = strtol(*at, &end, 10) == id && end > *at;
    if (is_known)
        ok = ok && *end == ':' && strtod(end + 1, &end) == (double)logprob;
    *at = end + (*end == ' ');
    return ok;
}

/* A line: of an id, then of the best behind what `seen` folds; of the first id of a prompt nothing
 * is known but itself. */
static bool is_line(const char *line, int32_t id, bool is_known, uint64_t seen, uint32_t banned,
                    int32_t n_best)
{
    struct chosen best[ENGINE_MAX_LOGPROBS];
    bool ok = take_pair(&line, id, is_known, is_known ? toy_logprob(seen, id) : 0);
    toy_best(seen, banned, n_best, best);
    for (int32_t i = 0; is_known && ok && i < n_best; i++)
        ok = take_pair(&line, best[i].id, true, best[i].logprob);
    return ok && *line == '\0';
}

/* line <- the first of the text, which begins behind it then. */
static void next_line(struct bytes *text, char line[256])
{
    const char *end = text->len > 0 ? memchr(text->data, '\n', text->len) : NULL;
    size_t n = end ? (size_t)(end - text->data) : text->len, kept = n < 255 ? n : 255;
    memcpy(line, text->data, kept);
    line[kept] = '\0';
    text->data += n + (end != NULL);
    text->len -= n + (end != NULL);
}

static void check_logprobs(struct world *w, const struct plain_gen *gen, const struct made *made,
                           const struct entry *end)
{
    struct bytes text = entry_field(end, "logprobs");
    bool is_asked = gen->op.args[ARG_FLAGS] & FLAG_LOGPROBS;
    char line[256];
    if ((text.data != NULL) != is_asked)
        world_fault(w, "K6 log-probabilities %s", is_asked ? "are missing" : "unasked");
    for (int32_t i = 0; is_asked && i < made->n && !world_is_wrong(w); i++) {
        next_line(&text, line);
        if (!is_line(line, made->ids[i], true, made->seen[i], made->banned,
                     gen->options.n_logprobs))
            world_fault(w, "K6 line %d of %d log-probabilities is '%.60s'", i, made->n, line);
    }
    if (text.len > 0 && !world_is_wrong(w))
        world_fault(w, "K6 more lines of log-probabilities than ids");
}

/* With branch 0: as far as they were known, all when it has a token. */
static void check_prompt(struct world *w, const struct plain_gen *gen, const struct made *made,
                         const struct entry *end)
{
    struct bytes text = entry_field(end, "prompt-logprobs");
    const struct lone *l = &gen->branches[end->branch].lone;
    bool is_asked = (gen->op.args[ARG_FLAGS] & FLAG_PROMPT_LOGPROBS) && end->branch == 0;
    int32_t n = 0, n_prompt = l->n_prompt;
    char line[256];
    if ((text.data != NULL) != is_asked)
        world_fault(w, "K6 log-probabilities of the prompt %s branch %d",
                    is_asked ? "are missing in" : "stand in", end->branch);
    for (; text.len > 0 && n < n_prompt && !world_is_wrong(w); n++) {
        next_line(&text, line);
        if (!is_line(line, l->ids[n], n > 0, n > 0 ? l->folds[n - 1] : 0, 0,
                     gen->options.n_prompt_logprobs))
            world_fault(w, "K6 line %d of the prompt's log-probabilities is '%.60s'", n, line);
    }
    bool has_all = made->n > gen->branches[0].n_resumed || ends_itself(end->finish);
    if (is_asked && !world_is_wrong(w) && (text.len > 0 || n < 1 || (has_all && n < n_prompt)))
        world_fault(w, "K6 %d of %d ids of the prompt are told%s", n, n_prompt,
                    text.len > 0 ? ", and more" : "");
}

static void check_fields(struct world *w, const struct plain_gen *gen, const struct made *made,
                         const struct entry *end)
{
    int32_t branches = gen->op.args[ARG_BRANCHES];
    bool is_list = branches > 0 || gen->beam;
    char id[8];
    snprintf(id, sizeof id, "id-%d", (int)(gen->op.args[KEY_ID] % 100));
    check_number(w, end, "branch", is_list, (uint64_t)end->branch);
    check_number(w, end, "seed", !gen->beam, gen->options.seed);
    check_number(w, end, "prompt", true, (uint64_t)gen->branches[end->branch].lone.n_prompt);
    check_number(w, end, "generated", true, (uint64_t)made->n);
    if (!bytes_equal(entry_field(end, "finish"), bytes_from(gen_finish_name(end->finish))))
        world_fault(w, "K6 field finish is not %s", gen_finish_name(end->finish));
    if ((entry_field(end, "matched").data != NULL) != made->is_matched)
        world_fault(w, "K6 a stop string matched in one run only");
    if (gen->op.args[KEY_ID] > 0 ? !bytes_equal(entry_field(end, "id"), bytes_from(id))
                                 : entry_field(end, "id").data != NULL)
        world_fault(w, "K6 field id is not the ID of the GEN");
    check_logprobs(w, gen, made, end);
    check_prompt(w, gen, made, end);
}

/* ---- branches that go their own ways ------------------------------------------------------------ */

static void check_sampled(struct keys_world *k, const struct plain_gen *gen,
                          const struct entry *end)
{
    const struct plain_branch *b = &gen->branches[end->branch];
    const struct lone *l = &b->lone;
    bool by_itself = ends_itself(end->finish);
    int32_t n_sampled = l->n_ids - l->n_prompt, n = (int32_t)end->text.len;
    if (by_itself ? end->finish != l->finish : !is_due(k, gen, end->finish))
        world_fault(k->world, "K3 branch %d ended by %s, the lone run by %s", end->branch,
                    gen_finish_name(end->finish), gen_finish_name(l->finish));
    if (!plain_is_letters(b, end->text))
        world_fault(k->world, "K3 the end entry of branch %d differs from the lone run",
                    end->branch);
    if (by_itself ? n != l->n_text : n < b->n_resumed)
        world_fault(k->world,
                    "K3 an end entry of %d letters, the lone run has %d, of them %d known", n,
                    l->n_text, b->n_resumed);
    struct made made = {.ids = l->ids + l->n_prompt,
                        .seen = b->seen,
                        .n = by_itself ? n_sampled : n,
                        .is_matched = by_itself && l->n_text < n_sampled};
    if (!world_is_wrong(k->world))
        check_fields(k->world, gen, &made, end);
}

/* ---- beams -------------------------------------------------------------------------------------- */

static int32_t answer_length(const struct plain_beam *beam, int32_t i, int32_t *n_stop)
{
    int32_t n = i < beam->n_answers ? beam->answers[i].n : 0;
    *n_stop = n > 0 ? lone_stop_length(beam->answers[i].ids, n, &beam->options) : 0;
    return n - *n_stop;
}

/* Its end entries, which stand behind the model's last, are these answers: their texts, and how many
 * ids were generated for each, stop strings included. */
static bool are_answers(const struct plain_beam *beam, const struct stream *s, int32_t from)
{
    for (int32_t j = from; j < (int32_t)s->n; j++) {
        const struct entry *end = stream_entry(s, (size_t)j);
        int32_t n_stop, n;
        if (end->kind != ENTRY_END || end->branch < 0 || end->branch >= beam->options.n_branches)
            return false;
        n = answer_length(beam, end->branch, &n_stop);
        if ((int32_t)end->text.len != n ||
            conversation_end_number(end, "generated") != n + n_stop ||
            (n > 0 && !equal_letters(beam->answers[end->branch].ids, end->text)))
            return false;
    }
    return true;
}

static void rerun(struct plain_gen *gen, int32_t n_steps, int32_t n_context)
{
    int32_t prompt[LONE_MAX_IDS];
    memcpy(prompt, gen->beam->prompt, sizeof prompt);
    plain_beam_run(gen->beam, prompt, gen->beam->n_prompt, &gen->options, n_context, n_steps);
}

/* It was ended by somebody: its search goes as far as it had come. All its ends came at once. */
static void cut_beam(struct keys_world *k, struct plain_gen *gen, const struct stream *s,
                     int32_t from)
{
    int32_t n_context = k->world->config.n_context;
    if (ends_itself(stream_entry(s, (size_t)from)->finish))
        return;
    rerun(gen, gen->n_beam_steps, n_context);
    if (!are_answers(gen->beam, s, from))
        rerun(gen, gen->n_beam_steps + 1, n_context);
}

static void check_answer(struct keys_world *k, const struct plain_gen *gen, const struct entry *end)
{
    struct plain_beam *beam = gen->beam;
    int32_t ids[LONE_MAX_IDS + 1], n_stop, n_text = answer_length(beam, end->branch, &n_stop);
    const struct plain_answer *a = &beam->answers[end->branch];
    bool has_one = end->branch < beam->n_answers, by_itself = ends_itself(end->finish);
    enum gen_finish own = has_one ? a->finish : GEN_LENGTH;
    uint64_t seen[LONE_MAX_IDS];
    if (by_itself != beam->is_over ||
        (by_itself ? end->finish != own : !is_due(k, gen, end->finish)))
        world_fault(k->world, "K3 answer %d of a beam ended by %s, the plain one by %s",
                    end->branch, gen_finish_name(end->finish), gen_finish_name(own));
    if ((int32_t)end->text.len != n_text || (n_text > 0 && !equal_letters(a->ids, end->text)))
        world_fault(k->world, "K3 answer %d of a beam has %d letters, the plain one %d, or others",
                    end->branch, (int)end->text.len, n_text);
    struct made made = {.ids = a->ids,
                        .seen = seen,
                        .n = has_one ? a->n : 0,
                        .banned = toy_banned(&gen->options),
                        .is_matched = by_itself && own == GEN_STOP && n_stop > 0};
    memcpy(ids, beam->prompt, (size_t)beam->n_prompt * sizeof *ids);
    for (int32_t i = 0; i < made.n; i++) {
        seen[i] = plain_beam_seen(beam, ids, beam->n_prompt + i);
        ids[beam->n_prompt + i] = a->ids[i];
    }
    if (!world_is_wrong(k->world))
        check_fields(k->world, gen, &made, end);
}

/* ---- adopting ----------------------------------------------------------------------------------- */

static void adopt(struct keys_world *k, struct plain_key *p, struct plain_gen *gen,
                  const struct entry *end)
{
    if (end->kind != ENTRY_END || end->branch < 0 || end->branch >= gen->n_branches) {
        world_fault(k->world, "K3 something else than an end entry stands behind the last");
        return;
    }
    struct plain_branch *b = &gen->branches[end->branch];
    if (b->finish != GEN_NONE) {
        world_fault(k->world, "K3 a second end of branch %d", end->branch);
        return;
    }
    if (gen->beam)
        check_answer(k, gen, end);
    else
        check_sampled(k, gen, end);
    if (world_is_wrong(k->world))
        return;
    b->finish = end->finish;
    b->n_final = (int32_t)end->text.len;
    memcpy(b->text, end->text.data, end->text.len);
    k->n_ends++;
    plain_append(k, p, end, gen->group);
}

static void check_all_ended(struct keys_world *k, const struct plain_gen *gen)
{
    for (int32_t i = 0; i < gen->n_branches; i++)
        if (gen->branches[i].finish == GEN_NONE)
            world_fault(k->world, "K3 a generation ended without an end entry of branch %d", i);
}

static void sync_key(struct keys_world *k, int32_t i)
{
    struct plain_key *p = &k->plain[i];
    struct plain_gen *gen = p->running;
    struct key *key = keys_raw(k, i);
    if (!gen || gen->pending || !key)
        return;
    const struct stream *s = key_stream(key);
    if (gen->beam && (int32_t)s->n > p->n)
        cut_beam(k, gen, s, p->n);
    for (int32_t j = p->n; j < (int32_t)s->n && !world_is_wrong(k->world); j++)
        adopt(k, p, gen, stream_entry(s, (size_t)j));
    if (key->generation || world_is_wrong(k->world))
        return;
    check_all_ended(k, gen);
    p->running = NULL;
    plain_end(k, gen);
}

void keys_sync(struct keys_world *k)
{
    for (int32_t i = 0; i < k->world->config.n_keys && !world_is_wrong(k->world); i++)
        sync_key(k, i);
}
