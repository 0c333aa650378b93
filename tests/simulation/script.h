/* script.h - a world and what happens in it, as plain numbers: drawn from a seed, printed, read. */
#ifndef TESTS_SIMULATION_SCRIPT_H
#define TESTS_SIMULATION_SCRIPT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "base/err.h"
#include "base/rng.h"

/* Sizes of a world. All of them are drawn, so that the almost-never happens somewhere. */
struct world_config {
    int32_t block_size, n_blocks;
    int32_t max_running, max_queue;
    int32_t budget, chunk; /* tokens of a step, and of one prompt in it */
    int32_t n_context, n_letters;
    int32_t hash_bits;
    int32_t n_roots;
    int32_t roots_seed;
    int32_t n_slots; /* blocks that host memory holds */
    int32_t swaps;   /* preemption by swap, else by recomputation */
    int32_t n_keys;  /* names of the keyspace; 0: the engine alone */
};

enum op_kind {
    OP_GEN,      /* a prompt cut from a root */
    OP_FORK,     /* publish a live branch, submit a child with its ids */
    OP_CONTINUE, /* a prompt made of an ended one's ids */
    OP_RESUME, /* an orphaned one goes on where it was, with those of its branches that had to end */
    OP_CANCEL, /* a live one */
    OP_CLEAR,  /* the cache */
    OP_PROBE,  /* a prompt */
    OP_CLOCK,  /* time passes */
    OP_STEP,   /* one turn of the engine */
    OP_IDLE,   /* turns until nothing is left, within a bound */
    /* on keys, beside CLEAR, CLOCK, STEP and IDLE */
    OP_KEY_ADD,   /* an entry */
    OP_KEY_GEN,   /* a client that waits, or not */
    OP_KEY_AGAIN, /* the same GEN as one before on that key */
    OP_KEY_LEAVE, /* a client that waits is gone */
    OP_KEY_FORK,
    OP_KEY_CANCEL,
    OP_KEY_DELETE,
    OP_KEY_EXPIRE,
    OP_KEY_PERSIST,
    OP_KEY_RENAME,
    OP_KEY_XDEL,
    OP_KEY_XTRIM,
    OP_KEY_FLUSH,
    OP_KEY_READ,   /* XRANGE, XREVRANGE or XREAD */
    OP_KEY_DESERT, /* all clients that wait for what runs there are gone */
    OP_N_KINDS
};

/* Arguments, by what they mean. Targets are taken modulo what is there when the operation runs, so a
 * script stays valid when operations are dropped from it. */
enum {
    ARG_TARGET = 0, /* FORK CONTINUE RESUME CANCEL: which one, and which branch; GEN PROBE: root */
    ARG_LENGTH,     /* GEN PROBE CONTINUE: ids of it that are taken, at most */
    ARG_VARIANT,    /* seed of what is changed and added; 0: nothing is changed */
    ARG_EXTRA,      /* ids added behind */
    ARG_USER,
    ARG_MAX_TOKENS, /* GEN on keys: 0 is the default */
    ARG_FLAGS,      /* enum op_flag */
    ARG_SEED,
    ARG_PRIORITY,
    ARG_DEADLINE, /* ms from now; 0: none */
    ARG_REACT,    /* enum op_react, what its callbacks do */
    ARG_BRANCHES, /* 0 is 1 */
    ARG_LAST,     /* keys: KEY_ID */
    OP_MAX_ARGS,
    /* CANCEL */ ARG_FINISH = 1,
    /* CLOCK */ ARG_MS = 0,
    /* STEP */ ARG_DONE = 0,
    ARG_FAIL = 1,
    ARG_LATE = 2,
    /* on keys: 0 is the name; ADD and GEN share LENGTH, VARIANT (ADD: 0 is an entry without a
       meaning) and EXTRA with GEN above */
    KEY_ROOT = 4,
    KEY_MODE = 8, /* GEN: enum key_mode */
    KEY_NO_PROMPT = 10,
    KEY_ID = ARG_LAST,  /* GEN: which of three tokens; 0: none */
    KEY_BACK = 1,       /* AGAIN: how many GENs of that name before the last */
    KEY_TARGET = 1,     /* FORK, RENAME */
    KEY_TARGET_TOO = 2, /* FORK; -1: none */
    KEY_AT = 3,         /* FORK; -1: none */
    KEY_REPLACE = 4,    /* FORK */
    KEY_BRANCH = 5,     /* FORK: BRANCH this - 1; 0: none */
    KEY_ONLY_NEW = 2,   /* RENAME */
    KEY_MS = 1,         /* EXPIRE */
    KEY_INDEX = 1,      /* XDEL: which entry; XTRIM: how many stay */
    KEY_REVERSE = 1,    /* READ */
    KEY_FROM = 2,       /* READ: from the entry behind this - 1; 0: from the beginning */
    KEY_COUNT = 3,      /* READ: so many at most; 0: all */
};
enum op_flag {
    FLAG_IGNORE_EOS = 1,
    FLAG_GREEDY = 2,
    FLAG_REPEAT = 4,
    FLAG_COUNTS = 8,
    FLAG_BAN_A = 16,
    FLAG_STOPS = 32,
    FLAG_LONG = 64, /* keys: so much text that a job tokenises it */
    FLAG_BEAM = 128,
    FLAG_EARLY = 256, /* the beam ends as soon as its answers are there */
    FLAG_LOGPROBS = 512,
    FLAG_PROMPT_LOGPROBS = 1024,
    FLAG_WITH_INFO = 2048, /* keys: clients are told the end entries */
    FLAG_MOST_STOP = 4096, /* nearly every letter is a stop string: beams get narrow */
};
enum key_mode { KEY_WAITS, KEY_ASYNC, KEY_BLOCKS, KEY_N_MODES };
enum op_react { REACT_NONE, REACT_CANCEL, REACT_FORK, REACT_CONTINUE, REACT_N };

struct op {
    enum op_kind kind;
    int32_t args[OP_MAX_ARGS];
};

struct script {
    struct world_config config;
    struct op *ops; /* [n_ops] owns */
    int32_t n_ops, cap;
};

/* draw.c: what is drawn, and what of it is given. */
enum draw_kind {
    DRAW_ENGINE,
    DRAW_KEYS,
    DRAW_BLOCK_1,
    DRAW_BLOCK_4,
    DRAW_BLOCK_16,
    DRAW_SMALLEST, /* pools of one to three blocks */
    DRAW_NO_HOST,  /* swap without host memory */
    DRAW_HASH,     /* digests that collide all the time */
    DRAW_LIVENESS, /* steps fail, deadlines pass, clients go; then everything must drain */
    DRAW_N_KINDS
};
const char *draw_kind_name(enum draw_kind kind);
void script_draw(struct script *s, enum draw_kind kind, uint64_t seed, int32_t n_ops);

/* script.c */
void script_add(struct script *s, const struct op *op);
void script_copy(struct script *to, const struct script *from);
void script_free(struct script *s);
void script_print_op(const struct op *op, FILE *out);
void script_print(const struct script *s, FILE *out);
int script_read(struct script *s, const char *path, struct err *err);

#endif
