/* sim.c - kvasir-sim: the real cache and scheduler in virtual time, against reservation.
 *
 *     kvasir-sim --all --out results      every table of the PagedAttention paper that needs no
 *                                         kernel, beside its figures; TSV and SVG into results/
 *     kvasir-sim --only e1,e4             some of them
 *     kvasir-sim --model opt-66b --load sharegpt --rate 0.5 [--policy paged] [--block 16]
 *                                         one run of each policy, or of one
 *     kvasir-sim --trace FILE --model ... the same on a recorded load
 *
 * Nothing is measured on this machine: a step takes what the cost model says (sim_cost.c), and the
 * same seed prints the same tables everywhere. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/log.h"
#include "utils/sim_beam.h"
#include "utils/sim_paper.h"

static const struct {
    const char *names; /* as --only takes them */
    int (*run)(const struct sim_options *o, struct err *err);
} experiments[] = {
    {"e1 e3", sim_memory}, {"e2", sim_rates},  {"e4 e5", sim_branches}, {"e6", sim_prefixes},
    {"e7", sim_chats},     {"e9", sim_blocks}, {"e10", sim_swaps},      {"traces", sim_recorded},
};
enum { N_EXPERIMENTS = sizeof experiments / sizeof *experiments };

static const char usage[] =
    "kvasir-sim --all | --only e1,e2,... | --rate R | --trace FILE   [options]\n"
    "\n"
    "  --all            every table: e1 e2 e3 e4 e5 e6 e7 e9 e10 traces\n"
    "  --only LIST      some of them\n"
    "  --out DIR        also as DIR/NAME.tsv, curves as DIR/NAME.svg if gnuplot is there\n"
    "  --seed N         of all loads (default 1)\n"
    "  --part P         length of every load, 0.001 to 1 (default 1)\n"
    "  --traces DIR     recorded loads (default $KVASIR_WORKLOADS/traces)\n"
    "one run:\n"
    "  --rate R         requests/s\n"
    "  --trace FILE     a recorded load instead: t_ms, in_tok, out_tok, blocks512\n"
    "  --scale N        its lengths are divided by N (default 1)\n"
    "  --model NAME     opt-13b opt-66b opt-175b llama-13b smollm2-135m (default opt-13b)\n"
    "  --load NAME      sharegpt alpaca wmt-1shot wmt-5shot (default sharegpt)\n"
    "  --policy NAME    paged orca-max orca-pow2 orca-oracle (default: each)\n"
    "  --block N        block size of paged, 1 to 256 (default 16)\n"
    "  --swap           paged preempts into host memory (default: it computes again)\n"
    "  --seconds S      of arrivals (default 600)\n";

struct arguments {
    struct sim_options options;
    const char *only, *trace, *model, *load, *policy;
    bool all, swap;
    double rate, seconds;
    int32_t scale, block;
};

static bool number(const char *name, const char *text, double min, double max, double *value,
                   struct err *err)
{
    if (parse_real(bytes_from(text), value) && *value >= min && *value <= max)
        return true;
    err_set(err, "--%s %s: a number from %g to %g", name, text, min, max);
    return false;
}

enum {
    OPT_ALL,
    OPT_ONLY,
    OPT_OUT,
    OPT_SEED,
    OPT_PART,
    OPT_TRACES,
    OPT_RATE,
    OPT_TRACE,
    OPT_SCALE,
    OPT_MODEL,
    OPT_LOAD,
    OPT_POLICY,
    OPT_BLOCK,
    OPT_SECONDS,
    OPT_SWAP,
    OPT_HELP
};

static int set_argument(struct arguments *a, int option, const char *name, const char *text,
                        struct err *err)
{
    const struct {
        const char **text;
        double *number;
        double min, max;
    } rows[] = {
        [OPT_ONLY] = {.text = &a->only},
        [OPT_OUT] = {.text = &a->options.folder},
        [OPT_TRACES] = {.text = &a->options.traces},
        [OPT_TRACE] = {.text = &a->trace},
        [OPT_MODEL] = {.text = &a->model},
        [OPT_LOAD] = {.text = &a->load},
        [OPT_POLICY] = {.text = &a->policy},
        [OPT_PART] = {.number = &a->options.part, .min = 0.001, .max = 1},
        [OPT_RATE] = {.number = &a->rate, .min = 0.001, .max = 1000},
        [OPT_SECONDS] = {.number = &a->seconds, .min = 1, .max = 1e5},
    };
    double value;

    if (option == OPT_ALL) {
        a->all = true;
    } else if (option == OPT_SWAP) {
        a->swap = true;
    } else if (option == OPT_SEED) {
        if (!number(name, text, 0, 1e15, &value, err))
            return -1;
        a->options.seed = (uint64_t)value;
    } else if (option == OPT_SCALE || option == OPT_BLOCK) {
        if (!number(name, text, 1, 256, &value, err))
            return -1;
        *(option == OPT_SCALE ? &a->scale : &a->block) = (int32_t)value;
    } else if (rows[option].text) {
        *rows[option].text = text;
    } else if (!number(name, text, rows[option].min, rows[option].max, rows[option].number, err)) {
        return -1;
    }
    return 0;
}

/* 0, 1 when only the usage was asked for, or -1. */
static int parse_arguments(int argc, char **argv, struct arguments *a, struct err *err)
{
    static const struct option options[] = {
        {"all", no_argument, NULL, OPT_ALL},
        {"only", required_argument, NULL, OPT_ONLY},
        {"out", required_argument, NULL, OPT_OUT},
        {"seed", required_argument, NULL, OPT_SEED},
        {"part", required_argument, NULL, OPT_PART},
        {"traces", required_argument, NULL, OPT_TRACES},
        {"rate", required_argument, NULL, OPT_RATE},
        {"trace", required_argument, NULL, OPT_TRACE},
        {"scale", required_argument, NULL, OPT_SCALE},
        {"model", required_argument, NULL, OPT_MODEL},
        {"load", required_argument, NULL, OPT_LOAD},
        {"policy", required_argument, NULL, OPT_POLICY},
        {"block", required_argument, NULL, OPT_BLOCK},
        {"seconds", required_argument, NULL, OPT_SECONDS},
        {"swap", no_argument, NULL, OPT_SWAP},
        {"help", no_argument, NULL, OPT_HELP},
        {0},
    };
    int option, at;

    opterr = 0;
    while ((option = getopt_long(argc, argv, "", options, &at)) >= 0) {
        if (option == OPT_HELP)
            return 1;
        if (option == '?')
            return err_set(err, "%s is not an option, or lacks its value (--help lists them)",
                           argv[optind - 1]);
        if (set_argument(a, option, options[at].name, optarg, err))
            return -1;
    }
    if (optind < argc)
        return err_set(err, "\"%s\" is not an option (--help lists them)", argv[optind]);
    if (a->all + (a->only != NULL) + (a->rate > 0) + (a->trace != NULL) != 1)
        return err_set(err, "one of --all, --only, --rate and --trace is needed (--help)");
    return 0;
}

/* ---- tables --------------------------------------------------------------------------------- */

/* A word of a list whose words are split by any of `gaps`. */
static bool has_word(const char *list, const char *gaps, const char *word, size_t len)
{
    for (const char *at = list; *at;) {
        size_t n = strcspn(at, gaps);
        if (n == len && strncmp(at, word, len) == 0)
            return true;
        at += n + (at[n] != '\0');
    }
    return false;
}

static int check_only(const char *only, struct err *err)
{
    for (const char *at = only; *at;) {
        size_t n = strcspn(at, ",");
        bool known = false;
        for (int i = 0; i < N_EXPERIMENTS; i++)
            known |= has_word(experiments[i].names, " ", at, n);
        if (!known)
            return err_set(err, "--only %.*s: e1 e2 e3 e4 e5 e6 e7 e9 e10 or traces", (int)n, at);
        at += n + (at[n] != '\0');
    }
    return 0;
}

static bool is_wanted(const struct arguments *a, const char *names)
{
    bool wanted = a->all;

    for (const char *at = names; *at;) {
        size_t n = strcspn(at, " ");
        wanted |= a->only && has_word(a->only, ",", at, n);
        at += n + (at[n] != '\0');
    }
    return wanted;
}

static void print_parameters(const struct sim_options *o)
{
    printf("seed %llu, loads of %g of their full length\n\nmodels\n", (unsigned long long)o->seed,
           o->part);
    printf("  %-13s %6s %9s %10s %6s %10s %9s %8s %8s %8s\n", "", "layers", "K/V width",
           "weights GB", "cards", "GB/s each", "TFLOPS", "KB/token", "slots", "context");
    for (const struct sim_model *m = sim_models; m->name; m++)
        printf("  %-13s %6d %9d %10.2f %6d %10.0f %9.1f %8.0f %8d %8d\n", m->name, m->n_layers,
               m->kv_width, m->weight_bytes / 1e9, m->n_cards, m->card_bytes_per_s / 1e9,
               m->card_flops / 1e12, sim_kv_token_bytes(m) / 1024, m->slots, m->n_context);
    printf("a step: %.0f us and %.0f us a sequence on the host; %.0f %% of the bandwidth for "
           "weights and K/V, %.0f %% of the arithmetic;\n"
           "        K/V through blocks of B cost 1 + %d / B; %d us for each of two sums a layer "
           "between cards\n"
           "beams: logits of deviation %.1f (t + %d) before the t-th token of an answer\n\nloads "
           "(log-normal, cut at the context)\n",
           sim_models[0].step_us, sim_models[0].seq_us, 100 * SIM_BANDWIDTH_PART,
           100 * SIM_FLOPS_PART, SIM_BLOCK_TOKENS, SIM_REDUCE_US, SIM_BEAM_SLOPE, SIM_BEAM_START);
    for (const struct sim_workload *w = sim_workloads; w->name; w++)
        printf("  %-10s mean %.0f in, %.0f out, sigma %.2f, common prefix %d\n", w->name,
               w->prompt_mean, w->output_mean, w->sigma, w->n_shared);
}

static int run_tables(const struct arguments *a, struct err *err)
{
    if (a->only && check_only(a->only, err))
        return -1;
    if (a->options.folder)
        (void)mkdir(a->options.folder, 0777); /* if it is no folder, the first file says so */
    print_parameters(&a->options);
    for (int i = 0; i < N_EXPERIMENTS; i++)
        if (is_wanted(a, experiments[i].names) && experiments[i].run(&a->options, err))
            return -1;
    return 0;
}

/* ---- one run -------------------------------------------------------------------------------- */

static int make_load(const struct arguments *a, const struct sim_model *m, struct sim_load *load,
                     struct err *err)
{
    const struct sim_workload *w = sim_workload_find(a->load);

    if (a->trace)
        return sim_load_read(a->trace, a->scale, 1, INT32_MAX, m->n_context, load, err);
    if (!w)
        return err_set(err, "--load %s: sharegpt alpaca wmt-1shot wmt-5shot", a->load);
    *load = sim_load_draw(w, a->rate, a->seconds, m->n_context, a->options.seed);
    return 0;
}

static int run_policies(const struct arguments *a, const struct sim_setup *setup,
                        struct sim_load *load, struct sim_table *t, struct err *err)
{
    for (int k = 0; k < SIM_N_POLICIES; k++) {
        struct sim_result r;
        if (a->policy && strcmp(a->policy, sim_policies[k]->name) != 0)
            continue;
        if (sim_run(sim_policies[k], setup, load, &r, err))
            return -1;
        const double *s = r.shares;
        sim_table_row(t, "%s\t%d\t%.4f\t%.4f\t%.2f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%lld",
                      sim_policies[k]->name, r.n_ended, r.latency_s, r.latency_p90_s, r.mean_batch,
                      r.tokens_per_s, 100 * s[SHARE_RUNNING], 100 * s[SHARE_CACHED],
                      100 * s[SHARE_RESERVED], 100 * s[SHARE_INTERNAL], 100 * s[SHARE_EXTERNAL],
                      r.totals.prompt_tokens > 0
                          ? 100. * (double)r.totals.cached_tokens / (double)r.totals.prompt_tokens
                          : 0,
                      (long long)r.totals.preemptions);
    }
    return 0;
}

static int run_once(const struct arguments *a, struct err *err)
{
    struct sim_setup setup = sim_setup_of(a->model);
    struct sim_load load;
    struct sim_table t;

    if (!setup.model)
        return err_set(err, "--model %s: opt-13b opt-66b opt-175b llama-13b smollm2-135m",
                       a->model);
    if (a->policy && !sim_policy_find(a->policy))
        return err_set(err, "--policy %s: paged orca-max orca-pow2 orca-oracle", a->policy);
    setup.block_size = a->block;
    setup.swap = a->swap;
    if (make_load(a, setup.model, &load, err))
        return -1;
    if (a->options.folder)
        (void)mkdir(a->options.folder, 0777);
    sim_table_begin(&t, "run", a->trace ? a->trace : a->load,
                    "policy\trequests\ts/token\tp90\tbatch\ttokens/s\trunning %\tcached %\t"
                    "reserved %\tinternal %\texternal %\tfound %\tpreempted");
    int rc = run_policies(a, &setup, &load, &t, err);
    sim_load_free(&load);
    return sim_table_end(&t, rc ? NULL : a->options.folder, err) || rc ? -1 : 0;
}

/* $KVASIR_WORKLOADS; where that is not set, beside the source tree, seen from there or from a build
 * folder in it. NULL: there is none. */
static const char *find_traces(struct str *path)
{
    const char *workloads = getenv("KVASIR_WORKLOADS");
    const char *const roots[] = {workloads ? workloads : "../shared/workloads",
                                 workloads ? workloads : "../../shared/workloads"};
    struct stat info;

    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        str_clear(path);
        str_printf(path, "%s/traces", roots[i]);
        if (stat(path->data, &info) == 0 && S_ISDIR(info.st_mode))
            return path->data;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    struct arguments a = {.options = {.seed = 1, .part = 1},
                          .model = "opt-13b",
                          .load = "sharegpt",
                          .seconds = 600,
                          .scale = 1,
                          .block = 16};
    struct err err = {""};
    struct str traces = {0};

    log_threshold = LOG_WARNING;
    a.options.traces = find_traces(&traces);
    int parsed = parse_arguments(argc, argv, &a, &err);
    if (parsed > 0)
        return fputs(usage, stdout) < 0;
    int rc = parsed < 0 ? -1 : a.all || a.only ? run_tables(&a, &err) : run_once(&a, &err);
    if (rc)
        fprintf(stderr, "kvasir-sim: %s\n", err.text);
    str_free(&traces);
    return rc ? 1 : 0;
}
