/* engine.h - generations: submit, fork, cancel, step; the one entrance of the main thread's loop.
 *
 * A generation is a group of one branch or more: they share the prompt, each draws from its own
 * stream, has its own output and its own end. It is admitted, preempted and cancelled as a whole.
 *
 * The engine owns the cache, the queue and the running generations; it knows the runner only by its
 * contract and the keys not at all. What comes out of a generation goes up through callbacks that
 * are given at submission. Everything here belongs to the main thread, and nothing waits.
 *
 *     engine_turn:  step done? take results -> plan and launch the next -> call output and end
 *
 * Callbacks come out of engine_turn and engine_cancel only, after the next step is launched. A
 * callback may submit, cancel and publish. A gen is valid from engine_submit until the end callback
 * of its last branch (is_last) has returned.
 *
 * A turn tells for `tell_us` and leaves the rest to the next. What a client asks in between finds a
 * branch that has ended and is not told as one that still goes on, with all that it has made. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/str.h"
#include "cache/namespace.h"
#include "kernels/plan.h"
#include "model/tokenizer.h"
#include "runner/runner.h"

struct engine;
struct gen;
struct lineage; /* of a conversation: cache/lineage.h */

enum gen_finish {
    GEN_NONE,
    GEN_STOP,
    GEN_LENGTH,
    GEN_DEADLINE,
    GEN_CANCELLED,
    GEN_FORKED,
    GEN_ORPHANED,
    GEN_ERROR,
    GEN_N_FINISHES
};
const char *gen_finish_name(enum gen_finish f); /* "stop" ... */

/* What a branch has generated before, when a group is resumed. */
struct gen_start {
    const int32_t *ids; /* [n] copied */
    int32_t n;
    bool is_over; /* it ended then: nothing of it is generated or called back */
};

struct gen_options {
    int32_t n_branches; /* 1 .. ENGINE_MAX_BRANCHES; 0 is 1 */
    bool beam; /* n_branches are a beam: the best answers, best first; no portions, none resumed;
                  temperature, top-k, top-p, min-p and seed are not looked at */
    float length_penalty; /* of a beam's score */
    bool early_stop;      /* a beam ends as soon as n_branches answers are there */
    /* [n_branches] borrowed for the call; NULL: all begin at the prompt's end. Those that go on have
     * ids, or none has: with both, what check_submit counts may not be enough to let the group in.
     * The ids count as generated, and are put through the detokenizer again to rebuild its state;
     * they are not output a second time. */
    const struct gen_start *starts;
    struct bytes carry; /* borrowed for the call; bytes of an unfinished character at the prompt's
                           end, which go out with the first output of each branch */
    int64_t max_tokens; /* of the generation as a whole, resumed ids included */
    float temperature, top_p, min_p, repeat, presence, frequency;
    int32_t top_k;
    uint64_t seed;
    bool ignore_eos;
    bool logprobs;             /* report them for each generated id, with the n_logprobs best */
    int32_t n_logprobs;        /* 0 .. ENGINE_MAX_LOGPROBS */
    bool prompt_logprobs;      /* the same for the ids of the prompt, with branch 0 */
    int32_t n_prompt_logprobs; /* 0 .. ENGINE_MAX_LOGPROBS */
    struct lineage
        *lineage;        /* of the conversation, borrowed until its end is told; NULL: of none */
    int32_t priority;    /* higher first in the one queue order; 0 for everybody by default */
    int64_t deadline_us; /* clock_mono_us at which it ends with GEN_DEADLINE; 0: none */
    const struct bytes *stops; /* [n_stops] copied; at most 64 of 1 KiB */
    int32_t n_stops;
    const struct plan_bias *bias; /* [n_bias] copied; at most 1,024 */
    int32_t n_bias;
};
struct gen_options gen_options_default(void);

/* One portion of output: whole UTF-8 characters (bytes of malformed ones as they are), nothing that
 * may still become part of a stop string. */
struct gen_output {
    int32_t branch;
    struct bytes text; /* since the last call; never empty */
    int32_t n_ids;     /* ids generated so far whose text has been delivered in full */
};
struct gen_end {
    int32_t branch;
    bool is_last; /* the generation is over, and gone when the callback has returned */
    enum gen_finish finish;
    struct bytes matched; /* the stop string; data NULL otherwise */
    struct bytes text;    /* all text of the generation (resumed part included), stop string cut */
    const int32_t *ids; /* [n_ids] ids that stand for the text: as sampled, without the end-of-text
                           id; where a stop string was cut out of a token, its rest anew */
    int32_t n_ids;
    struct bytes unfinished; /* bytes of a character at the end of ids that text does not hold */
    int32_t n_prompt;        /* ids before the first generated one */
    int32_t n_cached;        /* of them found at the first admission */
    int32_t n_generated; /* as counted: those of a cut stop string too, the end-of-text id not */
    double score;        /* of a beam: sum of log-probabilities / length^length_penalty */
    /* For each generated id, as sampled, its log-probability and the n_best best ids with theirs:
     * [n_generated, 1 + n_best], raw (before bias, penalties and temperature); those of a beam are
     * what it adds up, so with bias and penalties. An id of -1: there is none; of a resumed id all but
     * the id itself are unknown (NaN, -1). NULL: not asked for. */
    const struct chosen *logprobs;
    int32_t n_best;
    /* The same for the ids of the prompt: [n_prompt_known, 1 + n_prompt_best], n_prompt_known of
     * n_prompt when it ended early. Nothing precedes the first id: NaN, -1. NULL: not asked for, or
     * not branch 0. */
    const struct chosen *prompt_logprobs;
    int32_t n_prompt_known, n_prompt_best;
    int64_t queued_ms, prefill_ms, decode_ms;
    const char *error; /* GEN_ERROR: what and why; NULL otherwise */
    /* all of it is borrowed until the callback returns */
};
/* Log-probabilities that are new, as the end tells them all: rows [n, 1 + n_best] of the ids that
 * follow those of the call before. */
struct gen_rows {
    int32_t branch;
    bool of_prompt;
    const struct chosen *rows;
    int32_t n, n_best;
};
struct gen_events {
    void (*output)(void *owner, const struct gen_output *output);
    void (*end)(void *owner, const struct gen_end *end); /* exactly once a branch */
    /* As they come, of a beam in portions before its end; all before the end. NULL: not wanted, the
     * end tells them too. */
    void (*rows)(void *owner, const struct gen_rows *rows);
};

/* As COMMANDS.md limits what a client gives; a caller checks before. */
enum {
    ENGINE_MAX_BIAS = 1024,
    ENGINE_MAX_BRANCHES = 64,
    ENGINE_MAX_LOGPROBS = 20,
    ENGINE_MAX_BEAM = 16
};

struct engine_config {
    struct runner *runner;             /* borrowed */
    const struct tokenizer *tokenizer; /* borrowed */
    int32_t max_batch_tokens, max_chunk, max_running, max_queue;
    bool swap;         /* preemption-mode: blocks to host memory, where the runner has some */
    int32_t hash_bits; /* of the prefix index; 0: all. Tests cut it, so that digests collide */
    int64_t tell_us;   /* of callbacks a turn; 0: no bound */
};
/* The limits a plan needs so that max_running sequences of any length fit into one step; engine_new
 * refuses a runner whose own limits are smaller. n_end_ids: what ignore_eos may have to ban. */
struct plan_limits engine_plan_limits(int32_t max_batch_tokens, int32_t max_running,
                                      int32_t n_context, int32_t n_vocab, int32_t block_size,
                                      int32_t n_end_ids);
struct engine *engine_new(const struct engine_config *config, struct err *err);
/* Running generations are dropped without callbacks. A step that runs is the runner's: close that
 * before. */
void engine_free(struct engine *e);

enum submit_error { SUBMIT_OK, SUBMIT_TOO_LARGE /* OOM */, SUBMIT_QUEUE_FULL, SUBMIT_CONTEXT };
/* Queues a generation over the prompt ids [n] (copied). Nothing is called back from here. On refusal
 * *gen is NULL and err names limit and value. */
enum submit_error engine_submit(struct engine *e, const struct cache_namespace *ns,
                                const int32_t *ids, int32_t n, const struct gen_options *options,
                                const struct gen_events *events, void *owner, struct gen **gen,
                                struct err *err);
/* The most tokens that each of n_branches can ever generate after a prompt of n_prompt ids: what fits
 * into the pool and into the context; 0 when the prompt alone is too large, or when so many branches
 * can never run at once. */
int64_t engine_fit_group(const struct engine *e, int32_t n_prompt, int32_t n_branches);
/* Ends all its branches now, queued or running, and calls output for what was held back, then end.
 * One that has ended already and whose end is still to be told keeps its own finish; it is told
 * now. */
void engine_cancel(struct engine *e, struct gen *g, enum gen_finish finish);
/* FORK of a running source: its half-filled block becomes findable, that of branch 0 or of any
 * other; of a beam that of the branch-th best. Takes no reference. */
void engine_publish(struct engine *e, struct gen *g);
void engine_publish_branch(struct engine *e, struct gen *g, int32_t branch);

/* A conversation is copied: *child (one reference) begins with what *from has computed. *from may be
 * another one then, which g goes on with: its running generation, or NULL. */
void engine_fork_lineage(struct engine *e, struct gen *g, struct lineage **from,
                         struct lineage **child);
/* A conversation is gone, its generation has ended: blocks that it alone has used are evicted before
 * all others. */
void engine_drop_lineage(struct engine *e, struct lineage *l);
/* Blocks that it alone has used since its last fork; n_cached: those that no generation holds. */
int32_t engine_count_lineage(const struct engine *e, const struct lineage *l, int32_t *n_cached);

/* What a branch made so far, borrowed until the next engine call: for FORK and GENINFO. `text` is
 * all text including held-back bytes that are whole characters. Blocks are those of the branch. */
struct gen_view {
    int32_t n_branches, n_live; /* of the generation; live: not ended */
    enum gen_finish finish;     /* of the branch; GEN_NONE while it goes on */
    bool running;               /* else queued */
    int32_t place;              /* in the queue, from 1; 0 when running */
    struct bytes text;
    struct bytes unfinished;
    const int32_t *ids; /* [n_ids] generated so far */
    int32_t n_ids;
    int32_t n_prompt, n_cached, n_computed, n_generated;
    int32_t n_blocks;         /* of its table */
    int32_t n_swapped_blocks; /* in host memory; a shared one counts for each of its branches */
    int64_t queued_ms, prefill_ms, decode_ms;
};
void gen_view(const struct gen *g, struct gen_view *view); /* of branch 0 */
/* Blocks of all its branches, each once. */
struct gen_blocks {
    int32_t n;
    int32_t n_shared;  /* of them: named by more than one branch, of it or of others */
    int32_t n_swapped; /* in host memory, none of them among n */
};
void gen_count_blocks(const struct gen *g, struct gen_blocks *blocks);
/* Of a running beam the branch-th best so far; its text and ids are those of the last
 * engine_show_beam. */
void gen_view_branch(const struct gen *g, int32_t branch, struct gen_view *view);
/* Makes text and ids of the branch-th best so far; nothing to do where g is no beam, or has ended. */
void engine_show_beam(struct gen *g, int32_t branch);

/* One turn of the loop; true when it did something or a step is running. */
bool engine_turn(struct engine *e);
bool engine_is_idle(const struct engine *e);             /* nothing queued, running or in flight */
bool engine_has_to_tell(const struct engine *e);         /* something is left for the next turn */
int64_t engine_next_deadline_us(const struct engine *e); /* 0: none */

/* Tokens of ids that the cache holds, tails included; at most n - 1. Changes nothing. */
int32_t engine_probe(struct engine *e, const struct cache_namespace *ns, const int32_t *ids,
                     int32_t n);
int32_t engine_cache_clear(struct engine *e);        /* blocks dropped */
int engine_audit(struct engine *e, struct err *err); /* 0, or the fault by name */

struct engine_stats {
    int32_t n_blocks, block_size, free_blocks, cached_blocks, used_blocks, promised_blocks;
    int32_t shared_blocks;   /* of the used ones: named by several branches */
    int32_t unwanted_blocks; /* of the cached ones: their conversation is gone */
    int32_t running, queued;
    uint64_t steps, rows, prompt_tokens, cached_tokens, computed_prompt_tokens, generated_tokens;
    uint64_t hits_full, hits_tail, copies, evictions, preemptions, merged, rejected_matches;
    uint64_t dropped_tokens;     /* computed, then thrown away by preemption */
    int32_t n_slots, free_slots; /* blocks of host memory */
    uint64_t swapped_out_blocks, swapped_in_blocks;
    uint64_t swap_full; /* preemptions that found no room there */
    uint64_t ends[GEN_N_FINISHES];
    int64_t last_step_us, max_step_us;
};
void engine_stats(const struct engine *e, struct engine_stats *stats);

#endif
