/* sim_trace.c - recorded loads: tab-separated columns by name, one line a request.
 *
 * t_ms (arrival), in_tok and out_tok are lengths; blocks512, where it is there, names the prompt's
 * blocks of 512 tokens ("0 14-27": block 0, then 14 to 27), equal numbers standing for equal
 * prefixes. Divided by 32 they are blocks of 16, and the sharing is kept exactly. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "utils/sim_load.h"

enum { N_COLUMNS = 4, TRACE_BLOCK = 512 };
static const char *const column_names[N_COLUMNS] = {"t_ms", "in_tok", "out_tok", "blocks512"};

struct reader {
    int column[N_COLUMNS]; /* where each stands in a line; -1: not there */
    int32_t scale, n_context;
    double speed;
    struct sim_load *load;
    int32_t cap, n_blocks, blocks_cap;
    int32_t line;
};

/* Splits in place; how many words. */
static int split(char *line, char **words, int max)
{
    int n = 0;

    line[strcspn(line, "\r\n")] = '\0';
    for (char *at = line; at && n < max; n++)
        words[n] = strsep(&at, "\t");
    return n;
}

static int read_header(struct reader *r, const char *path, char *line, struct err *err)
{
    char *words[8];
    int n = split(line, words, 8);

    for (int c = 0; c < N_COLUMNS; c++) {
        r->column[c] = -1;
        for (int i = 0; i < n; i++)
            if (strcmp(words[i], column_names[c]) == 0)
                r->column[c] = i;
    }
    if (r->column[1] < 0 || r->column[2] < 0)
        return err_set(err, "%s: the first line names no in_tok and out_tok", path);
    return 0;
}

static void push_block(struct reader *r, long block)
{
    struct sim_load *l = r->load;

    if (r->n_blocks == r->blocks_cap) {
        r->blocks_cap = r->blocks_cap ? 2 * r->blocks_cap : 1024;
        l->blocks = xrealloc(l->blocks, (size_t)r->blocks_cap * sizeof *l->blocks);
    }
    l->blocks[r->n_blocks++] = (int32_t)block;
}

/* "0 14-27" appended to the load's blocks, at most `most`; false when it is no such list. */
static bool read_blocks(struct reader *r, const char *text, int32_t most)
{
    while (*text) {
        char *end;
        long first = strtol(text, &end, 10), last = first;
        if (end == text || first < 0)
            return false;
        if (*end == '-') {
            text = end + 1;
            last = strtol(text, &end, 10);
            if (end == text || last < first)
                return false;
        }
        for (; first <= last && most > 0; first++, most--)
            push_block(r, first);
        text = end + (*end == ' ');
        if (*end && *end != ' ')
            return false;
    }
    return most == 0;
}

static bool read_number(const char *text, long *value)
{
    char *end;

    *value = strtol(text, &end, 10);
    return end != text && *end == '\0' && *value >= 0 && *value < 1l << 40;
}

static int read_request(struct reader *r, const char *path, char *line, struct err *err)
{
    struct sim_load *l = r->load;
    char *words[8] = {0};
    int n = split(line, words, 8);
    long values[3] = {0};

    for (int c = 0; c < 3; c++)
        if (r->column[c] >= n ||
            (r->column[c] >= 0 && !read_number(words[r->column[c]], &values[c])))
            return err_set(err, "%s, line %d: %s is no number from 0 to 2^40", path, r->line,
                           column_names[c]);
    long n_prompt = values[1] / r->scale, n_output = values[2] / r->scale;
    n_output = n_output < 1 ? 1 : n_output < r->n_context / 2 ? n_output : r->n_context / 2;
    n_prompt = n_prompt < 1 ? 1 : n_prompt;
    if (n_prompt + n_output > r->n_context)
        n_prompt = r->n_context - n_output;
    if (l->n == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 256;
        l->requests = xrealloc(l->requests, (size_t)r->cap * sizeof *l->requests);
    }
    l->requests[l->n] = (struct sim_request){.arrival_us = (int64_t)(values[0] * 1e3 / r->speed),
                                             .n_prompt = (int32_t)n_prompt,
                                             .n_output = (int32_t)n_output,
                                             .stream = SIM_FIRST_STREAM + (uint64_t)l->n};
    l->n++;
    int at = r->column[3];
    if (at >= 0 && (at >= n || !read_blocks(r, words[at], (int32_t)((n_prompt + 15) / 16))))
        return err_set(err, "%s, line %d: blocks512 does not list the blocks of the prompt", path,
                       r->line);
    return 0;
}

/* Block numbers lie behind each other in the order of the requests. */
static void link_blocks(const struct reader *r)
{
    const int32_t *at = r->load->blocks;

    for (int32_t i = 0; r->column[3] >= 0 && i < r->load->n; i++) {
        r->load->requests[i].blocks = at;
        at += (r->load->requests[i].n_prompt + 15) / 16;
    }
}

int sim_load_read(const char *path, int32_t scale, double speed, int32_t limit, int32_t n_context,
                  struct sim_load *load, struct err *err)
{
    struct reader r = {.scale = scale, .speed = speed, .n_context = n_context, .load = load};
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    int rc = -1;

    *load = (struct sim_load){0};
    if (!file)
        return err_set(err, "%s cannot be opened", path);
    if (getline(&line, &cap, file) < 0) {
        err_set(err, "%s is empty", path);
        goto out;
    }
    r.line = 1;
    if (read_header(&r, path, line, err))
        goto out;
    if (r.column[3] >= 0 && scale != TRACE_BLOCK / 16) {
        err_set(err, "%s: its blocks of %d are ours of 16 at scale %d only, not %d", path,
                TRACE_BLOCK, TRACE_BLOCK / 16, scale);
        goto out;
    }
    while (load->n < limit && getline(&line, &cap, file) >= 0) {
        r.line++;
        if (read_request(&r, path, line, err))
            goto out;
    }
    link_blocks(&r);
    rc = 0;
out:
    free(line);
    fclose(file);
    if (rc)
        sim_load_free(load);
    return rc;
}
