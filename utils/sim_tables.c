/* sim_tables.c - the experiments inside a group, and of swap against recomputation. */
#include "utils/sim_paper.h"

/* ---- E4, E5: sharing inside a group --------------------------------------------------------- */

#define SWAP_RATE 2 /* requests/s, at which memory is what binds */
#define SWAP_SECONDS 900

static const int32_t widths[] = {2, 4, 6};
enum { N_WIDTHS = 3 };

/* N answers to each request, through the engine. All widths have the same requests, which come so
 * slowly that about half of the memory is in use. */
static int save_in_groups(const struct sim_options *o, const struct sim_workload *w, double rate,
                          double seconds, bool is_beam, double *saved, struct err *err)
{
    for (int i = 0; i < N_WIDTHS; i++) {
        struct sim_setup setup = sim_setup_of("opt-13b");
        struct sim_load load = sim_load_draw(w, rate / widths[i], seconds * widths[i] * o->part,
                                             setup.model->n_context, o->seed);
        struct sim_result result;
        for (int32_t k = 0; k < load.n; k++) {
            load.requests[k].n_branches = widths[i];
            load.requests[k].is_beam = is_beam;
        }
        int rc = sim_run(&sim_paged, &setup, &load, &result, err);
        sim_load_free(&load);
        if (rc)
            return -1;
        saved[i] = 100 * result.saved_part;
    }
    return 0;
}

static void add_row(struct sim_table *t, const char *load, const double *saved, const char *paper)
{
    sim_table_row(t, "%s\t%.1f\t%.1f\t%.1f\t%s", load, saved[0], saved[1], saved[2], paper);
}

struct sharing_table {
    const char *name, *title;
    bool is_beam;
    const char *alpaca, *sharegpt; /* the paper's, 2 to 6 */
    const char *notes[3];
};
static const struct sharing_table sharing_tables[] = {
    {"e4-samples",
     "E4  parallel samples: blocks saved by sharing, %",
     false,
     "6.1 - 9.8",
     "16.2 - 30.5",
     {"all samples of a request have its length: a trace holds one, and the paper forces it",
      "so N save (N - 1) / N of what prompts take, and 6 save 1.67 times what 2 do. The ends of "
      "the "
      "paper's ranges are 1.61 and 1.88 apart: no load has both ends of Alpaca's. From 6.1 at 2 "
      "follow 10.2 at 6; ours is above that, too, since one sigma for prompts and outputs has more "
      "long prompts than instructions have"}},
    {"e5-beams",
     "E5  beams: blocks saved by sharing, %",
     true,
     "37.6 - 55.2",
     "44.3 - 66.3",
     {"the engine's beam search. Who survives depends on how sure a model is; this one is as sure "
      "as makes its groups save what SmolLM2-135M's do through the same engine (sim_beam.c has "
      "both), so no published saving had a part in it",
      "below the range at 2, above it at none but the widest: SmolLM2 is no OPT-13B, and its "
      "savings differ from text to text by more than ours from the paper's"}},
};

static int print_sharing(const struct sim_options *o, const struct sharing_table *s,
                         struct err *err)
{
    double alpaca[N_WIDTHS], sharegpt[N_WIDTHS];
    struct sim_table t;

    if (save_in_groups(o, sim_workload_find("alpaca"), 16, 240, s->is_beam, alpaca, err) ||
        save_in_groups(o, sim_workload_find("sharegpt"), 1.2, 600, s->is_beam, sharegpt, err))
        return -1;
    sim_table_begin(&t, s->name, s->title, "load\t2\t4\t6\tpaper, 2 to 6");
    add_row(&t, "alpaca", alpaca, s->alpaca);
    add_row(&t, "sharegpt", sharegpt, s->sharegpt);
    for (int i = 0; i < 3 && s->notes[i]; i++)
        sim_table_note(&t, "%s", s->notes[i]);
    return sim_table_end(&t, o->folder, err);
}

int sim_branches(const struct sim_options *o, struct err *err)
{
    for (size_t i = 0; i < sizeof sharing_tables / sizeof *sharing_tables; i++)
        if (print_sharing(o, &sharing_tables[i], err))
            return -1;
    return 0;
}

/* ---- E10: swap against recomputation -------------------------------------------------------- */

/* What one victim costs, by the cost model alone. */
static int print_victim(const struct sim_options *o, struct err *err)
{
    const struct sim_model *m = sim_model_find("opt-13b");
    const int32_t n_tokens = 460; /* a running ShareGPT request at a random moment */
    struct sim_table t;

    sim_table_begin(&t, "e10-swap", "E10  bringing back 460 tokens of OPT-13B, ms",
                    "block\tswap out\tswap in\tboth\trecompute\trecompute over swap");
    for (int32_t size = 1; size <= 256; size *= 2) {
        struct sim_work work = {
            .n_rows = n_tokens, .n_seqs = 1, .kv_tokens = n_tokens, .block_size = size};
        double one_way = sim_swap_us(m, (n_tokens + size - 1) / size, size) / 1e3;
        double recompute = (double)sim_step_us(m, &work) / 1e3;
        sim_table_row(&t, "%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f", size, one_way, one_way, 2 * one_way,
                      recompute, recompute / (2 * one_way));
    }
    sim_table_note(&t,
                   "link %.0f GB/s, %d us a copy, a block is %d copies; recompute: one prompt "
                   "of so many rows",
                   SIM_LINK_BYTES_PER_S / 1e9, SIM_COPY_US, 2 * m->n_layers);
    sim_table_note(&t, "paper: swap is poor at small blocks, recompute is flat and never over 1.2 "
                       "times swap, both alike from 16 to 64");
    if (sim_table_end(&t, o->folder, err))
        return -1;
    return o->folder ? sim_table_plot(o->folder, t.name, "block size", "ms", 5, true, err) : 0;
}

/* The load through the engine in either preemption mode. */
static int run_modes(const struct sim_options *o, int32_t block_size, struct sim_result results[2],
                     struct err *err)
{
    struct sim_setup setup = sim_setup_of("opt-13b");
    struct sim_load load = sim_load_draw(sim_workload_find("sharegpt"), SWAP_RATE,
                                         SWAP_SECONDS * o->part, setup.model->n_context, o->seed);
    int rc = 0;

    setup.block_size = block_size;
    for (int mode = 0; mode < 2 && rc == 0; mode++) {
        setup.swap = mode == 1;
        rc = sim_run(&sim_paged, &setup, &load, &results[mode], err);
    }
    sim_load_free(&load);
    return rc;
}

static int print_modes(const struct sim_options *o, struct err *err)
{
    double token_gb = sim_kv_token_bytes(sim_model_find("opt-13b")) / 1e9;
    struct sim_table t;

    sim_table_begin(&t, "e10-service", "E10  OPT-13B, ShareGPT at 2 requests/s, by preemption mode",
                    "block\trecompute s/token\tswap s/token\trecompute over swap\tpreempted\t"
                    "tokens dropped\tpreempted\tGB out\tGB in");
    for (int32_t size = 1; size <= 256; size *= 2) {
        struct sim_result r[2];
        if (run_modes(o, size, r, err)) {
            (void)sim_table_end(&t, NULL, err);
            return -1;
        }
        const struct sim_totals *again = &r[0].totals, *swap = &r[1].totals;
        sim_table_row(&t, "%d\t%.3f\t%.3f\t%.2f\t%lld\t%lld\t%lld\t%.1f\t%.1f", size,
                      r[0].latency_s, r[1].latency_s, r[0].latency_s / r[1].latency_s,
                      (long long)again->preemptions, (long long)again->dropped_tokens,
                      (long long)swap->preemptions, (double)swap->swapped_out * size * token_gb,
                      (double)swap->swapped_in * size * token_gb);
    }
    sim_table_note(&t,
                   "the engine's own swap: a group's blocks go out beside the step that preempts "
                   "it and come in before the one that admits it again");
    sim_table_note(&t,
                   "small blocks: many copies, swap is worse, as in the paper; 16: alike, as in "
                   "the paper. Above, nearly nobody is preempted: admission leaves two blocks "
                   "to each running request, one with swap, and those are what costs");
    if (sim_table_end(&t, o->folder, err))
        return -1;
    return o->folder ? sim_table_plot(o->folder, t.name, "block size", "s/token", 3, true, err) : 0;
}

int sim_swaps(const struct sim_options *o, struct err *err)
{
    return print_victim(o, err) || print_modes(o, err) ? -1 : 0;
}
