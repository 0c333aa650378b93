/* sim_paper.c - the experiments on whole loads: memory, batches, rates, prefixes, chats, blocks.
 *
 * The published figures are those of Kwon et al., "Efficient Memory Management for Large Language
 * Model Serving with PagedAttention", SOSP 2023; E1 ... E10 are this project's numbers for its
 * experiments. Every load of a table comes from the same seed, whatever the policy. */
#include "utils/sim_paper.h"

#include <math.h>
#include <string.h>

/* ---- E1, E3: memory and batches ------------------------------------------------------------- */

struct memory_case {
    const char *title, *workload;
    double rate, seconds;
    const char *e1, *e3;                /* names of the tables; e1 NULL: none */
    double batches[SIM_N_POLICIES];     /* the paper's, in the order of sim_policies */
    const char *shares[SIM_N_POLICIES]; /* the same: tokens, reserved, internal, external */
};
static const struct memory_case memory_cases[] = {
    {"ShareGPT at 2 requests/s",
     "sharegpt",
     2,
     1200,
     "e1-memory",
     "e3-batch-sharegpt",
     {7.00, 9.81, 13.62, 30.42},
     {"20.4 / 13.3 / 57.3 / 8.9", "26.8 / 17.9 / 13.6 / 41.6", "38.2 / 25.2 / 0 / 36.6",
      "96.3 / - / - / -"}},
    {"Alpaca at 30 requests/s",
     "alpaca",
     30,
     240,
     NULL,
     "e3-batch-alpaca",
     {7.00, 43.24, 72.75, 132.44},
     {NULL, NULL, NULL, NULL}},
};

/* Of each policy, and of paged with preemption by swap. */
enum { N_RESULTS = SIM_N_POLICIES + 1 };

static int run_all(const struct sim_options *o, const struct memory_case *c,
                   struct sim_result results[N_RESULTS], struct err *err)
{
    struct sim_setup setup = sim_setup_of("opt-13b");
    struct sim_load load = sim_load_draw(sim_workload_find(c->workload), c->rate,
                                         c->seconds * o->part, setup.model->n_context, o->seed);
    int rc = 0;

    for (int k = 0; k < SIM_N_POLICIES && rc == 0; k++)
        rc = sim_run(sim_policies[k], &setup, &load, &results[k], err);
    setup.swap = true;
    if (rc == 0 && c->e1)
        rc = sim_run(&sim_paged, &setup, &load, &results[SIM_N_POLICIES], err);
    printf("\n%s: %d requests, mean %.0f in, %.0f out\n", c->title, load.n,
           sim_load_mean(&load, false), sim_load_mean(&load, true));
    sim_load_free(&load);
    return rc;
}

static int print_shares(const struct sim_options *o, const struct memory_case *c,
                        const struct sim_result *results, struct err *err)
{
    struct sim_table t;

    sim_table_begin(&t, c->e1, "E1  useful share of the K/V memory of OPT-13B, and the rest, %",
                    "policy\tuseful\trunning\tcached\treserved\tinternal\texternal\t"
                    "preempted\tpaper: tokens / reserved / internal / external");
    for (int k = 0; k < N_RESULTS; k++) {
        const double *s = results[k].shares;
        bool is_swap = k == SIM_N_POLICIES;
        sim_table_row(&t, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%lld\t%s",
                      is_swap ? "paged, swap" : sim_policies[k]->name,
                      100 * (s[SHARE_RUNNING] + s[SHARE_CACHED]), 100 * s[SHARE_RUNNING],
                      100 * s[SHARE_CACHED], 100 * s[SHARE_RESERVED], 100 * s[SHARE_INTERNAL],
                      100 * s[SHARE_EXTERNAL], (long long)results[k].totals.preemptions,
                      is_swap ? "-" : c->shares[k]);
    }
    sim_table_note(&t,
                   "useful: holds a token's K/V that a request uses (running) or that a new one "
                   "may find (cached: of ended requests, given up for any new block; the "
                   "paper's system has none)");
    sim_table_note(&t,
                   "running with paged is below the paper's 96.3, since admission leaves two "
                   "free blocks to each running request, one with preemption by swap; they hold "
                   "what is cached. Fewer preempt more: a build without (RESERVE in sched.c) had "
                   "97.0 running at seed 1 and preempted 3,074 times");
    return sim_table_end(&t, o->folder, err);
}

static int print_batches(const struct sim_options *o, const struct memory_case *c,
                         const struct sim_result *results, struct err *err)
{
    const struct sim_result *paged = &results[SIM_N_POLICIES - 1];
    struct sim_table t;

    sim_table_begin(&t, c->e3, "E3  mean batch",
                    "policy\tbatch\tpaper\tpaged over it\tpaper's\tdifference %\ts/token\t"
                    "preempted");
    for (int k = 0; k < SIM_N_POLICIES; k++) {
        double ratio = paged->mean_batch / results[k].mean_batch;
        double paper = c->batches[SIM_N_POLICIES - 1] / c->batches[k];
        sim_table_row(&t, "%s\t%.2f\t%.2f\t%.2f\t%.2f\t%+.0f\t%.3f\t%lld", sim_policies[k]->name,
                      results[k].mean_batch, c->batches[k], ratio, paper, 100 * (ratio / paper - 1),
                      results[k].latency_s, (long long)results[k].totals.preemptions);
    }
    sim_table_note(&t, "taken from the paper: the host's time from both rows of paged, Alpaca's "
                       "sigma from its oracle, ShareGPT's from what orca-max reserves in E1; the "
                       "rest follows");
    return sim_table_end(&t, o->folder, err);
}

int sim_memory(const struct sim_options *o, struct err *err)
{
    for (size_t i = 0; i < sizeof memory_cases / sizeof *memory_cases; i++) {
        const struct memory_case *c = &memory_cases[i];
        struct sim_result results[N_RESULTS];
        if (run_all(o, c, results, err) || (c->e1 && print_shares(o, c, results, err)) ||
            print_batches(o, c, results, err))
            return -1;
    }
    return 0;
}

/* ---- E2: rates ------------------------------------------------------------------------------ */

static const struct sim_series four_policies[] = {
    {"orca-max", &sim_orca_max, SIM_LOAD_PLAIN},
    {"orca-pow2", &sim_orca_pow2, SIM_LOAD_PLAIN},
    {"orca-oracle", &sim_orca_oracle, SIM_LOAD_PLAIN},
    {"paged", &sim_paged, SIM_LOAD_PLAIN},
};

#define RATES(file, words, model, load, top, s)                                                    \
    {                                                                                              \
        file, "E2  normalised latency, " words, model, load, top, s, four_policies, 4              \
    }
static const struct sim_curve rate_curves[] = {
    RATES("e2-opt-13b-sharegpt", "OPT-13B, ShareGPT", "opt-13b", "sharegpt", 3, 900),
    RATES("e2-opt-66b-sharegpt", "OPT-66B on 4, ShareGPT", "opt-66b", "sharegpt", 1.8, 900),
    RATES("e2-opt-175b-sharegpt", "OPT-175B on 8, ShareGPT", "opt-175b", "sharegpt", 4.8, 900),
    RATES("e2-opt-13b-alpaca", "OPT-13B, Alpaca", "opt-13b", "alpaca", 48, 120),
    RATES("e2-opt-66b-alpaca", "OPT-66B on 4, Alpaca", "opt-66b", "alpaca", 36, 120),
    RATES("e2-opt-175b-alpaca", "OPT-175B on 8, Alpaca", "opt-175b", "alpaca", 48, 120),
};
enum { N_RATE_CURVES = sizeof rate_curves / sizeof *rate_curves };

int sim_rates(const struct sim_options *o, struct err *err)
{
    double rates[N_RATE_CURVES][SIM_CURVE_SERIES];
    struct sim_table t;

    for (int i = 0; i < N_RATE_CURVES; i++)
        if (sim_curve(o, &rate_curves[i], rates[i], err))
            return -1;
    sim_table_begin(&t, "e2-ratios", "E2  rate of paged over that of the others, at equal latency",
                    "model, load\tover max\tover pow2\tover oracle\tpaper: max\toracle");
    for (int i = 0; i < N_RATE_CURVES; i++)
        sim_table_row(&t, "%s\t%.2f\t%.2f\t%.2f\t%s", rate_curves[i].name + 3,
                      rates[i][3] / rates[i][0], rates[i][3] / rates[i][1],
                      rates[i][3] / rates[i][2], i < 3 ? "2.7 - 8\t1.7 - 2.7" : "-\t-");
    sim_table_note(&t,
                   "OPT-175B has room for 60 k tokens: large batches, in which the host's time a "
                   "sequence outweighs memory, and with Alpaca the bound of 256 sequences; of "
                   "Alpaca there the paper says that memory does not bind either");
    sim_table_note(&t, "the paper's range is over models, with pipelines and kernels of their "
                       "own; here all policies have the same costs but for reading through blocks");
    return sim_table_end(&t, o->folder, err);
}

/* ---- E6: a common prefix -------------------------------------------------------------------- */

static const struct sim_series prefix_series[] = {
    {"orca-oracle", &sim_orca_oracle, SIM_LOAD_PLAIN},
    {"paged, unshared", &sim_paged, SIM_LOAD_UNSHARED},
    {"paged, shared", &sim_paged, SIM_LOAD_PLAIN},
};
static const struct sim_curve prefix_curves[] = {
    {"e6-1shot", "E6  translation, prefix of 80 tokens, LLaMA-13B", "llama-13b", "wmt-1shot", 72,
     60, prefix_series, 3},
    {"e6-5shot", "E6  translation, prefix of 341 tokens, LLaMA-13B", "llama-13b", "wmt-5shot", 72,
     60, prefix_series, 3},
};

int sim_prefixes(const struct sim_options *o, struct err *err)
{
    static const double paper[] = {1.67, 3.58};
    double rates[2][SIM_CURVE_SERIES];
    struct sim_table t;

    for (int i = 0; i < 2; i++)
        if (sim_curve(o, &prefix_curves[i], rates[i], err))
            return -1;
    sim_table_begin(&t, "e6-ratios", "E6  rate over orca-oracle, at equal latency",
                    "prefix\tpaged, unshared\tpaged, shared\tpaper, shared");
    for (int i = 0; i < 2; i++)
        sim_table_row(&t, "%d tokens\t%.2f\t%.2f\t%.2f",
                      sim_workload_find(prefix_curves[i].workload)->n_shared,
                      rates[i][1] / rates[i][0], rates[i][2] / rates[i][0], paper[i]);
    sim_table_note(
        &t, "lengths of the sentences are assumed (30 in, 35 out). With 341 tokens shared "
            "it is the host's time a sequence that binds: a build without had 3.75 at seed 1");
    return sim_table_end(&t, o->folder, err);
}

/* ---- E7: conversations ---------------------------------------------------------------------- */

static const struct sim_series chat_series[] = {
    {"orca-max", &sim_orca_max, SIM_LOAD_CHAT},       {"orca-pow2", &sim_orca_pow2, SIM_LOAD_CHAT},
    {"orca-oracle", &sim_orca_oracle, SIM_LOAD_CHAT}, {"paged", &sim_paged, SIM_LOAD_CHAT},
    {"paged, kept", &sim_paged, SIM_LOAD_CHAT_KEPT},
};
static const struct sim_curve chat_curve = {
    "e7-chat",   "E7  chat, OPT-13B, the last 1,024 tokens of the conversation as prompt",
    "opt-13b",   "sharegpt",
    1.8,         1200,
    chat_series, 5};

int sim_chats(const struct sim_options *o, struct err *err)
{
    double rates[SIM_CURVE_SERIES];
    struct sim_table t;

    if (sim_curve(o, &chat_curve, rates, err))
        return -1;
    sim_table_begin(&t, "e7-ratios", "E7  rate of paged at equal latency, over",
                    "\torca-max\torca-pow2\torca-oracle");
    sim_table_row(&t, "paged, nothing kept\t%.2f\t%.2f\t%.2f", rates[3] / rates[0],
                  rates[3] / rates[1], rates[3] / rates[2]);
    sim_table_row(&t, "paged, K/V kept between turns\t%.2f\t%.2f\t%.2f", rates[4] / rates[0],
                  rates[4] / rates[1], rates[4] / rates[2]);
    sim_table_row(&t, "paper, nothing kept\t2\t2\t2");
    sim_table_note(&t, "a running request holds about 1,300 tokens where the others take 2,048: "
                       "memory allows 1.6 times the batch with these lengths, not the paper's 2");
    sim_table_note(&t, "what is kept is found while a conversation is shorter than 1,024 tokens, "
                       "since cutting its head moves every position, and until it is evicted: at 1 "
                       "request/s all slots are written anew in 12 s, a pause is 60 s");
    return sim_table_end(&t, o->folder, err);
}

/* ---- E9: block size ------------------------------------------------------------------------- */

int sim_blocks(const struct sim_options *o, struct err *err)
{
    static const struct {
        const char *workload;
        double rate, seconds;
    } loads[] = {{"sharegpt", 1.5, 900}, {"alpaca", 30, 120}};
    double latency[2][9], batch[2][9];
    struct sim_table t;

    sim_table_begin(&t, "e9-block-size", "E9  OPT-13B over the block size, paged, s/token",
                    "block\tShareGPT 1.5/s\tAlpaca 30/s\tbatch\tbatch");
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 9; i++) {
            struct sim_setup setup = sim_setup_of("opt-13b");
            struct sim_result result;
            setup.block_size = 1 << i;
            struct sim_load load =
                sim_load_draw(sim_workload_find(loads[k].workload), loads[k].rate,
                              loads[k].seconds * o->part, setup.model->n_context, o->seed);
            int rc = sim_run(&sim_paged, &setup, &load, &result, err);
            sim_load_free(&load);
            if (rc) {
                (void)sim_table_end(&t, NULL, err);
                return -1;
            }
            latency[k][i] = result.latency_s;
            batch[k][i] = result.mean_batch;
        }
    for (int i = 0; i < 9; i++)
        sim_table_row(&t, "%d\t%.3f\t%.3f\t%.1f\t%.1f", 1 << i, latency[0][i], latency[1][i],
                      batch[0][i], batch[1][i]);
    sim_table_note(&t, "paper: ShareGPT is best from 16 to 128, Alpaca at 16 and 32 and clearly "
                       "worse above; 16 is its default and ours");
    sim_table_note(&t, "large blocks cost us more: admission leaves two blocks to each running "
                       "request, 512 tokens of 256; small ones are read more slowly");
    if (sim_table_end(&t, o->folder, err))
        return -1;
    return o->folder ? sim_table_plot(o->folder, t.name, "block size", "s/token", 3, true, err) : 0;
}

/* ---- recorded loads ------------------------------------------------------------------------- */

int sim_recorded(const struct sim_options *o, struct err *err)
{
    static const struct {
        const char *file, *model;
        int32_t scale, limit;
        double speed;
    } traces[] = {{"azure2023_conv.tsv", "opt-13b", 1, 3000, 0.15},
                  {"mooncake_conversation.tsv", "smollm2-135m", 32, 4000, 0.2}};
    struct sim_table t;

    if (!o->traces) {
        puts("\nrecorded traces: skipped, no folder of traces (KVASIR_WORKLOADS)");
        return 0;
    }
    sim_table_begin(&t, "traces", "Recorded traces, arrivals and lengths as they were",
                    "trace\tmodel\tpolicy\trequests\tin\tout\ts/token\tbatch\tfound %\tpreempted");
    for (size_t i = 0; i < sizeof traces / sizeof *traces; i++) {
        struct sim_setup setup = sim_setup_of(traces[i].model);
        struct str path = {0};
        struct sim_load load;
        str_printf(&path, "%s/%s", o->traces, traces[i].file);
        int rc = sim_load_read(path.data, traces[i].scale, traces[i].speed,
                               (int32_t)ceil(traces[i].limit * o->part), setup.model->n_context,
                               &load, err);
        for (int k = 0; k < SIM_N_POLICIES && rc == 0; k++) {
            struct sim_result r;
            rc = sim_run(sim_policies[k], &setup, &load, &r, err);
            if (rc == 0)
                sim_table_row(
                    &t, "%.*s\t%s\t%s\t%d\t%.0f\t%.0f\t%.4f\t%.2f\t%.1f\t%lld",
                    (int)(path.len - strlen(o->traces) - 5), path.data + strlen(o->traces) + 1,
                    traces[i].model, sim_policies[k]->name, load.n, sim_load_mean(&load, false),
                    sim_load_mean(&load, true), r.latency_s, r.mean_batch,
                    100. * (double)r.totals.cached_tokens / (double)r.totals.prompt_tokens,
                    (long long)r.totals.preemptions);
        }
        if (rc == 0)
            sim_load_free(&load);
        str_free(&path);
        if (rc) {
            (void)sim_table_end(&t, NULL, err);
            return -1;
        }
    }
    sim_table_note(&t, "azure2023_conv at 0.15 of its speed, mooncake at 0.2 and with lengths over "
                       "32, so that its blocks of 512 are ours of 16 and share as they did; its "
                       "answers of 10 tokens leave nothing but prompts: arithmetic binds");
    return sim_table_end(&t, o->folder, err);
}
