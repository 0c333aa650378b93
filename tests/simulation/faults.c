/* faults.c - every planted fault must be caught: what survives is a blind spot of the simulation.
 *
 *   faults                 all of them, and every kept script under the fault that it is named after
 *   faults NAME ...        these
 *   faults --keep FOLDER [NAME ...]   shrinks what catches them to scripts in FOLDER, where none is
 *
 * The libraries under this program are built with KV_PLANT. Each fault gets an eighth of a check's
 * operations, worlds from seed 1 on, and 95 of 100 must be caught so. The others are named in the
 * table that ends the output, and must show in the script that is kept for them, as every kept script
 * must show its fault: one in which it does not any more fails here until it is made again.
 * Without any fault planted the same worlds must be clean, or all of this would prove nothing. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/plant.h"
#include "run.h"

enum plant plant_chosen = PLANT_NONE;

enum {
    OPS_EACH = 500,
    WITHIN = 200000,
    KEEP_WITHIN = 100 * WITHIN, /* looked through for a script to keep */
    CLEAN_OPS = 50000,
    SHRINK_TRIES = 6000,
    LEAST_SHARE = 95 /* percent */
};

/* A row of the table. */
struct fault {
    const char *name, *what;
    int64_t n_ops;    /* until it was caught; -1: it was not */
    int32_t n_script; /* operations of its kept script; 0: none is kept */
    bool is_stale;    /* and that does not show it any more */
};
static struct fault faults[PLANT_COUNT] = {
#define X(name, what) [PLANT_##name] = {#name, what, 0, 0, false},
    PLANTS(X)
#undef X
};

static enum draw_kind kind_of(enum plant plant)
{
    return plant >= PLANT_FIRST_OF_KEYS ? DRAW_KEYS : DRAW_ENGINE;
}

/* path <- folder/hash-alone.sim for HASH_ALONE. */
static void script_path(const char *folder, enum plant plant, char path[1200])
{
    int n = snprintf(path, 1024, "%s/", folder);
    const char *name = faults[plant].name;
    for (; *name; name++)
        path[n++] = *name == '_' ? '-' : (char)tolower((unsigned char)*name);
    memcpy(path + n, ".sim", sizeof ".sim");
}

static void kept_folder(char folder[1024])
{
    const char *top = getenv("KVASIR_SRC");
    snprintf(folder, 1024, "%s/tests/simulation/scripts", top ? top : ".");
}

/* The kept script must be wrong with its fault planted (simulation replays it without). */
static void try_script(enum plant plant)
{
    char folder[1024], path[1200];
    struct fault *f = &faults[plant];
    struct run_result r;
    struct script s;
    struct err err;
    kept_folder(folder);
    script_path(folder, plant, path);
    if (access(path, R_OK) != 0)
        return;
    if (script_read(&s, path, &err) < 0) {
        printf("# %s\n", err.text);
        f->is_stale = true;
        return;
    }
    f->n_script = s.n_ops;
    run_script(&s, false, true, &r);
    f->is_stale = !r.is_wrong;
    script_free(&s);
}

static bool catch_one(enum plant plant, int number)
{
    struct run_result r;
    struct fault *f = &faults[plant];
    plant_chosen = plant;
    try_script(plant);
    run_worlds(kind_of(plant), 1, WITHIN, OPS_EACH, true, &r);
    f->n_ops = r.is_wrong ? r.n_ops : -1;
    bool ok = !f->is_stale && (r.is_wrong || f->n_script > 0);
    printf("%s %d - %s: ", ok ? "ok" : "not ok", number, f->name);
    if (r.is_wrong)
        printf("caught after %" PRId64 " operations (%s)\n", r.n_ops, r.fault);
    else
        printf("%s, and %" PRId64 " operations did not notice%s\n", f->what, r.n_ops,
               ok ? "; its script does" : "");
    if (f->is_stale)
        printf("# its script does not show it any more\n");
    fflush(stdout);
    return ok;
}

/* Writes the shortest script found in which the fault shows. */
static void keep_one(enum plant plant, const char *folder)
{
    char path[1200];
    struct run_result r;
    struct script s;
    script_path(folder, plant, path);
    plant_chosen = plant;
    if (access(path, F_OK) == 0)
        return;
    run_worlds(kind_of(plant), 1, KEEP_WITHIN, OPS_EACH, true, &r);
    if (!r.is_wrong)
        return;
    script_draw(&s, kind_of(plant), r.seed, OPS_EACH);
    run_shrink(&s, r.at, SHRINK_TRIES);
    FILE *out = fopen(path, "w");
    if (out) {
        fprintf(out, "# Shortest script found in which it shows when %s.\n", faults[plant].what);
        script_print(&s, out);
        fclose(out);
        printf("# %s: %d operations\n", path, s.n_ops);
    }
    script_free(&s);
}

static bool is_clean(enum draw_kind kind, int number)
{
    struct run_result r;
    plant_chosen = PLANT_NONE;
    run_worlds(kind, 1, CLEAN_OPS, OPS_EACH, false, &r);
    printf("%s %d - no fault planted: %" PRId64 " operations on %s are clean\n",
           r.is_wrong ? "not ok" : "ok", number, r.n_ops, draw_kind_name(kind));
    if (r.is_wrong)
        printf("# seed %" PRIu64 ": %s\n", r.seed, r.fault);
    return !r.is_wrong;
}

static int by_ops(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return a < b ? -1 : a > b;
}

/* Planted, caught, operations until then; survivors by name. True: enough were caught. */
static bool print_table(const char *what, int first, int end)
{
    int64_t ops[PLANT_COUNT];
    int n = 0, n_scripts = 0;
    for (int p = first; p < end; p++) {
        n_scripts += faults[p].n_script > 0;
        if (faults[p].n_ops >= 0)
            ops[n++] = faults[p].n_ops;
    }
    qsort(ops, (size_t)n, sizeof *ops, by_ops);
    printf("# %-7s %8d %7d %6.1f %% %10" PRId64 " %10" PRId64 " %10" PRId64 " %8d   ", what,
           end - first, n, 100.0 * n / (end - first), n ? ops[n / 2] : 0, n ? ops[n * 9 / 10] : 0,
           n ? ops[n - 1] : 0, n_scripts);
    for (int p = first; p < end; p++)
        if (faults[p].n_ops < 0)
            printf(" %s", faults[p].name);
    printf("%s\n", n == end - first ? " none" : "");
    return 100 * n >= LEAST_SHARE * (end - first);
}

static bool run_all(void)
{
    bool ok = true;
    printf("1..%d\n", PLANT_COUNT + 2);
    for (int p = 1; p < PLANT_COUNT; p++)
        ok &= catch_one((enum plant)p, p);
    ok &= is_clean(DRAW_ENGINE, PLANT_COUNT);
    ok &= is_clean(DRAW_KEYS, PLANT_COUNT + 1);
    printf("# of       planted  caught    share     median    9 of 10       last  scripts    "
           "survivors\n");
    bool enough = print_table("engine", 1, PLANT_FIRST_OF_KEYS);
    enough &= print_table("keys", PLANT_FIRST_OF_KEYS, PLANT_COUNT);
    printf("%s %d - %d of 100 planted faults are caught, at least\n", enough ? "ok" : "not ok",
           PLANT_COUNT + 2, LEAST_SHARE);
    return ok && enough;
}

int main(int argc, char **argv)
{
    const char *folder = NULL;
    bool ok = true;
    int at = 1;
    if (argc > 2 && strcmp(argv[1], "--keep") == 0) {
        folder = argv[2];
        at = 3;
    }
    if (!folder && at == argc)
        return run_all() ? 0 : 1;
    for (int p = 1; p < PLANT_COUNT; p++) {
        bool is_asked = at == argc;
        for (int i = at; i < argc; i++)
            is_asked |= strcmp(argv[i], faults[p].name) == 0;
        if (is_asked && folder)
            keep_one((enum plant)p, folder);
        else if (is_asked)
            ok &= catch_one((enum plant)p, p);
    }
    return ok ? 0 : 1;
}
