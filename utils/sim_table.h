/* sim_table.h - tables on paper, as TSV, and as curves through gnuplot. */
#ifndef UTILS_SIM_TABLE_H
#define UTILS_SIM_TABLE_H

#include "base/err.h"
#include <stdbool.h>
#include "base/str.h"

/* One at a time; rows are lines of words joined by tabs. */
struct sim_table {
    const char *name; /* borrows; of the file */
    struct str rows;  /* owns; the first is the head */
    struct str notes; /* owns; lines printed below, and as comments in the file */
};

void sim_table_begin(struct sim_table *t, const char *name, const char *title, const char *head);
void sim_table_row(struct sim_table *t, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void sim_table_note(struct sim_table *t, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Prints it, and writes folder/name.tsv unless folder is NULL. Frees it. */
int sim_table_end(struct sim_table *t, const char *folder, struct err *err);
/* folder/name.svg from folder/name.tsv: columns 2 to `last` over the first. Without gnuplot the
 * script lies there as name.gp and nothing else happens. */
int sim_table_plot(const char *folder, const char *name, const char *x, const char *y, int last,
                   bool is_logarithmic, struct err *err);

#endif
