// SPDX-License-Identifier: Apache-2.0
//
// What rank 0 says to the others, a frame each (message/frame.h). Structs go as they are; pointers
// in them mean nothing and are set anew.
#ifndef MSGL_ENGINE_RANK_WIRE_H
#define MSGL_ENGINE_RANK_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/err.h"
#include "distributed/group.h"

struct msgl_rank_place; // engine/ranks.h

typedef enum msgl_wire_kind {
    MSGL_WIRE_PLAN = 1, // msgl_rank_plan
    MSGL_WIRE_MEMORY,   // size_t: bytes that a rank can take; from the others
    MSGL_WIRE_EXCHANGE, // what ranks tell each other before they are ready; to and from the others
    MSGL_WIRE_READY,    // msgl_err, code 0: can follow; from the others
    MSGL_WIRE_TOKENS,   // msgl_wire_tokens, ids, then their pages in each table
    MSGL_WIRE_EXTRA,    // msgl_wire_extra, msgl_bias, breakers, listed tokens, embeds
    MSGL_WIRE_SUBMIT,   // int32_t: whole rows, msgl_batch, its requests; of each saves, pages,
                        // drafts, masks
    MSGL_WIRE_ADAPTER,  // int32_t: slot, then the folder with its NUL, or nothing: it is emptied
    MSGL_WIRE_LOADED,   // the adapter that is being read goes to its slot
    MSGL_WIRE_OPTIONS,  // rank 0's, for those that it has not forked
    MSGL_WIRE_END,      // to them: rank 0 ends on purpose
    MSGL_WIRE_ADMIN,    // msgl_wire_admin, path, group, host; data of MSGL_ADMIN_TENSORS and
                        // _RECEIVE follow in messages:
    MSGL_WIRE_DATA,     // bytes
} msgl_wire_kind;

typedef struct msgl_wire_tokens {
    int32_t table_idx, pos, n;
} msgl_wire_tokens;

typedef struct msgl_wire_extra {
    int32_t table_idx, num_bias, num_breakers, num_listed, hidden, num_embeds, embed_dim;
    int32_t pair_from; // what else pooling wants of a text, rank 0 alone reads
} msgl_wire_extra;

typedef struct msgl_wire_admin {
    int32_t kind, tags, discard;
    int32_t path, group, host; // bytes of them
    int32_t port, rank, size, unused;
    uint64_t total;
} msgl_wire_admin;

typedef struct msgl_wire { // {0}: empty; memory grows to the longest message
    char *bytes;
    size_t used, at, room;
    bool failed; // no memory: sending it is refused
} msgl_wire;

// Rank 0's ways to the others.
struct msgl_ranks {
    msgl_group *group;
    int32_t count; // of the others
    int fds[MSGL_GROUP_MAX_SIZE];
    int num_forked;
    pid_t pids[MSGL_GROUP_MAX_SIZE]; // of the first ones, which it has forked
    // Of ranks that have met over TCP: between the watches, and for data (-1: none).
    int beats[MSGL_GROUP_MAX_SIZE], data[MSGL_GROUP_MAX_SIZE];
    msgl_wire message; // that is being made
};

void msgl__wire_begin(msgl_wire *w, msgl_wire_kind kind);
void msgl__wire_put(msgl_wire *w, const void *p, size_t bytes);
// The whole message; blocks while the other end does not read, unless a rank of the group (or NULL)
// is to blame. MSGL_EPEER: it is gone, or of no use any more; MSGL_ENOMEM; MSGL_ELIMIT: longer than
// any is.
int msgl__wire_send(msgl_wire *w, int fd, const msgl_group *group);
// The next message, whole, and its kind; blocks as sending does, and takes first what has come.
// MSGL_EPEER: the other end is gone, or of no use any more; MSGL_ENOMEM; MSGL_ELIMIT: longer than
// any is.
int msgl__wire_receive(msgl_wire *w, int fd, const msgl_group *group);
// The next bytes of a message received, where they lie until the next one is; the first is aligned
// as malloc's memory. NULL: it has no more so many.
const void *msgl__wire_take(msgl_wire *w, size_t bytes);
// The same, copied; false: it has no more so many.
bool msgl__wire_get(msgl_wire *w, void *p, size_t bytes);
void msgl__wire_free(msgl_wire *w);

// follow.c: a rank other than 0, from its engine to the end of rank 0. 0: rank 0 ended on purpose
// and said so; MSGL_EPEER: it, or another rank, is gone; else what rank 0 was told.
int msgl__ranks_follow(const msgl_options *o, struct msgl_rank_place *place);

#endif
