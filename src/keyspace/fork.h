/* fork.h - FORK and COPY: branch a conversation without copying or computing anything. */
#ifndef KEYSPACE_FORK_H
#define KEYSPACE_FORK_H

#include "keyspace/keys.h"

struct fork_request {
    struct bytes source;
    int32_t source_db;
    const struct bytes *targets; /* [n_targets] */
    int32_t n_targets;
    int32_t target_db;
    bool has_at;
    struct stream_id at; /* inclusive; an entry or a live piece */
    bool has_branch;     /* not with has_at */
    int32_t branch;      /* of the source's last generation, from 0 */
    bool replace;
};
/* Destinations written: all or 0 (source missing, or one exists without replace); -1: err. */
int32_t keys_fork(struct keyspace *ks, const struct fork_request *request, struct err *err);

#endif
