/* keys_world.h - keys over the engine's world, and their plain model: lists of texts. */
#ifndef TESTS_SIMULATION_KEYS_WORLD_H
#define TESTS_SIMULATION_KEYS_WORLD_H

#include "keyspace/keyspace.h"
#include "world.h"

enum {
    KEYS_MAX = WORLD_KEYS,
    KEY_BRANCHES = 8, /* of a GEN, at most */
    KEY_ENTRIES = 40, /* nothing is added to a key that holds so many */
    KEY_ENTRIES_CAP = KEY_ENTRIES + KEY_BRANCHES + 2,
    KEY_TEXT = 2 * WORLD_PROMPT,
    KEY_WAITERS = 24,
    KEY_PADDING = 2100, /* letters that the vocabulary lacks: a text of nothing but length */
    ORPHAN_MS = 150,
    BLOCK_MS = 60,
    DEFAULT_TOKENS = 50,
};

struct plain_entry {
    struct stream_id id;
    enum entry_kind kind;
    enum gen_finish finish; /* ENTRY_END */
    int64_t group;          /* ENTRY_END: of which generation, resumed or not */
    int32_t branch;         /* ENTRY_END */
    int32_t len;
    char text[KEY_TEXT]; /* letters */
};

/* A branch of a GEN. Owned by that. */
struct plain_branch {
    struct lone lone;            /* all that it will ever sample; of a beam: the prompt */
    uint64_t seen[LONE_MAX_IDS]; /* [generated] what the log-probability of each follows from; of
                                     resumed ones when they were drawn */
    int32_t n_resumed;           /* ids that it was resumed with */
    bool was_over;               /* it had ended before its group was resumed */
    enum gen_finish finish;      /* GEN_NONE while it goes on */
    int32_t n_final;             /* letters of its end entry; -1: nobody has seen that */
    char text[LONE_MAX_IDS];     /* [n_final] */
};

/* A GEN that was accepted, from then on; freed with the world. */
struct plain_gen {
    struct plain_gen *next;
    int32_t name;
    struct op op; /* the same once more is no second request */
    struct gen_options options;
    int64_t group;                 /* names its end entries; resumed: as before */
    struct plain_branch *branches; /* [n_branches] owns; NULL until it was accepted */
    int32_t n_branches;
    struct plain_beam *beam;        /* owns; NULL: branches go their own ways */
    int32_t n_beam_steps;           /* behind the last operation or turn */
    int64_t deadline_us, orphan_us; /* 0: none */
    enum gen_finish asked;          /* what somebody asked for; GEN_NONE: nobody did */
    enum gen_finish finish;         /* of all; GEN_NONE while it runs */
    bool is_unowned, is_delivered, is_key_gone;
    struct key_request
        *pending;    /* owns; while a job tokenises: not accepted yet, nothing is written */
    bool is_refused; /* after that */
    int64_t object;  /* of the key it was accepted on */
};

struct plain_key {
    bool exists;
    int64_t object; /* names the key itself: another one once it was gone; goes along with RENAME */
    int64_t expires_us;          /* 0: never */
    struct plain_entry *entries; /* [n of KEY_ENTRIES_CAP] owns */
    int32_t n;
    struct plain_gen *running, *last; /* borrow; last: of the last accepted GEN of this object */
};

/* An end as a client was told it. */
struct told {
    int32_t branch, len;
    enum gen_finish finish;
    char text[LONE_MAX_IDS];
};

struct client {
    struct gen_waiter waiter; /* first */
    struct keys_world *rig;
    bool is_used, with_info;
    struct plain_gen *gen; /* it waits for; NULL: it was answered in the call */
    int64_t block_us;      /* 0: no bound */
    int32_t n_answers;
    enum gen_answer_kind kind;
    char error[KEY_TEXT];
    struct told ends[KEY_BRANCHES]; /* [n_ends] */
    int32_t n_ends;
};

struct keys_world {
    struct world *world;   /* owns */
    struct keyspace *keys; /* owns */
    struct jobs *jobs;     /* owns; without threads: they run in the next turn */
    struct plain_key plain[KEYS_MAX];
    struct client clients[KEY_WAITERS];
    struct plain_gen *gens;    /* owns all */
    struct stream_id greatest; /* of all entry ids that were ever seen */
    struct stream_id floor;    /* of those before this operation or turn */
    int64_t n_objects, n_groups;
    uint64_t n_accepted, n_ended;
    uint64_t n_branches, n_ends;
    bool is_failing; /* the step that ends in this turn fails */
};

/* keys_world.c */
struct bytes keys_name(int32_t i, char out[8]);
struct key *keys_real(struct keys_world *k, int32_t i); /* NULL when it is missing */
struct key *keys_raw(struct keys_world *k, int32_t i);  /* unborn and expired ones too */
/* What runs on it in the engine; NULL: nothing does. */
const struct gen *keys_gen(struct keys_world *k, int32_t i);

/* The key that an operation names; name: its name. */
struct plain_key *keys_target(struct keys_world *k, const struct op *op, char name[8]);
void keys_expect(struct keys_world *k, const char *what, int64_t got, int64_t expected);
int32_t keys_write_letters(const struct world *w, const struct op *op, char *text);

/* keys_gen.c: clients and their GENs */
int32_t keys_waiting(const struct keys_world *k, const struct plain_gen *gen);
void keys_apply_leave(struct keys_world *k, const struct op *op);
void keys_apply_desert(struct keys_world *k, const struct op *op);
void keys_apply_gen(struct keys_world *k, const struct op *op);
void keys_apply_again(struct keys_world *k, const struct op *op);
void keys_collect(struct keys_world *k);
void plain_gen_free(struct plain_gen *gen);

/* keys_fork.c */
void keys_apply_fork(struct keys_world *k, const struct op *op);
void keys_apply_read(struct keys_world *k, const struct op *op);

/* keys_plain.c */
/* out [KEY_TEXT] <- the text without its padding; its length. */
int32_t plain_strip(struct bytes text, char *out);
void plain_refuse(struct plain_key *p); /* what is pending there will not be */
/* The model sees entry i of the first n; ends of group `but` aside (0: all count). */
bool plain_goes_on(const struct plain_entry *entries, int32_t n, int32_t i, int64_t but);
/* ids [LONE_MAX_IDS * 8 + ...] <- what the model sees, without the ends of group `but`. */
int32_t plain_sequence(const struct plain_key *p, int64_t but, int32_t *ids);
const struct plain_entry *plain_last_known(const struct plain_key *p);
bool plain_may_go_on(const struct plain_key *p);
void plain_append(struct keys_world *k, struct plain_key *p, const struct entry *entry,
                  int64_t group);
void plain_remove(struct keys_world *k, struct plain_key *p);
void plain_take_out(struct plain_key *p, int32_t at, int32_t n);
/* The end of the last branch stands, or the key is gone. */
void plain_end(struct keys_world *k, struct plain_gen *gen);

enum verdict {
    VERDICT_NEW,
    VERDICT_RESUME,
    VERDICT_ATTACH,
    VERDICT_DELIVER,
    VERDICT_REPLAY,
    VERDICT_ERROR
};
/* The generation that answers for the ID of an operation; NULL: none does. */
struct plain_gen *plain_find_replay(const struct keys_world *k, int32_t name, const struct op *op);
enum verdict plain_judge(const struct keys_world *k, int32_t name, const struct op *op);

/* keys_ends.c */
void keys_note(struct keys_world *k); /* how far beams have come, before anything happens */
void keys_sync(struct keys_world *k); /* adopts the ends that the real keys show */
/* The letters are the first of what the branch generates. */
bool plain_is_letters(const struct plain_branch *b, struct bytes text);

/* keys_check.c */
void keys_expire_plain(struct keys_world *k);
void keys_check(struct keys_world *k); /* all keys, all clients */

#endif
