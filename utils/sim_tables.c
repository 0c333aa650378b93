/* sim_tables.c - the experiments inside a group, and of swap against recomputation. */
#include "utils/sim_group.h"
#include "utils/sim_paper.h"

/* ---- E4, E5: sharing inside a group --------------------------------------------------------- */

static const int32_t widths[] = {2, 4, 6};
enum { N_WIDTHS = 3 };

/* N samples of each answer, through the engine. The rate keeps about half of the memory in use,
 * whatever N. */
static int save_by_samples(const struct sim_options *o, const struct sim_workload *w, double rate,
                           double seconds, double *saved, struct err *err)
{
    for (int i = 0; i < N_WIDTHS; i++) {
        struct sim_setup setup = sim_setup_of("opt-13b");
        struct sim_load load =
            sim_load_draw(w, rate / widths[i], seconds * o->part, setup.model->n_context, o->seed);
        struct sim_result result;
        for (int32_t k = 0; k < load.n; k++)
            load.requests[k].n_branches = widths[i];
        int rc = sim_run(&sim_paged, &setup, &load, &result, err);
        sim_load_free(&load);
        if (rc)
            return -1;
        saved[i] = 100 * result.saved_part;
    }
    return 0;
}

static void save_by_beams(const struct sim_options *o, const struct sim_workload *w, double *saved)
{
    for (int i = 0; i < N_WIDTHS; i++) {
        struct sim_sharing s;
        sim_group_run(w, widths[i], (int32_t)(200 * o->part) + 1, 16, o->seed, &s);
        saved[i] = 100 * (1 - s.physical / s.logical);
    }
}

static void add_row(struct sim_table *t, const char *load, const double *saved, const char *paper)
{
    sim_table_row(t, "%s\t%.1f\t%.1f\t%.1f\t%s", load, saved[0], saved[1], saved[2], paper);
}

static const char sharing_head[] = "load\t2\t4\t6\tpaper, 2 to 6";

static int print_samples(const struct sim_options *o, struct err *err)
{
    double alpaca[N_WIDTHS], sharegpt[N_WIDTHS];
    struct sim_table t;

    if (save_by_samples(o, sim_workload_find("alpaca"), 16, 240, alpaca, err) ||
        save_by_samples(o, sim_workload_find("sharegpt"), 1.2, 1800, sharegpt, err))
        return -1;
    sim_table_begin(&t, "e4-samples", "E4  parallel samples: blocks saved by sharing, %",
                    sharing_head);
    add_row(&t, "alpaca", alpaca, "6.1 - 9.8");
    add_row(&t, "sharegpt", sharegpt, "16.2 - 30.5");
    sim_table_note(&t, "all samples of a request have its length: a trace holds one, and the paper "
                       "forces it");
    sim_table_note(&t, "Alpaca is above at 4 and 6: most of what it shares lies in the few long "
                       "prompts, and one sigma for prompts and outputs has more of them");
    return sim_table_end(&t, o->folder, err);
}

static int print_beams(const struct sim_options *o, struct err *err)
{
    double saved[N_WIDTHS];
    struct sim_table t;

    sim_table_begin(&t, "e5-beams", "E5  beams: blocks saved by sharing, %", sharing_head);
    save_by_beams(o, sim_workload_find("alpaca"), saved);
    add_row(&t, "alpaca", saved, "37.6 - 55.2");
    save_by_beams(o, sim_workload_find("sharegpt"), saved);
    add_row(&t, "sharegpt", saved, "44.3 - 66.3");
    sim_table_note(&t,
                   "survival: log-softmax of %d normal logits of deviation %.1f a beam, the best "
                   "of all go on",
                   SIM_BEAM_CANDIDATES, SIM_BEAM_DEVIATION);
    sim_table_note(&t, "wide beams over long answers share more here than published: a random "
                       "model drops beams at one rate for ever, real ones live longer");
    return sim_table_end(&t, o->folder, err);
}

int sim_branches(const struct sim_options *o, struct err *err)
{
    return print_samples(o, err) || print_beams(o, err) ? -1 : 0;
}

/* ---- E10: swap against recomputation -------------------------------------------------------- */

int sim_swaps(const struct sim_options *o, struct err *err)
{
    struct sim_setup setup = sim_setup_of("opt-13b");
    const int32_t n_tokens = 460; /* a running ShareGPT request at a random moment */
    struct sim_table t;

    sim_table_begin(&t, "e10-swap", "E10  bringing back 460 tokens of OPT-13B, ms",
                    "block\tswap out\tswap in\tboth\trecompute\trecompute over swap");
    for (int32_t size = 1; size <= 256; size *= 2) {
        struct sim_work work = {
            .n_rows = n_tokens, .n_seqs = 1, .kv_tokens = n_tokens, .block_size = size};
        double one_way = sim_swap_us(setup.model, n_tokens, size) / 1e3;
        double recompute = (double)sim_step_us(setup.model, &work) / 1e3;
        sim_table_row(&t, "%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f", size, one_way, one_way, 2 * one_way,
                      recompute, recompute / (2 * one_way));
    }
    sim_table_note(&t,
                   "link %.0f GB/s, %d us a copy, a block is %d copies; recompute: one prompt "
                   "of so many rows",
                   SIM_LINK_BYTES_PER_S / 1e9, SIM_COPY_US, 2 * setup.model->n_layers);
    sim_table_note(&t, "paper: swap is poor at small blocks, recompute is flat and never over 1.2 "
                       "times swap, both alike from 16 to 64");
    if (sim_table_end(&t, o->folder, err))
        return -1;
    return o->folder ? sim_table_plot(o->folder, t.name, "block size", "ms", 5, true, err) : 0;
}
