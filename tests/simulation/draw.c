/* draw.c - worlds and operations out of a seed.
 *
 * How likely each kind is, is drawn for each world too ("swarm"): worlds without cancels, worlds of
 * forks only, worlds that hardly step, worlds that press the pool. */
#include "draw.h"

/* ---- drawing ------------------------------------------------------------------------------------ */

static struct world_config draw_config(struct rng *r)
{
    struct world_config c = {
        .block_size = PICK(r, 1, 2, 3, 4, 4, 16),
        .n_blocks = PICK(r, 3, 4, 5, 6, 8, 10, 14, 24, 40, 80),
        .max_running = PICK(r, 1, 2, 3, 4, 8, 12, 16),
        .max_queue = PICK(r, 1, 4, 8, 30),
        .n_context = PICK(r, 24, 48, 96, 128),
        .n_letters = PICK(r, 1, 2, 3),
        .hash_bits = PICK(r, 64, 64, 8, 1),
        .n_roots = PICK(r, 1, 3, 5),
        .roots_seed = 1 + below(r, 1 << 20),
        .n_slots = PICK(r, 0, 1, 3, 8, 20, 100),
        .swaps = PICK(r, 0, 1, 1),
    };
    if (c.block_size == 1)
        c.n_blocks *= 2;
    c.budget = c.max_running + c.block_size * PICK(r, 1, 2, 4);
    c.chunk = c.block_size * PICK(r, 1, 2, 8);
    return c;
}

static struct swarm draw_swarm(struct rng *r)
{
    struct swarm s = {
        .weights =
            {
                [OP_GEN] = PICK(r, 2, 8, 20, 40),
                [OP_FORK] = PICK(r, 0, 1, 4, 10),
                [OP_CONTINUE] = PICK(r, 0, 1, 3),
                [OP_RESUME] = PICK(r, 0, 1, 3, 8),
                [OP_CANCEL] = PICK(r, 0, 1, 2, 6),
                [OP_CLEAR] = PICK(r, 0, 0, 0, 1),
                [OP_PROBE] = PICK(r, 0, 1),
                [OP_CLOCK] = PICK(r, 0, 1, 2),
                [OP_STEP] = PICK(r, 20, 40, 80),
                [OP_IDLE] = PICK(r, 0, 0, 1),
            },
        .many = PICK(r, 2, 4, 100),
        .is_hot = below(r, 2),
        .is_growing = below(r, 3) == 0,
        .not_done = PICK(r, 0, 2, 8),
        .fail = PICK(r, 0, 0, 16, 400),
        .urgent = PICK(r, 0, 0, 4, 12),
        .deadlines = PICK(r, 0, 0, 4, 12),
        .reacts = PICK(r, 0, 0, 3, 8),
        .flags = PICK(r, 0, 4, 12),
        .groups = PICK(r, 0, 2, 6, 14),
        .beams = PICK(r, 0, 3, 8, 16),
        .stories = PICK(r, 0, 1, 4, 12),
    };
    return s;
}

/* One world in four presses the pool in every step: many branches that grow, host memory that takes
 * their blocks, few interruptions. Chance alone makes such a world once in a hundred. */
static void press(struct rng *r, struct world_config *c, struct swarm *s)
{
    c->block_size = PICK(r, 1, 2, 4, 4);
    c->n_blocks = PICK(r, 8, 12, 16, 24);
    c->max_running = PICK(r, 8, 12, 16);
    c->n_context = PICK(r, 48, 96, 128);
    c->n_slots = PICK(r, 2, 8, 100, 100);
    c->swaps = PICK(r, 0, 1, 1, 1);
    c->budget = c->max_running + c->block_size * PICK(r, 1, 4);
    c->chunk = c->block_size * PICK(r, 1, 2, 8);
    s->is_growing = true;
    s->groups = PICK(r, 4, 10, 16);
    s->weights[OP_CLEAR] = 0;
    s->weights[OP_CANCEL] = PICK(r, 0, 1);
    s->weights[OP_STEP] = 80;
}

void draw_prompt(struct rng *r, const struct world_config *c, struct swarm *s, struct op *op)
{
    if (s->last_length > 0 && below(r, s->many) == 0) {
        op->args[ARG_TARGET] = s->last_root;
        op->args[ARG_LENGTH] = s->last_length;
        op->args[ARG_VARIANT] = s->last_variant;
        op->args[ARG_EXTRA] = s->last_extra;
        return;
    }
    int32_t longest = 8 * c->block_size > 40 ? 8 * c->block_size : 40;
    if (below(r, 8) > 0 && longest > c->n_blocks * c->block_size / 2)
        longest = c->n_blocks * c->block_size / 2; /* mostly such that an answer fits too */
    if (s->is_growing && longest > c->n_blocks * c->block_size / 8)
        longest = 1 + c->n_blocks * c->block_size / 8;
    s->last_root = op->args[ARG_TARGET] = below(r, c->n_roots);
    s->last_length = op->args[ARG_LENGTH] = 1 + below(r, longest);
    s->last_variant = op->args[ARG_VARIANT] = below(r, 3) == 0 ? 1 + below(r, 1 << 20) : 0;
    s->last_extra = op->args[ARG_EXTRA] = below(r, 2) ? below(r, 2 * c->block_size + 1) : 0;
    if (below(r, 4) == 0) /* all of it in full blocks */
        s->last_extra = op->args[ARG_EXTRA] =
            (c->block_size - s->last_length % c->block_size) % c->block_size;
}

void draw_options(struct rng *r, const struct swarm *s, struct op *op)
{
    op->args[ARG_USER] = PICK(r, 0, 0, 0, 1, 2);
    op->args[ARG_MAX_TOKENS] = s->is_growing ? PICK(r, 20, 40, 80)
                               : s->is_hot   ? PICK(r, 9, 20, 40)
                                             : PICK(r, 1, 2, 5, 9, 20, 40);
    op->args[ARG_SEED] = PICK(r, 1, 2, 3, 4);
    op->args[ARG_FLAGS] = below(r, 16) < s->flags ? below(r, 64) : PICK(r, 0, FLAG_IGNORE_EOS);
    if (below(r, 8) == 0)
        op->args[ARG_FLAGS] |= FLAG_LOGPROBS;
    if (below(r, 16) == 0)
        op->args[ARG_FLAGS] |= FLAG_PROMPT_LOGPROBS;
    if (s->is_hot || s->is_growing)
        op->args[ARG_FLAGS] |= FLAG_IGNORE_EOS;
    if (below(r, 16) < s->urgent)
        op->args[ARG_PRIORITY] = below(r, 3);
    if (below(r, 16) < s->deadlines)
        op->args[ARG_DEADLINE] = 1 + below(r, 400);
    if (below(r, 16) < s->reacts)
        op->args[ARG_REACT] = below(r, REACT_N);
}

/* A group instead of one branch, with tokens that mostly fit and fill the pool. */
static void draw_group(struct rng *r, const struct world_config *c, const struct swarm *s,
                       struct op *op)
{
    int32_t n = PICK(r, 2, 2, 2, 3, 3, 4, 6, 8, 16, 17);
    bool is_group = below(r, 16) < s->groups, is_beam = is_group && below(r, 16) < s->beams;
    int32_t length = op->args[ARG_LENGTH] + op->args[ARG_EXTRA], size = c->block_size;
    if (n > c->max_running && below(r, 16) > 0)
        n = c->max_running;
    if (is_group)
        op->args[ARG_BRANCHES] = n;
    if (is_beam && below(r, 2))
        op->args[ARG_FLAGS] &= ~FLAG_IGNORE_EOS;
    op->args[ARG_FLAGS] |= is_beam ? FLAG_BEAM | (below(r, 3) == 0 ? FLAG_EARLY : 0) : 0;
    if (is_beam && (op->args[ARG_FLAGS] & FLAG_STOPS) && op->args[ARG_SEED] == 4)
        op->args[ARG_FLAGS] |= FLAG_MOST_STOP;
    int32_t room = (c->n_blocks - length / size) / (is_group ? n : 1) * size - length % size;
    if (op->args[ARG_MAX_TOKENS] > room && below(r, 8) > 0)
        op->args[ARG_MAX_TOKENS] = room > 1 ? room : 1;
}

static enum op_kind draw_op_kind(struct rng *r, const struct swarm *s)
{
    int32_t total = 0;
    for (int k = 0; k < OP_N_KINDS; k++)
        total += s->weights[k];
    int32_t at = below(r, total);
    int k = 0;
    while (at >= s->weights[k])
        at -= s->weights[k++];
    return (enum op_kind)k;
}

struct op draw_step(struct rng *r, const struct swarm *s)
{
    struct op op = {.kind = OP_STEP};
    op.args[ARG_DONE] = below(r, 16) >= s->not_done;
    op.args[ARG_FAIL] = below(r, 4096) < s->fail;
    op.args[ARG_LATE] = below(r, 2);
    return op;
}

static struct op draw_op_of(enum op_kind kind, struct rng *r, const struct world_config *c,
                            struct swarm *s)
{
    struct op op = {.kind = kind};
    switch (op.kind) {
    case OP_GEN:
    case OP_PROBE:
        draw_options(r, s, &op);
        draw_prompt(r, c, s, &op);
        draw_group(r, c, s, &op);
        break;
    case OP_FORK:
    case OP_CONTINUE:
    case OP_RESUME:
        draw_options(r, s, &op);
        op.args[ARG_TARGET] = below(r, 1 << 20);
        op.args[ARG_LENGTH] = PICK(r, 1000, 1000, 1 + below(r, 60));
        op.args[ARG_VARIANT] = 1 + below(r, 1 << 20);
        op.args[ARG_EXTRA] = below(r, 4);
        draw_group(r, c, s, &op);
        break;
    case OP_CANCEL:
        op.args[ARG_TARGET] = below(r, 1 << 20);
        op.args[ARG_FINISH] = PICK(r, 0, 1, 2, 2);
        break;
    case OP_CLOCK:
        op.args[ARG_MS] = PICK(r, 1, 10, 100);
        break;
    case OP_STEP:
        return draw_step(r, s);
    case OP_CLEAR:
    case OP_IDLE:
    case OP_KEY_FLUSH:
        break;
    default:
        draw_key_args(r, c, s, &op);
        break;
    }
    return op;
}

/* ---- stories: groups that are given up and resumed, once or again and again ---------------------- */

/* The newest of what is there, as long as that is 22 at most: all numbers up to it divide the next. */
enum { NEWEST = 232792559 };

static struct op *tell(struct rng *r, struct swarm *swarm, struct script *s, enum op_kind kind)
{
    struct op op = draw_op_of(kind, r, &s->config, swarm);
    script_add(s, &op);
    return &s->ops[s->n_ops - 1];
}

static void tell_steps(struct rng *r, struct swarm *swarm, struct script *s, int32_t most)
{
    for (int32_t i = below(r, most + 1); i > 0; i--)
        (void)tell(r, swarm, s, OP_STEP);
}

/* Somebody else, before it is back: what was cached is gone, a long prompt stands in the way. */
static void tell_between(struct rng *r, struct swarm *swarm, struct script *s)
{
    if (below(r, 2))
        (void)tell(r, swarm, s, OP_CLEAR);
    if (below(r, 2)) {
        struct op *op = tell(r, swarm, s, OP_GEN);
        if (below(r, 3) == 0)
            op->args[ARG_LENGTH] = 6 * s->config.block_size;
        op->args[ARG_MAX_TOKENS] = 1 + below(r, 9);
    }
    tell_steps(r, swarm, s, 1);
}

static void draw_story(struct rng *r, struct swarm *swarm, struct script *s)
{
    struct op *op = tell(r, swarm, s, OP_GEN);
    int32_t size = s->config.block_size, root = op->args[ARG_TARGET];
    op->args[ARG_BRANCHES] = PICK(r, 2, 2, 3, 4);
    op->args[ARG_FLAGS] &= ~FLAG_BEAM;
    op->args[ARG_LENGTH] = 1 + below(r, 4 * size);
    op->args[ARG_VARIANT] = op->args[ARG_EXTRA] = op->args[ARG_REACT] = op->args[ARG_DEADLINE] = 0;
    op->args[ARG_MAX_TOKENS] = PICK(r, 5, 20, 40, 128);
    for (int32_t n = 1 + below(r, 3); n > 0; n--) {
        tell_steps(r, swarm, s, PICK(r, 4, 12, 24));
        op = tell(r, swarm, s, OP_CANCEL);
        op->args[ARG_TARGET] = NEWEST;
        op->args[ARG_FINISH] = 2; /* orphaned */
        tell_between(r, swarm, s);
        op = tell(r, swarm, s, OP_RESUME);
        op->args[ARG_TARGET] = NEWEST;
        op->args[ARG_EXTRA] = below(r, 2);
        op->args[ARG_REACT] = op->args[ARG_DEADLINE] = 0;
    }
    if (below(r, 2))
        return;
    op = tell(r, swarm, s, OP_GEN); /* the first block of the same, or two */
    op->args[ARG_TARGET] = root;
    op->args[ARG_LENGTH] = size * (1 + below(r, 2));
    op->args[ARG_VARIANT] = op->args[ARG_EXTRA] = 0;
}

static void draw_liveness(struct rng *r, struct swarm *s)
{
    s->fail = 400;
    s->deadlines = PICK(r, 4, 12);
    s->reacts = PICK(r, 0, 8);
    s->weights[OP_CANCEL] = 6;
    s->weights[OP_IDLE] = 0;
}

static const struct {
    const char *name;
    struct world_config given; /* 0: drawn */
    bool no_host;
} KINDS[DRAW_N_KINDS] = {
    [DRAW_ENGINE] = {.name = "engine"},
    [DRAW_KEYS] = {.name = "keys"},
    [DRAW_BLOCK_1] = {.name = "block-1", .given = {.block_size = 1}},
    [DRAW_BLOCK_4] = {.name = "block-4", .given = {.block_size = 4}},
    [DRAW_BLOCK_16] = {.name = "block-16", .given = {.block_size = 16}},
    [DRAW_SMALLEST] = {.name = "smallest-pool", .given = {.n_blocks = 3}},
    [DRAW_NO_HOST] = {.name = "no-swap-space", .given = {.swaps = 1}, .no_host = true},
    [DRAW_HASH] = {.name = "one-hash-bit", .given = {.hash_bits = 1}},
    [DRAW_LIVENESS] = {.name = "liveness"},
};

const char *draw_kind_name(enum draw_kind kind)
{
    return KINDS[kind].name;
}

static void give(struct rng *r, struct world_config *c, enum draw_kind kind)
{
    const struct world_config *given = &KINDS[kind].given;
    if (given->n_blocks > 0) {
        c->n_blocks = 1 + below(r, given->n_blocks);
        c->block_size = PICK(r, 4, 8, 16);
    }
    if (given->block_size > 0)
        c->block_size = given->block_size;
    if (given->hash_bits > 0)
        c->hash_bits = given->hash_bits;
    if (given->swaps > 0)
        c->swaps = given->swaps;
    if (KINDS[kind].no_host)
        c->n_slots = 0;
    c->budget = c->max_running + c->block_size * PICK(r, 1, 2, 4);
    c->chunk = c->block_size * PICK(r, 1, 2, 8);
}

void script_draw(struct script *s, enum draw_kind kind, uint64_t seed, int32_t n_ops)
{
    struct rng r = rng_from(seed);
    *s = (struct script){.config = draw_config(&r)};
    struct swarm swarm = draw_swarm(&r);
    if (below(&r, 4) == 0)
        press(&r, &s->config, &swarm);
    if (kind != DRAW_ENGINE)
        give(&r, &s->config, kind);
    if (kind == DRAW_LIVENESS)
        draw_liveness(&r, &swarm);
    if (kind == DRAW_KEYS) {
        s->config.n_keys = PICK(&r, 1, 2, 4, 8);
        draw_key_weights(&r, &swarm);
    }
    while (s->n_ops < n_ops) {
        struct op op = draw_op_of(draw_op_kind(&r, &swarm), &r, &s->config, &swarm);
        script_add(s, &op);
        if (below(&r, 64) < swarm.stories && kind == DRAW_KEYS)
            draw_key_story(&r, &swarm, s);
        else if (below(&r, 64) < swarm.stories)
            draw_story(&r, &swarm, s);
    }
    s->n_ops = n_ops; /* the last story may be cut short */
}
