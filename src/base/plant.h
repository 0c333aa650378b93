/* plant.h - planted faults: PLANTED(name) is 0 in the product, a run-time choice in a test build.
 *
 * A random test is worth what its oracle sees, so the simulation must catch faults that stand in
 * the real code. Each row below is one; the code asks `if (PLANTED(HASH_ALONE))` at the place where
 * somebody might really have got it wrong. Libraries of a test build are compiled with -DKV_PLANT
 * and linked by the simulation only, which chooses one row at a time and fails when it survives.
 * In the product PLANTED() is the constant 0: the compiler drops the branch. */
#ifndef BASE_PLANT_H
#define BASE_PLANT_H

/* name, what goes wrong */
/* clang-format off */
#define PLANTS(X)                                                                                 \
    X(HIT_UNCOUNTED, "the last matched block is not counted")                                     \
    X(COPY_LEFT_OUT, "a block is used as if copied, and no copy is asked for")                    \
    X(DOUBLE_DROP, "release drops the last block of a table twice")                               \
    X(HITS_KEPT, "matched blocks stay counted when admission fails")                              \
    X(HASH_ALONE, "a hit is decided by the hash")                                                 \
    X(PUBLISHED_EARLY, "a block is inserted when its step is planned, not when it is done")       \
    X(BELOW_COUNT, "a row is written below a published count")                                    \
    X(EVICT_HELD, "eviction takes a referenced block")                                            \
    X(PREEMPTED_LAST, "a preempted generation loses its arrival")                                 \
    X(RESUME_PROMPT, "a resumed generation counts its prompt only")                               \
    X(NEVER_FIT, "what can never fit is queued")                                                  \
    X(NOTHING_LEFT, "the whole prompt is matched, nothing is left to compute")                    \
    X(NARROW_COUNT, "reference counts have three bits")                                           \
    X(EVICT_INNER, "eviction takes a block that has children")                                    \
    X(PROMISE_HIT, "a promised block is a hit")                                                   \
    X(PROMISE_LEFT, "promises survive the release of their leader")                               \
    X(PROMISE_MISSED, "nobody waits for a promise")                                               \
    X(TAKEOVER_MISSED, "an equal confirmed block does not end a promise")                         \
    X(COPY_UNPINNED, "the source of a copy is not counted")                                       \
    X(COPY_LONG, "a copy takes one token more than is common")                                    \
    X(COPY_KEPT, "the source of a copy is never let go")                                          \
    X(TAIL_LONG, "a tail says one token more than is confirmed")                                  \
    X(NAMESPACE_MET, "two users share a tree")                                                    \
    X(MERGE_UNCOUNTED, "merging does not count the block it merges onto")                         \
    X(TAKE_FIRST, "new blocks are taken before the matched ones are counted")                     \
    X(PAST_HEAD, "a generation is admitted past the head of the queue")                           \
    X(ARRIVAL_UNSORTED, "the victim of preemption is the first in order")                         \
    X(LEAK_CANCELLED, "cancelling a running generation keeps its first block")                    \
    X(END_TWICE, "a generation that ends by length ends twice")                                   \
    X(TOKEN_LOST, "the last token before a preemption is forgotten")                              \
    X(FAILED_CONFIRMED, "what a failed step has written is confirmed")                            \
    X(DEADLINE_QUEUED, "deadlines of the queued are not looked at")                               \
    X(DEADLINE_LATER, "an earlier deadline than the known one is missed")                         \
    X(HELD_OUT, "the beginning of a stop string goes out")                                        \
    X(STOP_PER_TOKEN, "stop strings are looked for inside single tokens")                         \
    X(RESUMED_AGAIN, "a resumed generation tells its old text again")                             \
    X(BUDGET_OVERRUN, "decodes do not count against the budget of a step")                        \
    X(CHUNK_UNCUT, "a chunk of a prompt ends inside a block")                                     \
    X(QUEUE_UNBOUNDED, "the queue has no bound")                                                  \
    X(BOOST_MISSED, "a leader stays behind those who wait for it")                                \
    X(PREEMPT_ADMITS, "a step that preempted admits")                                             \
    X(RESERVE_OVERRUN, "admission counts blocks that are not there")                              \
    X(LOOK_BLIND, "no full block is ever found")                                                  \
    X(RUN_SHORT, "a copy is taken from the first sibling, not from the best")                     \
    X(RESERVE_DOUBLE, "admission leaves twice the reserve")                                       \
    X(ADMIT_ONE, "a step admits one generation only")                                             \
    X(SITTER_WRITES, "who waits for blocks that are copied out writes into a shared one")          \
    X(SITTER_OVERTAKEN, "those behind take the blocks that somebody waits for")                   \
    X(ATTACH_ANY, "any GEN attaches to the one that runs")                                        \
    X(DELIVER_NEVER, "an undelivered answer is generated again")                                  \
    X(READ_UNHEARD, "an answer that was read counts as undelivered")                              \
    X(RESUME_DOUBLES, "the entry that is resumed stays")                                          \
    X(ORPHAN_FOREVER, "a generation without clients runs on")                                     \
    X(ORPHAN_ATTACHED, "attaching does not stop the orphan clock")                                \
    X(REFUSED_WRITES, "the prompt is written before the engine has accepted")                     \
    X(TTL_LOST, "a fork lives for ever")                                                          \
    X(WAITERS_UNTOLD, "clients learn in a later turn that the key is gone")                       \
    X(AT_EXCLUSIVE, "AT leaves its entry out")                                                    \
    X(FORK_FORGETS, "a fork leaves out what was generated so far")                                \
    X(BUSY_WRITTEN, "XADD writes while a generation runs")                                        \
    X(MARK_FALLS, "entry ids follow the clock and the key alone")                                 \
    X(PIECE_LOST, "the last piece is not written")                                                \
    X(EXPIRE_BLIND, "an expired key is found")                                                    \
    X(BLOCK_FORGOTTEN, "BLOCK does not bound the wait")                                           \
    X(UNBORN_SEEN, "a key is seen while its first prompt is tokenised")
/* clang-format on */

enum plant {
    PLANT_NONE,
#define X(name, what) PLANT_##name,
    PLANTS(X)
#undef X
        PLANT_COUNT,
    PLANT_FIRST_OF_KEYS = PLANT_ATTACH_ANY,
};

#ifdef KV_PLANT
extern enum plant plant_chosen; /* defined by the simulation, set between worlds */
#define PLANTED(name) (plant_chosen == PLANT_##name)
#else
#define PLANTED(name) 0
#endif

#endif
