// SPDX-License-Identifier: Apache-2.0
//
// How the ranks of one tensor-parallel group combine their parts. Calls are queued on the exec's
// stream like kernels; a failure goes to exec->status. With one rank they cost nothing.
#ifndef MSGL_DISTRIBUTED_COMMUNICATOR_H
#define MSGL_DISTRIBUTED_COMMUNICATOR_H

#include <stddef.h>

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
} msgl_comm_ops;

struct msgl_comm { // first member of every communicator's own struct
    const msgl_comm_ops *ops;
    int rank, size;
};

// The group of one rank: nothing to combine.
void msgl__comm_self_init(msgl_comm *c);

#endif
