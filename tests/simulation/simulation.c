/* simulation.c - a million operations from one seed against the real engine and cache.
 *
 *   simulation [--kind KIND] [--seed S] [--ops N] [--each N]   worlds from seed S on, N operations
 *   simulation [--kind KIND] --seed S --trace                  that world, operation by operation
 *   simulation --script FILE [--trace | --shrink]              a script; printed without what is not
 *                                                              needed to fail
 *
 * Without arguments it is a test: every row of RUNS, then every script of scripts/. A failing world
 * is shrunk and printed as a script, to be kept there once its fault is mended. Runs of the kind
 * `liveness` end their worlds early, so that it is draining that they show: once nothing comes and
 * nothing fails any more, all must end within the bound of turns that stands beside (request.c says
 * how it is computed). */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "run.h"

enum { OPS = 1000000, OPS_EACH = 500, SHRINK_TRIES = 3000 };

/* A check's volume. */
static const struct {
    enum draw_kind kind;
    int64_t n_ops;
    int32_t ops_each;
} RUNS[] = {
    {DRAW_ENGINE, OPS, OPS_EACH},     {DRAW_KEYS, 300000, OPS_EACH},
    {DRAW_BLOCK_1, 60000, OPS_EACH},  {DRAW_BLOCK_4, 60000, OPS_EACH},
    {DRAW_BLOCK_16, 60000, OPS_EACH}, {DRAW_SMALLEST, 60000, OPS_EACH},
    {DRAW_NO_HOST, 60000, OPS_EACH},  {DRAW_HASH, 60000, OPS_EACH},
    {DRAW_LIVENESS, 60000, 60},
};
enum { N_RUNS = sizeof RUNS / sizeof *RUNS };

struct run_request {
    uint64_t seed;
    int64_t n_ops;
    int32_t ops_each;
    const char *script;
    enum draw_kind kind;
    bool trace, shrinks;
};

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void print_failing(const struct run_request *q, const struct run_result *r)
{
    struct script s;
    struct run_result shrunk;
    char path[64];
    printf("# seed %llu, after %d operations: %s\n", (unsigned long long)r->seed, r->at, r->fault);
    script_draw(&s, q->kind, r->seed, q->ops_each);
    run_shrink(&s, r->at, SHRINK_TRIES);
    run_script(&s, false, true, &shrunk);
    printf("# shrunk to %d operations: %s\n", s.n_ops, shrunk.fault);
    snprintf(path, sizeof path, "simulation-%s-%llu.sim", draw_kind_name(q->kind),
             (unsigned long long)r->seed);
    FILE *out = fopen(path, "w");
    if (out) {
        script_print(&s, out);
        fclose(out);
        printf("# kept as %s\n", path);
    }
    script_print(&s, stderr);
    script_free(&s);
}

static void print_figures(const struct run_result *r)
{
    const struct {
        const char *what;
        uint64_t n;
    } figures[] = {
        {"generations", r->n_accepted},
        {"branches", r->n_branches},
        {"steps", r->n_steps},
        {"rows", r->n_rows},
        {"block hits", r->n_hits},
        {"copies", r->n_copies},
        {"evictions", r->n_evictions},
        {"merged", r->n_merged},
        {"rejected matches", r->n_rejected},
        {"preemptions", r->n_preemptions},
        {"blocks out", r->n_swapped_out},
        {"in", r->n_swapped_in},
        {"host full", r->n_swap_full},
    };
    printf("#");
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        printf("%s %llu %s", i ? "," : "", (unsigned long long)figures[i].n, figures[i].what);
    printf(
        "\n# %lld drains, %lld turns of %lld that their bounds allow, at worst %d.%d %% of one\n",
        (long long)r->drains.n, (long long)r->drains.n_turns, (long long)r->drains.n_allowed,
        r->drains.worst / 10, r->drains.worst % 10);
}

static bool run_many(const struct run_request *q, int number)
{
    struct run_result r;
    double start = seconds();
    run_worlds(q->kind, q->seed, q->n_ops, q->ops_each, false, &r);
    double took = seconds() - start;
    printf("%s %d - %s: %lld operations in %lld worlds from seed %llu: %.0f operations/s\n",
           r.is_wrong ? "not ok" : "ok", number, draw_kind_name(q->kind), (long long)r.n_ops,
           (long long)r.n_worlds, (unsigned long long)q->seed, (double)r.n_ops / took);
    print_figures(&r);
    if (r.is_wrong)
        print_failing(q, &r);
    return !r.is_wrong;
}

static bool replay(const char *path, bool trace, int number)
{
    struct script s;
    struct run_result r = {.is_wrong = true};
    struct err err = {""};
    if (script_read(&s, path, &err) < 0)
        snprintf(r.fault, sizeof r.fault, "%s", err.text);
    else
        run_script(&s, trace, false, &r);
    const char *name = strrchr(path, '/');
    printf("%s %d - script %s\n", r.is_wrong ? "not ok" : "ok", number, name ? name + 1 : path);
    if (r.is_wrong)
        printf("# after %d operations: %s\n", r.at, r.fault);
    script_free(&s);
    return !r.is_wrong;
}

static bool shrink_one(const struct run_request *q)
{
    struct script s;
    struct err err = {""};
    if (script_read(&s, q->script, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return false;
    }
    run_shrink(&s, s.n_ops, SHRINK_TRIES);
    script_print(&s, stdout);
    script_free(&s);
    return true;
}

static bool trace_one(const struct run_request *q)
{
    struct script s;
    struct run_result r;
    script_draw(&s, q->kind, q->seed, q->ops_each);
    run_script(&s, true, false, &r);
    printf("%s\n", r.is_wrong ? r.fault : "nothing was wrong");
    script_free(&s);
    return !r.is_wrong;
}

static int is_script(const struct dirent *entry)
{
    size_t len = strlen(entry->d_name);
    return len > 4 && strcmp(entry->d_name + len - 4, ".sim") == 0;
}

static int run_tests(const struct run_request *q)
{
    const char *top = getenv("KVASIR_SRC");
    struct dirent **entries = NULL;
    char folder[1024], path[2048];
    bool ok = true;
    snprintf(folder, sizeof folder, "%s/tests/simulation/scripts", top ? top : ".");
    int n = scandir(folder, &entries, is_script, alphasort), number = 1;
    printf("1..%d\n", N_RUNS + (n > 0 ? n : 0));
    for (int i = 0; i < N_RUNS; i++) {
        struct run_request run = *q;
        run.kind = RUNS[i].kind;
        run.n_ops = RUNS[i].n_ops;
        run.ops_each = RUNS[i].ops_each;
        ok &= run_many(&run, number++);
    }
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        ok &= replay(path, false, number++);
        free(entries[i]);
    }
    free((void *)entries);
    return ok ? 0 : 1;
}

static enum draw_kind kind_named(const char *name)
{
    int kind = 0;
    while (kind < DRAW_N_KINDS && strcmp(draw_kind_name((enum draw_kind)kind), name) != 0)
        kind++;
    if (kind == DRAW_N_KINDS) {
        fprintf(stderr, "there is no kind %s\n", name);
        exit(2);
    }
    return (enum draw_kind)kind;
}

int main(int argc, char **argv)
{
    struct run_request q = {.seed = 1, .n_ops = OPS, .ops_each = OPS_EACH};
    bool is_run = false;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--trace") == 0)
            q.trace = true;
        else if (strcmp(argv[i], "--shrink") == 0)
            q.shrinks = true;
        else if (strcmp(argv[i], "--kind") == 0 && ++i)
            q.kind = kind_named(value), is_run = true;
        else if (strcmp(argv[i], "--seed") == 0 && ++i)
            q.seed = strtoull(value, NULL, 10), is_run = true;
        else if (strcmp(argv[i], "--ops") == 0 && ++i)
            q.n_ops = strtoll(value, NULL, 10), is_run = true;
        else if (strcmp(argv[i], "--each") == 0 && ++i)
            q.ops_each = (int32_t)strtol(value, NULL, 10);
        else if (strcmp(argv[i], "--script") == 0 && ++i)
            q.script = value;
        else
            return fprintf(stderr, "%s: unknown argument %s\n", argv[0], argv[i]), 2;
    }
    if (q.script && q.shrinks)
        return shrink_one(&q) ? 0 : 1;
    if (q.script)
        return replay(q.script, q.trace, 1) ? 0 : 1;
    if (q.trace)
        return trace_one(&q) ? 0 : 1;
    if (is_run)
        return run_many(&q, 1) ? 0 : 1;
    return run_tests(&q);
}
