/* script.c - a world and what happens in it, as plain numbers: drawn from a seed, printed, read.
 *
 * Operations are stored by value, so that a failing script can be shrunk by dropping some of them:
 * the rest stays what it was. How likely each kind is, is drawn for each world too ("swarm"): worlds
 * without cancels, worlds of forks only, worlds that hardly step. */
#include "script.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

static const struct {
    const char *name;
    int32_t n_args;
} KINDS[OP_N_KINDS] = {
    [OP_GEN] = {"gen", OP_MAX_ARGS},
    [OP_FORK] = {"fork", OP_MAX_ARGS},
    [OP_CONTINUE] = {"continue", OP_MAX_ARGS},
    [OP_RESUME] = {"resume", OP_MAX_ARGS},
    [OP_CANCEL] = {"cancel", 2},
    [OP_CLEAR] = {"clear", 0},
    [OP_PROBE] = {"probe", ARG_USER + 1},
    [OP_CLOCK] = {"clock", 1},
    [OP_STEP] = {"step", 3},
    [OP_IDLE] = {"idle", 0},
};

static const struct {
    const char *name;
    size_t at;
} FIELDS[] = {
    {"block", offsetof(struct world_config, block_size)},
    {"pool", offsetof(struct world_config, n_blocks)},
    {"running", offsetof(struct world_config, max_running)},
    {"queue", offsetof(struct world_config, max_queue)},
    {"budget", offsetof(struct world_config, budget)},
    {"chunk", offsetof(struct world_config, chunk)},
    {"context", offsetof(struct world_config, n_context)},
    {"letters", offsetof(struct world_config, n_letters)},
    {"hash", offsetof(struct world_config, hash_bits)},
    {"roots", offsetof(struct world_config, n_roots)},
    {"roots-seed", offsetof(struct world_config, roots_seed)},
};
enum { N_FIELDS = sizeof FIELDS / sizeof *FIELDS };

static int32_t *field(struct world_config *c, int i)
{
    return (int32_t *)(void *)((char *)c + FIELDS[i].at);
}

/* ---- drawing ------------------------------------------------------------------------------------ */

static int32_t below(struct rng *r, int32_t n)
{
    return (int32_t)rng_below(r, (uint64_t)n);
}
static int32_t pick(struct rng *r, const int32_t *from, int32_t n)
{
    return from[below(r, n)];
}
#define PICK(r, ...)                                                                               \
    pick(r, (const int32_t[]){__VA_ARGS__},                                                        \
         sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

/* What is likely in this world. */
struct swarm {
    int32_t weights[OP_N_KINDS];
    int32_t many;     /* one in so many submissions repeats the last prompt */
    bool is_hot;      /* long answers, prompts that fit: the pool is pressed */
    int32_t not_done; /* of 16 turns find the step still running */
    int32_t fail;     /* of 4096 steps fail */
    int32_t urgent, deadlines, reacts, flags; /* of 16 submissions have some */
    int32_t last_root, last_length, last_variant, last_extra;
};

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
                [OP_RESUME] = PICK(r, 0, 1, 3),
                [OP_CANCEL] = PICK(r, 0, 1, 2, 6),
                [OP_CLEAR] = PICK(r, 0, 0, 0, 1),
                [OP_PROBE] = PICK(r, 0, 1),
                [OP_CLOCK] = PICK(r, 0, 1, 2),
                [OP_STEP] = PICK(r, 20, 40, 80),
                [OP_IDLE] = PICK(r, 0, 0, 1),
            },
        .many = PICK(r, 2, 4, 100),
        .is_hot = below(r, 2),
        .not_done = PICK(r, 0, 2, 8),
        .fail = PICK(r, 0, 0, 8, 200),
        .urgent = PICK(r, 0, 0, 4, 12),
        .deadlines = PICK(r, 0, 0, 4, 12),
        .reacts = PICK(r, 0, 0, 3, 8),
        .flags = PICK(r, 0, 4, 12),
    };
    return s;
}

static void draw_prompt(struct rng *r, const struct world_config *c, struct swarm *s, struct op *op)
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
    s->last_root = op->args[ARG_TARGET] = below(r, c->n_roots);
    s->last_length = op->args[ARG_LENGTH] = 1 + below(r, longest);
    s->last_variant = op->args[ARG_VARIANT] = below(r, 3) == 0 ? 1 + below(r, 1 << 20) : 0;
    s->last_extra = op->args[ARG_EXTRA] = below(r, 2) ? below(r, 2 * c->block_size + 1) : 0;
}

static void draw_options(struct rng *r, const struct swarm *s, struct op *op)
{
    op->args[ARG_USER] = PICK(r, 0, 0, 0, 1, 2);
    op->args[ARG_MAX_TOKENS] = s->is_hot ? PICK(r, 9, 20, 40) : PICK(r, 1, 2, 5, 9, 20, 40);
    op->args[ARG_SEED] = PICK(r, 1, 2, 3, 4);
    op->args[ARG_FLAGS] = below(r, 16) < s->flags ? below(r, 64) : PICK(r, 0, FLAG_IGNORE_EOS);
    if (s->is_hot)
        op->args[ARG_FLAGS] |= FLAG_IGNORE_EOS;
    if (below(r, 16) < s->urgent)
        op->args[ARG_PRIORITY] = below(r, 3);
    if (below(r, 16) < s->deadlines)
        op->args[ARG_DEADLINE] = 1 + below(r, 400);
    if (below(r, 16) < s->reacts)
        op->args[ARG_REACT] = below(r, REACT_N);
}

static enum op_kind draw_kind(struct rng *r, const struct swarm *s)
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

static struct op draw_op(struct rng *r, const struct world_config *c, struct swarm *s)
{
    struct op op = {.kind = draw_kind(r, s)};
    switch (op.kind) {
    case OP_GEN:
    case OP_PROBE:
        draw_options(r, s, &op);
        draw_prompt(r, c, s, &op);
        break;
    case OP_FORK:
    case OP_CONTINUE:
    case OP_RESUME:
        draw_options(r, s, &op);
        op.args[ARG_TARGET] = below(r, 1 << 20);
        op.args[ARG_LENGTH] = PICK(r, 1000, 1000, 1 + below(r, 60));
        op.args[ARG_VARIANT] = 1 + below(r, 1 << 20);
        op.args[ARG_EXTRA] = below(r, 4);
        break;
    case OP_CANCEL:
        op.args[ARG_TARGET] = below(r, 1 << 20);
        op.args[ARG_FINISH] = below(r, 3);
        break;
    case OP_CLOCK:
        op.args[ARG_MS] = PICK(r, 1, 10, 100);
        break;
    case OP_STEP:
        op.args[ARG_DONE] = below(r, 16) >= s->not_done;
        op.args[ARG_FAIL] = below(r, 4096) < s->fail;
        op.args[ARG_LATE] = below(r, 2);
        break;
    case OP_CLEAR:
    case OP_IDLE:
    case OP_N_KINDS:
        break;
    }
    return op;
}

void script_draw(struct script *s, uint64_t seed, int32_t n_ops)
{
    struct rng r = rng_from(seed);
    *s = (struct script){.config = draw_config(&r)};
    struct swarm swarm = draw_swarm(&r);
    for (int32_t i = 0; i < n_ops; i++) {
        struct op op = draw_op(&r, &s->config, &swarm);
        script_add(s, &op);
    }
}

/* ---- keeping ------------------------------------------------------------------------------------ */

void script_add(struct script *s, const struct op *op)
{
    if (s->n_ops == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 256;
        s->ops = xrealloc(s->ops, (size_t)s->cap * sizeof *s->ops);
    }
    s->ops[s->n_ops++] = *op;
}

void script_copy(struct script *to, const struct script *from)
{
    *to = (struct script){.config = from->config};
    for (int32_t i = 0; i < from->n_ops; i++)
        script_add(to, &from->ops[i]);
}

void script_free(struct script *s)
{
    xfree(s->ops);
    *s = (struct script){0};
}

/* ---- text: a line of fields, then a line an operation; # begins a comment ------------------------ */

void script_print_op(const struct op *op, FILE *out)
{
    fputs(KINDS[op->kind].name, out);
    for (int32_t i = 0; i < KINDS[op->kind].n_args; i++)
        fprintf(out, " %" PRId32, op->args[i]);
}

void script_print(const struct script *s, FILE *out)
{
    struct world_config c = s->config;
    fputs("world", out);
    for (int i = 0; i < N_FIELDS; i++)
        fprintf(out, " %s %" PRId32, FIELDS[i].name, *field(&c, i));
    fputc('\n', out);
    for (int32_t i = 0; i < s->n_ops; i++) {
        script_print_op(&s->ops[i], out);
        fputc('\n', out);
    }
}

static int read_world(struct world_config *c, struct err *err)
{
    const char *name;
    while ((name = strtok(NULL, " \n"))) {
        const char *value = strtok(NULL, " \n");
        int i = 0;
        while (i < N_FIELDS && strcmp(FIELDS[i].name, name) != 0)
            i++;
        if (i == N_FIELDS || !value)
            return err_set(err, "%s is no field of a world, or lacks its value", name);
        *field(c, i) = (int32_t)strtol(value, NULL, 10);
    }
    return 0;
}

static int read_op(struct script *s, const char *name, struct err *err)
{
    struct op op = {0};
    int kind = 0;
    while (kind < OP_N_KINDS && strcmp(KINDS[kind].name, name) != 0)
        kind++;
    if (kind == OP_N_KINDS)
        return err_set(err, "%s is no operation", name);
    op.kind = (enum op_kind)kind;
    for (int32_t i = 0; i < KINDS[kind].n_args; i++) {
        const char *value = strtok(NULL, " \n");
        if (!value)
            return err_set(err, "%s has %d arguments, %d are needed", name, i, KINDS[kind].n_args);
        op.args[i] = (int32_t)strtol(value, NULL, 10);
    }
    script_add(s, &op);
    return 0;
}

int script_read(struct script *s, const char *path, struct err *err)
{
    char line[512];
    int rc = 0;
    FILE *in = fopen(path, "r");
    *s = (struct script){0};
    if (!in)
        return err_set(err, "%s cannot be opened", path);
    while (rc == 0 && fgets(line, sizeof line, in)) {
        const char *word = strtok(line, " \n");
        if (!word || *word == '#')
            continue;
        rc = strcmp(word, "world") == 0 ? read_world(&s->config, err) : read_op(s, word, err);
    }
    fclose(in);
    if (rc == 0 && s->config.block_size <= 0)
        rc = err_set(err, "%s has no world", path);
    return rc;
}
