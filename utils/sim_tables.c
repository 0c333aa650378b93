/* sim_tables.c - the experiments without a load: branches, beams, swap against recomputation. */
#include "utils/sim_group.h"
#include "utils/sim_paper.h"

/* ---- E4, E5: sharing inside a group --------------------------------------------------------- */

static int print_sharing(const struct sim_options *o, bool is_beam, const char *const *paper,
                         struct err *err)
{
    static const char *const workloads[] = {"alpaca", "sharegpt"};
    static const int32_t widths[] = {2, 4, 6};
    struct sim_table t;

    sim_table_begin(&t, is_beam ? "e5-beams" : "e4-samples",
                    is_beam ? "E5  beams: blocks saved by sharing, %"
                            : "E4  parallel samples: blocks saved by sharing, %",
                    "load\twidth 2\twidth 4\twidth 6\tblocks copied a group (6)\tpaper, 2 to 6");
    for (int k = 0; k < 2; k++) {
        double saved[3];
        struct sim_sharing s;
        int32_t n_groups = (int32_t)(200 * o->part) + 1;
        for (int i = 0; i < 3; i++) {
            sim_group_run(sim_workload_find(workloads[k]), widths[i], is_beam, n_groups, 16,
                          o->seed, &s);
            saved[i] = 100 * (1 - s.physical / s.logical);
        }
        sim_table_row(&t, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t%s", workloads[k], saved[0], saved[1],
                      saved[2], (double)s.copies / n_groups, paper[k]);
    }
    if (is_beam)
        sim_table_note(&t,
                       "survival: log-softmax of %d normal logits of deviation %.1f a beam, "
                       "the best of all go on",
                       SIM_BEAM_CANDIDATES, SIM_BEAM_DEVIATION);
    else
        sim_table_note(&t,
                       "Alpaca is above at 4 and 6: most of what it shares lies in the few long "
                       "prompts, and one sigma for prompts and outputs has more of them");
    if (is_beam)
        sim_table_note(&t, "wide beams over long answers share more here than published: a random "
                           "model drops beams at one rate for ever, real ones live longer");
    return sim_table_end(&t, o->folder, err);
}

int sim_branches(const struct sim_options *o, struct err *err)
{
    static const char *const samples[] = {"6.1 - 9.8", "16.2 - 30.5"};
    static const char *const beams[] = {"37.6 - 55.2", "44.3 - 66.3"};

    return print_sharing(o, false, samples, err) || print_sharing(o, true, beams, err) ? -1 : 0;
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
    return o->folder ? sim_table_plot(o->folder, t.name, "block size", "ms", true, err) : 0;
}
