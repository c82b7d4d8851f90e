// SPDX-License-Identifier: Apache-2.0
//
// How the ranks of one tensor-parallel group combine their parts. Calls are queued on the exec's
// stream like kernels; a failure goes to exec->status, unless that tells of another one already.
// With one rank they cost nothing.
//
// All ranks make the same calls in the same order, with the same sizes, also in a step whose status
// tells of a failure: the others count on it. When a rank is to blame (distributed/group.h) or has
// left, calls that need it end with MSGL_EPEER, and every later call at once; what they were to
// write is then undefined. Calls that are not the same in all ranks end with MSGL_EINTERNAL where
// the communicator sees it, and blame the first rank whose call is not rank 0's.
#ifndef MSGL_DISTRIBUTED_COMMUNICATOR_H
#define MSGL_DISTRIBUTED_COMMUNICATOR_H

#include <stddef.h>

#include "core/err.h"
#include "distributed/group.h"

struct msgl_exec; // kernel/exec.h: where work is queued

typedef struct msgl_comm msgl_comm;

typedef struct msgl_comm_ops {
    const char *name;
    // buf[0, n) = the sum over ranks, added in rank order and in f32. Device memory, elements of
    // exec->act, in place.
    void (*all_reduce)(msgl_comm *c, struct msgl_exec *x, void *buf, size_t n);
    // out [size, n]: rank r's in [n] in row r. in may be its own row of out.
    void (*all_gather)(msgl_comm *c, struct msgl_exec *x, const float *in, size_t n, float *out);
    // buf [bytes] of rank `root` to all ranks.
    void (*broadcast)(msgl_comm *c, struct msgl_exec *x, void *buf, size_t bytes, int root);
    // No rank goes on before all have come here.
    void (*barrier)(msgl_comm *c, struct msgl_exec *x);
    // Frees what the communicator itself took, after its last call; the group stays.
    void (*destroy)(msgl_comm *c);
} msgl_comm_ops;

struct msgl_comm { // first member of every communicator's own struct
    const msgl_comm_ops *ops;
    int rank, size;
};

// The group of one rank: nothing to combine. c is the caller's, and destroy does nothing.
void msgl__comm_self_init(msgl_comm *c);

// Of the ranks of m's group, in their shared memory: elements are f32 in host memory, calls compute
// before they return, on the calling thread, which is the same for all calls. A rank has one; m
// outlives it. On success *out is the caller's, until its destroy. MSGL_ENOMEM.
int msgl__comm_shm_create(msgl_group_member *m, msgl_comm **out, msgl_err *err);

#endif
