/* gen_options.c - the arguments of GEN: one table of options, parsed into a gen_request.
 *
 * What follows the key is always the prompt, whatever it looks like: a text that happens to read
 * MAXTOKENS is a text. So options come behind a prompt, an empty one to go on without, and the error
 * for an unknown word says so.
 *
 * An option is a row: name, number of values, kind, where the value goes, range. Everything is
 * refused here that can be seen without the key: a million STOPs cost what their bytes cost and are
 * refused at the 65th. Error texts name the option, the range and the value. */
#include "server/gen_options.h"

#include <stddef.h>
#include <string.h>
#include "base/mem.h"
#include "server/reply.h"

enum {
    MAX_STOPS = 64,
    MAX_STOP_BYTES = 1024,
    MAX_BIAS = 1024,
    MAX_ID_BYTES = 128, /* a UUID has 36; it stands in every end entry */
    VOCABULARY = -1,    /* as a maximum: the last id of the model's vocabulary */
};

enum kind {
    KIND_FLAG,
    KIND_INT,
    KIND_INT32,
    KIND_REAL,
    KIND_SEED,
    KIND_TEXT,
    KIND_TOKEN, /* a text whose length is bounded */
    KIND_STOP,
    KIND_BIAS
};

struct row {
    const char *name;
    int n_values;
    enum kind kind;
    size_t at; /* of the field in struct gen_parse */
    double min, max;
    bool above_min; /* min itself is refused */
    bool repeats;
    unsigned given; /* flag of gen_request.given */
};

#define REQUEST(field) offsetof(struct gen_parse, request.field)
#define OPTION(field) offsetof(struct gen_parse, request.options.field)
// clang-format off
static const struct row rows[] = {
    {"AS",        1, KIND_TEXT,  REQUEST(role),         0, 0, false, false, 0},
    {"N",         1, KIND_INT32, OPTION(n_branches),    1, ENGINE_MAX_BRANCHES, false, false, GEN_HAS_N},
    {"BEAM",      1, KIND_INT32, OPTION(n_branches),    1, ENGINE_MAX_BEAM, false, false, GEN_HAS_BEAM},
    {"MAXTOKENS", 1, KIND_INT,   OPTION(max_tokens),    1, INT32_MAX, false, false, GEN_HAS_MAX_TOKENS},
    {"TEMP",      1, KIND_REAL,  OPTION(temperature),   0, 100, false, false, GEN_HAS_TEMPERATURE},
    {"TOPK",      1, KIND_INT32, OPTION(top_k),         0, VOCABULARY, false, false, 0},
    {"TOPP",      1, KIND_REAL,  OPTION(top_p),         0, 1, false, false, 0},
    {"MINP",      1, KIND_REAL,  OPTION(min_p),         0, 1, false, false, 0},
    {"REPEAT",    1, KIND_REAL,  OPTION(repeat),        0, 10, true, false, 0},
    {"PRESENCE",  1, KIND_REAL,  OPTION(presence),      -100, 100, false, false, 0},
    {"FREQUENCY", 1, KIND_REAL,  OPTION(frequency),     -100, 100, false, false, 0},
    {"SEED",      1, KIND_SEED,  OPTION(seed),          0, 0, false, false, GEN_HAS_SEED},
    {"STOP",      1, KIND_STOP,  0,                     0, 0, false, true, 0},
    {"BIAS",      2, KIND_BIAS,  0,                     -1000, 1000, false, true, 0},
    {"LENPENALTY", 1, KIND_REAL, OPTION(length_penalty), -10, 10, false, false, 0},
    {"EARLYSTOP", 0, KIND_FLAG,  OPTION(early_stop),    0, 0, false, false, 0},
    {"LOGPROBS",  1, KIND_INT32, OPTION(n_logprobs),    0, ENGINE_MAX_LOGPROBS, false, false, GEN_HAS_LOGPROBS},
    {"PROMPTLOGPROBS", 1, KIND_INT32, OPTION(n_prompt_logprobs), 0, ENGINE_MAX_LOGPROBS, false, false, GEN_HAS_PROMPT_LOGPROBS},
    {"PRIORITY",  1, KIND_INT32, OPTION(priority),      -100, 100, false, false, 0},
    {"IGNOREEOS", 0, KIND_FLAG,  OPTION(ignore_eos),    0, 0, false, false, 0},
    {"IDS",       0, KIND_FLAG,  REQUEST(ids),          0, 0, false, false, 0},
    {"DEADLINE",  1, KIND_INT,   REQUEST(deadline_ms),  1, (double)(INT64_MAX / 2000), false, false, 0},
    {"ID",        1, KIND_TOKEN, REQUEST(id),           1, MAX_ID_BYTES, false, false, 0},
    {"WITHINFO",  0, KIND_FLAG,  REQUEST(with_info),    0, 0, false, false, 0},
    {"BLOCK",     1, KIND_INT,   REQUEST(block_ms),     0, (double)(INT64_MAX / 2000), false, false, 0},
    {"ASYNC",     0, KIND_FLAG,  REQUEST(async),        0, 0, false, false, 0},
};
// clang-format on
enum { N_ROWS = sizeof rows / sizeof *rows };
_Static_assert(N_ROWS <= 32, "a bit each in `seen`");

const char *gen_option_name(int i)
{
    return i < N_ROWS ? rows[i].name : NULL;
}

static const struct row *find_row(struct bytes name)
{
    for (int i = 0; i < N_ROWS; i++)
        if (bytes_equal_nocase(name, rows[i].name))
            return &rows[i];
    return NULL;
}

/* Control bytes are replaced when the line is written; here it is only cut. */
#define ECHO(b) (int)((b).len < REPLY_ECHO_MAX ? (b).len : REPLY_ECHO_MAX), (b).data

static int refuse(const struct row *row, double max, const char *what, struct bytes value,
                  struct err *err)
{
    return err_set(err, "ERR GEN %s must be %s %s %.17g%s %.17g, not '%.*s'", row->name, what,
                   row->above_min ? "above" : "from", row->min, row->above_min ? " up to" : " to",
                   max, ECHO(value));
}

static int set_int(void *at, const struct row *row, int32_t n_vocab, struct bytes text,
                   struct err *err)
{
    int64_t value;
    double max = row->max == VOCABULARY ? n_vocab : row->max;
    if (!parse_i64(text, &value) || (double)value < row->min || (double)value > max)
        return refuse(row, max, "an integer", text, err);
    if (row->kind == KIND_INT32)
        *(int32_t *)at = (int32_t)value;
    else
        *(int64_t *)at = value;
    return 0;
}

static bool parse_in_range(const struct row *row, struct bytes text, double *value)
{
    return parse_real(text, value) && *value <= row->max &&
           (row->above_min ? *value > row->min : *value >= row->min);
}

static int set_real(void *at, const struct row *row, struct bytes text, struct err *err)
{
    double value;
    if (!parse_in_range(row, text, &value))
        return refuse(row, row->max, "a number", text, err);
    *(float *)at = (float)value;
    if (row->above_min && *(float *)at <= (float)row->min) /* 1e-60 is above 0 but no float */
        return refuse(row, row->max, "a number", text, err);
    return 0;
}

static int add_stop(struct gen_parse *p, struct bytes text, struct err *err)
{
    if (text.len == 0)
        return err_set(err, "ERR GEN STOP must not be empty");
    if (text.len > MAX_STOP_BYTES)
        return err_set(err, "ERR GEN STOP has %zu bytes, at most %d are allowed", text.len,
                       MAX_STOP_BYTES);
    if (p->n_stops == MAX_STOPS)
        return err_set(err, "ERR GEN has more than %d STOP", MAX_STOPS);
    if (!p->stops)
        p->stops = xcalloc(MAX_STOPS, sizeof *p->stops);
    p->stops[p->n_stops++] = text;
    return 0;
}

static int set_token(struct bytes *at, const struct row *row, struct bytes text, struct err *err)
{
    if ((double)text.len < row->min || (double)text.len > row->max)
        return err_set(err, "ERR GEN %s must have %.0f to %.0f bytes, not %zu", row->name, row->min,
                       row->max, text.len);
    *at = text;
    return 0;
}

/* The last BIAS of an id counts. */
static int add_bias(struct gen_parse *p, const struct row *row, const struct bytes *values,
                    int32_t n_vocab, struct err *err)
{
    int64_t id;
    double value;
    if (!parse_i64(values[0], &id) || id < 0 || id >= n_vocab)
        return err_set(err,
                       "ERR GEN BIAS id must be a token of the vocabulary, from 0 to %d, not "
                       "'%.*s'",
                       n_vocab - 1, ECHO(values[0]));
    if (!parse_in_range(row, values[1], &value))
        return refuse(row, row->max, "a number", values[1], err);
    if (p->n_bias_given++ == MAX_BIAS)
        return err_set(err, "ERR GEN has more than %d BIAS", MAX_BIAS);
    if (!p->bias)
        p->bias = xcalloc(MAX_BIAS, sizeof *p->bias);
    int32_t i = 0;
    while (i < p->n_bias && p->bias[i].id != id)
        i++;
    p->bias[i] = (struct plan_bias){.id = (int32_t)id, .value = (float)value};
    p->n_bias += i == p->n_bias;
    return 0;
}

static int set_row(struct gen_parse *p, const struct row *row, const struct bytes *values,
                   int32_t n_vocab, struct err *err)
{
    void *at = (char *)p + row->at;
    switch (row->kind) {
    case KIND_FLAG:
        *(bool *)at = true;
        return 0;
    case KIND_INT:
    case KIND_INT32:
        return set_int(at, row, n_vocab, values[0], err);
    case KIND_REAL:
        return set_real(at, row, values[0], err);
    case KIND_SEED:
        if (parse_u64(values[0], at))
            return 0;
        return err_set(err,
                       "ERR GEN SEED must be an integer from 0 to 18446744073709551615, not "
                       "'%.*s'",
                       ECHO(values[0]));
    case KIND_TEXT:
        *(struct bytes *)at = values[0];
        return 0;
    case KIND_TOKEN:
        return set_token(at, row, values[0], err);
    case KIND_STOP:
        return add_stop(p, values[0], err);
    case KIND_BIAS:
        return add_bias(p, row, values, n_vocab, err);
    }
    return 0;
}

/* One option at q->args[*i]; moves on behind its values. seen: bits of the rows so far. */
static int parse_option(struct gen_parse *p, const struct request *q, int *i, uint32_t *seen,
                        int32_t n_vocab, struct err *err)
{
    const struct row *row = find_row(q->args[*i]);
    if (!row)
        return err_set(err,
                       "ERR unknown GEN option '%.*s'. What follows the key is the prompt, options "
                       "come behind it: GEN key \"\" MAXTOKENS 5 goes on without one",
                       ECHO(q->args[*i]));
    uint32_t bit = 1u << (row - rows);
    if ((*seen & bit) && !row->repeats)
        return err_set(err, "ERR GEN %s is given twice", row->name);
    if (*i + row->n_values >= q->n_args)
        return err_set(err, "ERR GEN %s needs %d value%s", row->name, row->n_values,
                       row->n_values == 1 ? "" : "s");
    *seen |= bit;
    p->request.given |= row->given;
    if (row->at == REQUEST(block_ms))
        p->request.block_arg = *i - 1; /* as an index into what stands from the key on */
    if (set_row(p, row, &q->args[*i + 1], n_vocab, err) < 0)
        return -1;
    *i += 1 + row->n_values;
    return 0;
}

/* Beams draw nothing, and only they have a score. */
static const struct {
    const char *name, *other;
    bool needs; /* other must stand beside; else it must not */
} pairs[] = {
    {"BLOCK", "ASYNC", false}, {"BEAM", "N", false},          {"BEAM", "TEMP", false},
    {"BEAM", "TOPK", false},   {"BEAM", "TOPP", false},       {"BEAM", "MINP", false},
    {"BEAM", "SEED", false},   {"LENPENALTY", "BEAM", true}, {"EARLYSTOP", "BEAM", true},
};

static bool has_row(uint32_t seen, const char *name)
{
    return seen & (1u << (find_row(bytes_from(name)) - rows));
}

static int check_pairs(uint32_t seen, struct err *err)
{
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (!has_row(seen, pairs[i].name) || has_row(seen, pairs[i].other) == pairs[i].needs)
            continue;
        return pairs[i].needs ? err_set(err, "ERR GEN %s is for %s only", pairs[i].name,
                                        pairs[i].other)
                              : err_set(err, "ERR GEN %s and %s exclude each other", pairs[i].name,
                                        pairs[i].other);
    }
    return 0;
}

int gen_parse(struct gen_parse *p, const struct request *q, int32_t n_vocab, struct err *err)
{
    struct gen_request *r = &p->request;
    r->options = gen_options_default();
    r->args = q->args + 1;
    r->n_args = q->n_args - 1;
    r->has_prompt = q->n_args > 2;
    if (r->has_prompt)
        r->prompt = q->args[2];
    uint32_t seen = 0;
    for (int i = 3; i < q->n_args;)
        if (parse_option(p, q, &i, &seen, n_vocab, err) < 0)
            return -1;
    if (check_pairs(seen, err) < 0)
        return -1;
    r->options.beam = r->given & GEN_HAS_BEAM;
    r->options.stops = p->stops;
    r->options.n_stops = p->n_stops;
    r->options.bias = p->bias;
    r->options.n_bias = p->n_bias;
    return 0;
}

void gen_parse_free(struct gen_parse *p)
{
    xfree(p->stops);
    xfree(p->bias);
    p->stops = NULL;
    p->bias = NULL;
}
