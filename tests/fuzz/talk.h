/* talk.h - clients of a server in this process that check what they hear. */
#ifndef TESTS_FUZZ_TALK_H
#define TESTS_FUZZ_TALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/str.h"
#include "server/resp.h"
#include "tests/fuzz/grammar.h"
#include "tests/server/world.h"

enum { TALK_CLIENTS = FACTS_CLIENTS };

struct expected; /* talk.c */
struct features;

struct talker {
    int fd;                    /* -1: not connected */
    struct str unsent;         /* owns; requests that wait to be sent */
    struct str heard;          /* owns; the beginning of a reply */
    struct resp_reader mirror; /* owns; reads what is sent, as the server does */
    bool is_broken;            /* the mirror found broken protocol */
    struct expected *expected; /* [n_expected] owns; answers that are due, from first on */
    size_t first, n_expected, cap;
    bool is_loose;       /* asked for what cannot be counted: CLIENT REPLY, MONITOR */
    bool has_subscribed; /* messages may come unasked */
    int n_names[2];      /* channels and patterns that it is subscribed to */
    bool may_close;      /* QUIT, or an error that closes, was said */
};

struct talk {
    struct world *w;
    struct features *features; /* borrowed */
    struct talker clients[TALK_CLIENTS];
    struct facts facts;
    bool may_close;      /* somebody said CLIENT KILL or SHUTDOWN, or a fault was planted */
    bool is_configured;  /* CONFIG SET was said: other limits hold */
    uint64_t lose_at;    /* the so-many'th call for memory from now on fails; 0: none does */
    bool lose_all;       /* and all behind it */
    uint64_t n_answered; /* requests, broken ones included */
};

void talk_begin(struct talk *t, struct world *w, struct features *features);
void talk_end(struct talk *t); /* hangs up and frees */

/* n turns of the loop, in which memory may fail as lose_at says. */
void talk_work(struct talk *t, int n);
/* Connects unless it is; false: the server does not take it. */
bool talk_dial(struct talk *t, unsigned client);
void talk_leave(struct talk *t, unsigned client);
/* Sends the first n bytes of unsent (all: SIZE_MAX), and lets the server work. */
void talk_send(struct talk *t, unsigned client, size_t n);
/* Reads what has come and holds it against what is due. */
void talk_hear(struct talk *t, unsigned client);
bool talk_is_waiting(const struct talk *t, unsigned client); /* answers are due */
/* At rest nothing may be due any more. */
void talk_check_answered(struct talk *t, unsigned client);
/* The server's side of the connection; NULL: gone. */
struct client *talk_server_side(const struct talk *t, unsigned client);

/* Says what is wrong and aborts. */
_Noreturn void talk_fault(const struct talk *t, unsigned client, const char *what);

#endif
