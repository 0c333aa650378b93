/* faults.c - every planted fault must be caught: what survives is a blind spot of the simulation.
 *
 *   faults [NAME]     all of them, or one; with a name its shrunk script too
 *
 * The libraries under this program are built with KV_PLANT. Each fault gets the number of
 * operations that the table states, worlds from seed 1 on; without any fault planted the same
 * worlds must be clean, or the test would prove nothing. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/plant.h"
#include "run.h"

enum plant plant_chosen = PLANT_NONE;

enum { OPS_EACH = 500, WITHIN = 200000, CLEAN_OPS = 50000, SHRINK_TRIES = 3000 };

static const char *const NAMES[PLANT_COUNT] = {
#define X(name, what) [PLANT_##name] = #name,
    PLANTS(X)
#undef X
};
static const char *const WHATS[PLANT_COUNT] = {
#define X(name, what) [PLANT_##name] = what,
    PLANTS(X)
#undef X
};

static bool catch_one(enum plant plant, int number)
{
    struct run_result r;
    plant_chosen = plant;
    run_worlds(plant >= PLANT_FIRST_OF_KEYS, 1, WITHIN, OPS_EACH, true, &r);
    if (r.is_wrong)
        printf("ok %d - %s: caught after %" PRId64 " operations (%s)\n", number, NAMES[plant],
               r.n_ops, r.fault);
    else
        printf("not ok %d - %s: %s, and %" PRId64 " operations did not notice\n", number,
               NAMES[plant], WHATS[plant], r.n_ops);
    fflush(stdout);
    return r.is_wrong;
}

static void print_shrunk(enum plant plant)
{
    struct run_result r;
    struct script s;
    plant_chosen = plant;
    run_worlds(plant >= PLANT_FIRST_OF_KEYS, 1, WITHIN, OPS_EACH, true, &r);
    if (!r.is_wrong)
        return;
    script_draw(&s, plant >= PLANT_FIRST_OF_KEYS, r.seed, OPS_EACH);
    run_shrink(&s, r.at, SHRINK_TRIES);
    script_print(&s, stdout);
    script_free(&s);
}

static bool is_clean(bool with_keys, int number)
{
    struct run_result r;
    plant_chosen = PLANT_NONE;
    run_worlds(with_keys, 1, CLEAN_OPS, OPS_EACH, false, &r);
    printf("%s %d - no fault planted: %" PRId64 " operations %s are clean\n",
           r.is_wrong ? "not ok" : "ok", number, r.n_ops, with_keys ? "on keys" : "on the engine");
    if (r.is_wrong)
        printf("# seed %" PRIu64 ": %s\n", r.seed, r.fault);
    return !r.is_wrong;
}

int main(int argc, char **argv)
{
    bool ok = true;
    if (argc > 1) {
        for (int p = 1; p < PLANT_COUNT; p++)
            if (strcmp(argv[1], NAMES[p]) == 0) {
                ok = catch_one((enum plant)p, 1);
                print_shrunk((enum plant)p);
            }
        return ok ? 0 : 1;
    }
    printf("1..%d\n", PLANT_COUNT + 1);
    for (int p = 1; p < PLANT_COUNT; p++)
        ok &= catch_one((enum plant)p, p);
    ok &= is_clean(false, PLANT_COUNT);
    ok &= is_clean(true, PLANT_COUNT + 1);
    return ok ? 0 : 1;
}
