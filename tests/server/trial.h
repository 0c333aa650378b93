/* trial.h - one test case in a world: who else is connected, what was heard, what went wrong first.
 *
 * A trial that finds a fault goes on to its end, so that what it opened is closed; its first fault
 * is what trial_report prints. */
#ifndef TESTS_SERVER_TRIAL_H
#define TESTS_SERVER_TRIAL_H

#include <stdbool.h>
#include "base/str.h"
#include "tests/server/world.h"

struct trial {
    struct world *w;  /* borrowed */
    int other;        /* a client that stays through the whole trial */
    bool tcp;         /* how the clients on trial connect */
    struct str heard; /* by the other client, last; never NULL after trial_start */
    char fault[512];  /* empty: none so far */
};

/* Connects the other client. The world stands for as long as the trial. */
void trial_start(struct trial *t, struct world *w, bool tcp);
void trial_end(struct trial *t);

/* Notes a fault, unless there is one already. */
void trial_blame(struct trial *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The other client says a line; anything but this answer is a fault. */
void trial_expect(struct trial *t, const char *line, const char *answer);
/* The books add up, and the server answers. when: for the fault's text. */
void trial_check_books(struct trial *t, const char *when);

/* No generation and no client but the other one; then, keys and cache emptied and a minute later, no
 * block, and as many bytes (world_memory) and open files as before; 0: not compared. */
void trial_check_nothing_is_left(struct trial *t, size_t memory, int files);

/* End entries of key k, and how many of them have this finish (NULL: none has). The key's entries
 * are in t->heard afterwards. */
int trial_count_ends(struct trial *t, const char *finish, int *n_right);

/* What the kernel carries between the ends of a TCP connection takes real time on a busy machine:
 * gives it up to ms milliseconds to bring the end of the client's connection to the server. */
void trial_let_arrive(struct trial *t, int ms);

/* A line of TAP, the fault behind it when there is one. Returns how many faults: 0 or 1. */
int trial_report(struct trial *t, int number, const char *name);

/* Manners of going. Each returns the fd that is still open, or -1. */
int go_close(struct trial *t, int fd);
int go_half_close(struct trial *t, int fd);
int go_reset(struct trial *t, int fd);

#endif
