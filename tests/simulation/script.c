/* script.c - a world and what happens in it, as plain numbers: drawn from a seed, printed, read.
 *
 * Operations are stored by value, so that a failing script can be shrunk by dropping some of them:
 * the rest stays what it was. */
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
    [OP_KEY_ADD] = {"xadd", KEY_ROOT + 1},
    [OP_KEY_GEN] = {"key-gen", OP_MAX_ARGS},
    [OP_KEY_AGAIN] = {"key-again", 2},
    [OP_KEY_LEAVE] = {"leave", 1},
    [OP_KEY_FORK] = {"key-fork", 6},
    [OP_KEY_CANCEL] = {"key-cancel", 1},
    [OP_KEY_DELETE] = {"del", 1},
    [OP_KEY_EXPIRE] = {"expire", 2},
    [OP_KEY_PERSIST] = {"persist", 1},
    [OP_KEY_RENAME] = {"rename", 3},
    [OP_KEY_XDEL] = {"xdel", 2},
    [OP_KEY_XTRIM] = {"xtrim", 2},
    [OP_KEY_FLUSH] = {"flush", 0},
    [OP_KEY_READ] = {"xread", 4},
    [OP_KEY_DESERT] = {"desert", 1},
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
    {"slots", offsetof(struct world_config, n_slots)},
    {"swaps", offsetof(struct world_config, swaps)},
    {"roots", offsetof(struct world_config, n_roots)},
    {"roots-seed", offsetof(struct world_config, roots_seed)},
    {"keys", offsetof(struct world_config, n_keys)},
};
enum { N_FIELDS = sizeof FIELDS / sizeof *FIELDS };

static int32_t *field(struct world_config *c, int i)
{
    return (int32_t *)(void *)((char *)c + FIELDS[i].at);
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

/* ---- text: a line of fields, then a line an operation; zeros at its end are left out; # begins a
 * comment ------------------------------------------------------------------------------------------ */

void script_print_op(const struct op *op, FILE *out)
{
    int32_t n = KINDS[op->kind].n_args;
    while (n > 0 && op->args[n - 1] == 0)
        n--;
    fputs(KINDS[op->kind].name, out);
    for (int32_t i = 0; i < n; i++)
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
    const char *value;
    for (int32_t i = 0; (value = strtok(NULL, " \n")); i++) {
        if (i == KINDS[kind].n_args)
            return err_set(err, "%s has more than %d arguments", name, i);
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
