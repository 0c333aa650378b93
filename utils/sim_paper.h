/* sim_paper.h - the experiments: each prints its table beside the paper's figures. */
#ifndef UTILS_SIM_PAPER_H
#define UTILS_SIM_PAPER_H

#include "utils/sim_run.h"
#include "utils/sim_table.h"

struct sim_options {
    uint64_t seed;
    double part;        /* of the full length of every load: 1, less in tests */
    const char *folder; /* for TSV and curves; NULL: none */
    const char *traces; /* folder of recorded loads; NULL: none */
};

int sim_memory(const struct sim_options *o, struct err *err);   /* E1, E3 */
int sim_rates(const struct sim_options *o, struct err *err);    /* E2 */
int sim_branches(const struct sim_options *o, struct err *err); /* E4, E5 */
int sim_prefixes(const struct sim_options *o, struct err *err); /* E6 */
int sim_chats(const struct sim_options *o, struct err *err);    /* E7 */
int sim_blocks(const struct sim_options *o, struct err *err);   /* E9 */
int sim_swaps(const struct sim_options *o, struct err *err);    /* E10 */
int sim_recorded(const struct sim_options *o, struct err *err); /* recorded traces */

/* What every run is made with but where a table varies it. */
struct sim_setup sim_setup_of(const char *model);

/* ---- latency over rate (sim_curve.c) ------------------------------------------------------- */

enum sim_load_kind { SIM_LOAD_PLAIN, SIM_LOAD_UNSHARED, SIM_LOAD_CHAT, SIM_LOAD_CHAT_KEPT };

/* One line of a plot: a policy on loads of a kind. */
struct sim_series {
    const char *name;
    const struct sim_policy *policy;
    enum sim_load_kind kind;
};
struct sim_curve {
    const char *name, *title, *model, *workload;
    double top_rate;                 /* requests/s at the right end */
    double seconds;                  /* of arrivals at each rate */
    const struct sim_series *series; /* [n_series] */
    int n_series;
};
enum { SIM_CURVE_POINTS = 12, SIM_CURVE_SERIES = 6 };
#define SIM_LATENCY_LIMIT_S 0.5 /* the latency at which rates are compared */
/* Prints it; rates [n_series] at which latency passes the limit. */
int sim_curve(const struct sim_options *o, const struct sim_curve *c, double *rates,
              struct err *err);

#endif
