/* draw_keys.c - operations on keys out of a seed, one by one and in stories.
 *
 * What befalls a group only when several things happen to one key in a row, chance alone draws
 * rarely: an answer is left by its clients half-way, given up, and asked for again; a branch is
 * forked while it runs; an end entry is deleted, and somebody goes on behind it. Such rows are drawn
 * as stories, from the same kinds of operations, with others among them. */
#include "draw.h"

/* ---- one by one --------------------------------------------------------------------------------- */

/* Instead of what goes to the engine directly. */
void draw_key_weights(struct rng *r, struct swarm *s)
{
    static const enum op_kind direct[] = {OP_GEN,    OP_FORK,   OP_CONTINUE,
                                          OP_RESUME, OP_CANCEL, OP_PROBE};
    for (size_t i = 0; i < sizeof direct / sizeof *direct; i++)
        s->weights[direct[i]] = 0;
    s->weights[OP_KEY_ADD] = PICK(r, 1, 4);
    s->weights[OP_KEY_GEN] = PICK(r, 4, 10, 20);
    s->weights[OP_KEY_AGAIN] = PICK(r, 0, 3, 8);
    s->weights[OP_KEY_LEAVE] = PICK(r, 0, 2, 6);
    s->weights[OP_KEY_DESERT] = PICK(r, 0, 1);
    s->weights[OP_KEY_FORK] = PICK(r, 0, 3, 8);
    s->weights[OP_KEY_CANCEL] = PICK(r, 0, 1, 3);
    s->weights[OP_KEY_DELETE] = PICK(r, 1, 1, 4);
    s->weights[OP_KEY_EXPIRE] = PICK(r, 0, 1, 3);
    s->weights[OP_KEY_PERSIST] = PICK(r, 0, 1);
    s->weights[OP_KEY_RENAME] = PICK(r, 0, 1, 3);
    s->weights[OP_KEY_XDEL] = PICK(r, 0, 1, 3);
    s->weights[OP_KEY_XTRIM] = PICK(r, 1, 1, 3);
    s->weights[OP_KEY_FLUSH] = PICK(r, 0, 0, 1);
    s->weights[OP_KEY_READ] = PICK(r, 0, 1, 3);
    s->weights[OP_CLOCK] = PICK(r, 1, 4, 8);
    s->ids = PICK(r, 0, 4, 14);
    s->groups = PICK(r, 0, 4, 8, 14);
    s->beams = PICK(r, 0, 3, 8);
    s->stories = PICK(r, 0, 4, 8, 12);
}

/* N or BEAM, also of one, with tokens that mostly fit. The conversation before it is not known here,
 * so some of it has no room. */
static void draw_key_group(struct rng *r, const struct world_config *c, const struct swarm *s,
                           struct op *op)
{
    bool is_beam = below(r, 16) < s->beams;
    int32_t n = is_beam ? PICK(r, 1, 2, 2, 3, 4) : PICK(r, 1, 2, 2, 3, 3, 4, 6, 8);
    if (n > c->max_running && below(r, 16) > 0)
        n = c->max_running;
    op->args[ARG_BRANCHES] = n;
    if (is_beam)
        op->args[ARG_FLAGS] |= FLAG_BEAM | (below(r, 3) == 0 ? FLAG_EARLY : 0);
    if (is_beam && below(r, 2))
        op->args[ARG_FLAGS] &= ~FLAG_IGNORE_EOS;
    int32_t room = c->n_blocks * c->block_size / (2 * n);
    if (op->args[ARG_MAX_TOKENS] > room && below(r, 8) > 0)
        op->args[ARG_MAX_TOKENS] = room > 1 ? room : 1;
}

static void draw_reading(struct rng *r, struct op *op)
{
    op->args[KEY_REVERSE] = below(r, 3);
    op->args[KEY_FROM] = below(r, 2) ? below(r, 1 << 16) : 0;
    op->args[KEY_COUNT] = PICK(r, 0, 0, 1, 1, 2);
}

void draw_key_args(struct rng *r, const struct world_config *c, struct swarm *s, struct op *op)
{
    if (op->kind == OP_KEY_GEN) {
        draw_options(r, s, op);
        op->args[ARG_FLAGS] |= below(r, 8) == 0 ? FLAG_LONG : 0;
        op->args[ARG_FLAGS] |= below(r, 8) == 0 ? FLAG_WITH_INFO : 0;
        if (below(r, 16) < s->groups)
            draw_key_group(r, c, s, op);
        if (below(r, 12) == 0)
            op->args[ARG_MAX_TOKENS] = 0; /* the default */
        op->args[KEY_MODE] = below(r, KEY_N_MODES);
        op->args[KEY_NO_PROMPT] = below(r, 3) == 0;
        op->args[KEY_ID] = below(r, 16) < s->ids ? 1 + below(r, 3) : 0;
    }
    if (op->kind == OP_KEY_AGAIN)
        op->args[KEY_BACK] = PICK(r, 0, 0, 1, 2, 3);
    if (op->kind == OP_KEY_GEN || op->kind == OP_KEY_ADD) {
        draw_prompt(r, c, s, op);
        op->args[KEY_ROOT] = op->args[ARG_TARGET];
        op->args[ARG_LENGTH] = 1 + op->args[ARG_LENGTH] / PICK(r, 1, 2, 4);
    }
    if (op->kind == OP_KEY_ADD)
        op->args[ARG_VARIANT] = below(r, 4); /* 0: an entry that the model ignores */
    op->args[0] = below(r, c->n_keys);
    if (op->kind == OP_KEY_FORK || op->kind == OP_KEY_RENAME)
        op->args[KEY_TARGET] = below(r, c->n_keys);
    if (op->kind == OP_KEY_FORK) {
        op->args[KEY_TARGET_TOO] = below(r, 3) == 0 ? below(r, c->n_keys) : -1;
        op->args[KEY_AT] = below(r, 3) == 0 ? below(r, 1 << 16) : -1;
        op->args[KEY_REPLACE] = below(r, 2);
        if (op->args[KEY_AT] < 0 && below(r, 2))
            op->args[KEY_BRANCH] = 1 + PICK(r, 0, 1, 1, 2, 3, 7);
    }
    if (op->kind == OP_KEY_RENAME)
        op->args[KEY_ONLY_NEW] = below(r, 2);
    if (op->kind == OP_KEY_EXPIRE)
        op->args[KEY_MS] = PICK(r, -1, 1, 20, 200, 1000);
    if (op->kind == OP_KEY_XDEL)
        op->args[KEY_INDEX] = below(r, 1 << 16);
    if (op->kind == OP_KEY_XTRIM)
        op->args[KEY_INDEX] = PICK(r, 0, 1, 2, 4, 8);
    if (op->kind == OP_KEY_READ)
        draw_reading(r, op);
}

/* ---- stories ------------------------------------------------------------------------------------ */

struct story {
    struct rng *r;
    struct swarm *swarm;
    struct script *s;
    int32_t key; /* all of it happens there */
};

static struct op *tell(struct story *t, enum op_kind kind)
{
    struct op op = {.kind = kind};
    draw_key_args(t->r, &t->s->config, t->swarm, &op);
    op.args[0] = t->key;
    script_add(t->s, &op);
    return &t->s->ops[t->s->n_ops - 1];
}

static void tell_steps(struct story *t, int32_t most)
{
    for (int32_t i = below(t->r, most + 1); i > 0; i--) {
        struct op op = draw_step(t->r, t->swarm);
        script_add(t->s, &op);
    }
}

static void tell_clock(struct story *t, int32_t ms)
{
    struct op op = {.kind = OP_CLOCK, .args = {ms}};
    script_add(t->s, &op);
}

/* A GEN with several branches on a conversation that leaves them room. */
static void tell_group(struct story *t)
{
    struct rng *r = t->r;
    const struct world_config *c = &t->s->config;
    if (below(r, 2))
        tell(t, OP_KEY_XTRIM)->args[KEY_INDEX] = PICK(r, 0, 1, 2);
    struct op *op = tell(t, OP_KEY_GEN);
    op->args[ARG_FLAGS] &= ~FLAG_LONG;
    op->args[ARG_LENGTH] = 1 + op->args[ARG_LENGTH] / 4;
    op->args[ARG_EXTRA] = 0;
    op->args[ARG_MAX_TOKENS] = PICK(r, 6, 12, 20, 40, 60);
    op->args[KEY_NO_PROMPT] = below(r, 6) == 0;
    op->args[KEY_MODE] = PICK(r, KEY_WAITS, KEY_WAITS, KEY_BLOCKS, KEY_ASYNC);
    op->args[ARG_DEADLINE] = 0;
    if (op->args[ARG_BRANCHES] == 0)
        draw_key_group(r, c, t->swarm, op);
    if (below(r, 4) > 0) /* branches end one by one */
        op->args[ARG_FLAGS] = (op->args[ARG_FLAGS] & ~FLAG_IGNORE_EOS) | PICK(r, 0, FLAG_STOPS);
}

/* What somebody does with a key whose group has ended, or goes on. */
static void tell_one(struct story *t)
{
    static const enum op_kind kinds[] = {OP_KEY_XDEL,  OP_KEY_XDEL, OP_KEY_XDEL, OP_KEY_READ,
                                         OP_KEY_XTRIM, OP_KEY_ADD,  OP_KEY_FORK, OP_KEY_AGAIN};
    struct op *op = tell(t, kinds[below(t->r, 8)]);
    if (op->kind == OP_KEY_ADD && below(t->r, 2))
        op->args[ARG_VARIANT] = 0; /* what the model ignores */
    if (op->kind == OP_KEY_AGAIN)
        op->args[KEY_BACK] = 0;
}

static void tell_fork(struct story *t)
{
    struct op *op = tell(t, OP_KEY_FORK);
    op->args[KEY_TARGET] = t->key + 1;
    op->args[KEY_REPLACE] = 1;
    if (below(t->r, 2))
        return;
    op = tell(t, OP_KEY_GEN); /* of the child, without a prompt or with one */
    op->args[0] = t->key + 1;
}

/* Left half-way, given up, asked for again. */
static void tell_orphan(struct story *t)
{
    tell_steps(t, 16);
    tell(t, OP_KEY_DESERT);
    tell_clock(t, 200);
    tell_steps(t, 2);
    if (below(t->r, 4) == 0)
        tell(t, OP_KEY_ADD)->args[ARG_VARIANT] = 0; /* what the model ignores */
    if (below(t->r, 6) == 0)
        tell_one(t);
    tell(t, OP_KEY_AGAIN)->args[KEY_BACK] = 0;
    tell_steps(t, 8);
    if (below(t->r, 2))
        tell_fork(t);
    if (below(t->r, 3) == 0)
        tell_orphan(t);
}

/* Forked while it runs, then ended, and gone on from. */
static void tell_forks(struct story *t)
{
    for (int32_t i = 1 + below(t->r, 3); i > 0; i--) {
        tell_steps(t, 8);
        if (below(t->r, 3) == 0)
            tell(t, OP_KEY_READ);
        tell_fork(t);
    }
}

/* Ends stand, some go; then somebody asks again, or goes on. */
static void tell_ends(struct story *t)
{
    tell_steps(t, 30);
    for (int32_t i = 1 + below(t->r, 3); i > 0; i--)
        tell_one(t);
    tell(t, PICK(t->r, OP_KEY_AGAIN, OP_KEY_GEN, OP_KEY_FORK, OP_KEY_READ));
}

/* Nobody waits, but somebody reads what stands while others are still to come; then all end. */
static void tell_heard(struct story *t)
{
    tell_steps(t, 16);
    tell(t, OP_KEY_DESERT);
    tell(t, OP_KEY_READ);
    tell_steps(t, 40);
    tell(t, OP_KEY_AGAIN)->args[KEY_BACK] = 0;
}

void draw_key_story(struct rng *r, struct swarm *swarm, struct script *s)
{
    static void (*const stories[])(struct story * t) = {tell_orphan, tell_orphan, tell_forks,
                                                        tell_ends, tell_heard};
    struct story t = {r, swarm, s, below(r, s->config.n_keys)};
    tell_group(&t);
    stories[below(r, 5)](&t);
}
