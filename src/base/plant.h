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
    X(SHARE_UNCOUNTED, "a branch that takes a table does not count its last block")               \
    X(COPY_PUBLISHED, "a block becomes findable before its copy is done")                         \
    X(SWAP_CROSSED, "two blocks that are swapped out go to the slots of each other")              \
    X(SWAP_LONG, "a swapped branch claims the whole of its last block")                           \
    X(SWAP_ROOM_FIRST, "host memory is asked for room for the first branch only")                 \
    X(SWAP_UNHELD, "blocks are let go before they are copied out")                                \
    X(SWAP_COMMON_TWICE, "what branches have in common is swapped in once for each")              \
    X(SWAP_OVER_HITS, "what was found is swapped in all the same")                                \
    X(SLOT_EARLY, "a host slot comes back before it is copied in")                                \
    X(SWAP_COPIED, "who comes back from the host copies from a sibling too")                      \
    X(COMMON_UNCOUNTED, "blocks that branches have in common are counted once")                   \
    X(NEEDS_FEW, "of branches that share a block only the first counts as one that copies")       \
    X(COPIED_KEPT, "a branch that copies a shared block goes on counting it")                     \
    X(DISCARD_LEAKS, "a branch that is dropped keeps its last block")                             \
    X(WRITE_SHARED, "a branch writes into a block that others name")                              \
    X(RENAME_ONE, "merging renames a block in one branch only")                                   \
    X(HEAP_UNSIFTED, "the order of eviction is not mended when a leaf leaves it")                 \
    X(SLOT_SHARED, "a host slot counts two of those that need it")                                \
    X(PRIORITY_LOST, "the queue stands by arrival alone")                                         \
    X(LEAVING_TAKEN, "blocks that are copied out are taken in the same step")                     \
    X(BEAM_ALONE, "a beam goes on without waiting for the others")                                \
    X(GROUP_PARTLY, "a group that comes back gets blocks for its first branch only")              \
    X(WAITER_BLOCKS, "who waits for a promise lets nobody past when its branches are too many")   \
    X(ROOM_FOR_ONE, "admission looks at the next token of one branch only")                       \
    X(WAIVED_NEVER, "who waited for a promise leaves the reserve like anybody")                   \
    X(WAIVED_ALWAYS, "nobody leaves the reserve")                                                 \
    X(RESERVE_RECOMPUTE, "the reserve is that of recomputation where victims are swapped")        \
    X(RUNNING_GROUPS, "max-running counts groups, not branches")                                  \
    X(CHUNK_EACH, "max-chunk bounds each turn of sharing the budget, not the step")               \
    X(SHORT_LAST, "the shortest prompt waits behind long ones")                                   \
    X(SHORT_OVERRUN, "each branch of the shortest prompt gets a block, not all together")         \
    X(LEFTOVER_LOST, "what is left of the budget is not shared again")                            \
    X(LEAD_LOST, "branches are not told that the common blocks are computed")                     \
    X(SWAP_FAILED_KEPT, "what a failed step has copied out is trusted")                           \
    X(STREAM_ONE, "all branches draw from one stream")                                            \
    X(SAMPLE_FIRST, "every branch takes the first id of the group")                               \
    X(LAST_EARLY, "the first end that is told says that it is the last")                          \
    X(CANCEL_SHORT, "a cancel spares the last branch")                                            \
    X(BRANCHES_KEPT, "a branch that ends goes on counting as one that runs")                      \
    X(PUBLISH_OTHER, "a fork of a branch publishes it with the ids of the first")                 \
    X(LOGPROB_SHIFT, "log-probabilities stand beside the id before theirs")                       \
    X(START_FIRST, "every resumed branch goes on from the first")                                 \
    X(FRESH_AGAIN, "a group counts as fresh again when its branches with ids have ended")         \
    X(OVER_COUNTED, "a group cannot go on when one of its branches had filled the context")       \
    X(TOLD_FOUND, "rows that owe log-probabilities of the prompt are found in the cache")         \
    X(BEAM_TIES, "of equal sums the higher branch goes on")                                       \
    X(BEAM_LENGTH, "the score of an answer counts one id less")                                   \
    X(BEAM_OUTSIDE, "an end of text makes an answer wherever it stands")                          \
    X(BEAM_STALE, "a beam that takes a place has another last id")                                \
    X(BEAM_COUNTS, "penalties of a beam that takes a place are those of the one before")          \
    X(BEAM_DROPS, "the last beam gives its blocks back though it goes on")                        \
    X(BEAM_EARLY, "a beam ends as soon as its answers are there")                                 \
    X(BEAM_SUMS, "a beam that changes its place keeps the sum of that place")                     \
    X(BEAM_CUT, "a beam that is cancelled forgets what has not ended")                            \
    X(EVICT_NEWEST, "the block that was used last is evicted")                                    \
    X(EVICT_FIRST_IN, "being found again is no use: blocks go in the order of their first")       \
    X(EVICT_LOWEST, "blocks are evicted by their numbers")                                        \
    X(EVICT_ANY_LEAF, "the second of the heap goes, not the first")                               \
    X(LEAF_USED, "a block whose last child went counts as used then")                             \
    X(COPY_UNUSED, "being copied from is no use")                                                 \
    X(RELEASE_HEAD, "release lets the first block go first")                                      \
    X(COVER_UNUSED, "a block that covers what another would publish has not been used by that")   \
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
    X(UNBORN_SEEN, "a key is seen while its first prompt is tokenised")                           \
    X(REPLAY_NEVER, "an answer that stands is generated again though its ID is asked for")        \
    X(REPLAY_ANY, "another GEN with the same ID is answered too")                                 \
    X(FOLLOW_ALL, "the model sees the ends of all branches")                                      \
    X(FOLLOW_HIGHEST, "a conversation goes on with the highest branch that stands")               \
    X(ENDS_UNSORTED, "the ends of a group are taken in the order in which they were written")     \
    X(GROUP_SPLIT, "an entry that the model ignores splits a group")                              \
    X(GO_ON_LAST, "whether a conversation may go on is read from the end that was written last")  \
    X(SIBLINGS_KEPT, "a child of one branch holds the ends of the others too")                    \
    X(BRANCH_FIRST, "FORK BRANCH of what runs follows branch 0")                                  \
    X(BRANCH_BEHIND, "FORK BRANCH of what has ended keeps what stands behind it")                 \
    X(BRANCH_ENDED, "a branch that has ended is forked like one that runs")                       \
    X(BRANCH_BEST, "the i-th best of a running beam is its i-th row")                             \
    X(PIECE_FIRST, "AT in a piece of a branch gives the answer of branch 0")                      \
    X(PIECES_JOINED, "all branches write their pieces to the first")                              \
    X(READ_FIRST, "an answer counts as read only with the end of branch 0")                       \
    X(READ_EARLY, "what was read of a group before its last end is forgotten")                    \
    X(ENDS_PARTLY, "a group is answered though one of its ends was deleted")                      \
    X(FINISH_FIRST, "a group has ended as its first branch has")                                  \
    X(ERROR_FIRST, "who waits for a group is told the finish of its first branch")                \
    X(OVER_RESUMED, "branches that had ended are resumed with those that had not")                \
    X(RESUME_ONE, "of the ends that are resumed only the first leaves")                           \
    X(RESUME_RENAMED, "the ends of a group that was resumed are another group")                   \
    X(STARTS_PACKED, "branches that are resumed go on from each other's ids")                     \
    X(LINES_LOST, "a resumed answer tells log-probabilities of its new ids only")                 \
    X(PROMPT_EACH, "every branch tells the log-probabilities of the prompt")                      \
    X(FIT_ONE, "the default MAXTOKENS is lowered to what one branch has room for")                \
    X(GONE_KEPT, "blocks of a deleted conversation keep their place in the order")                \
    X(GONE_SHARED, "a deleted conversation takes along what others have used")                    \
    X(GONE_FORKED, "a deleted conversation takes along what it shares with its forks")
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
