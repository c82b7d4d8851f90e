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

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/err.h"
#include "distributed/group.h"

struct msgl_exec;       // kernel/exec.h: where work is queued
struct msgl_norm_stats; // kernel/calls.h
struct msgl_mpi_api;    // distributed/mpi/plugin.h
struct msgl_peer_sum;   // cuda/peer_sum.h

typedef struct msgl_comm msgl_comm;

// residual += scale * (the sum over ranks of `in`), both [rows, dim] of exec->act, dense.
typedef struct msgl_reduce_add {
    const void *in;
    void *residual;
    float scale;
    int32_t rows, dim;
    // NULL, or the weight of the norm behind, and empty norm_stats that may be filled for it.
    const float *next_norm;
    struct msgl_norm_stats *norm_stats;
} msgl_reduce_add;

typedef struct msgl_comm_ops {
    const char *name;
    // buf[0, n) = the sum over ranks, the same bits for all of them. Device memory, in place. On
    // the CPU dtype is f32, sums are in rank order, and with n 0 no rank goes on before all have
    // come here. Sums of other types may be rounded on their way from rank to rank.
    void (*all_reduce)(msgl_comm *c, struct msgl_exec *x, msgl_dtype dtype, void *buf, size_t n);
    // The same bits as an all_reduce and an addition. NULL, or false: not done, nor anything else.
    bool (*all_reduce_add)(msgl_comm *c, struct msgl_exec *x, const msgl_reduce_add *a);
    // Where the parts of one sum of n elements meet, for a product that adds them itself
    // (msgl_linear_call.sum); the communicator's. NULL, or returns NULL: nowhere.
    const struct msgl_peer_sum *(*meeting)(msgl_comm *c, size_t n);
    // out [size, n]: rank r's in [n] in row r. in may be its own row of out.
    void (*all_gather)(msgl_comm *c, struct msgl_exec *x, const float *in, size_t n, float *out);
    // out = what each rank, in their order, has for this one; in: what this one has for each of
    // them. counts [size, size], host memory, the same on all ranks: elements of exec->act from
    // rank r to rank s at r * size + s. in and out do not overlap. NULL: on GPUs, and over TCP.
    void (*all_to_all)(msgl_comm *c, struct msgl_exec *x, const void *in, const size_t *counts,
                       void *out);
    // buf [bytes] of rank `root` to all ranks. NULL: likewise.
    void (*broadcast)(msgl_comm *c, struct msgl_exec *x, void *buf, size_t bytes, int root);
    // From any thread, when a rank is to blame: calls that wait on the device end. NULL: they see
    // it.
    void (*abort)(msgl_comm *c);
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

// Of the processes of an MPI job, which are the ranks of m's group in this order; the same sums as
// shm's, bit by bit. Elements and calls as there. api: set up (distributed/mpi/plugin.h), for this
// communicator alone. When a call fails, MPI may go on writing what it was to receive.
int msgl__comm_mpi_create(msgl_group_member *m, const struct msgl_mpi_api *api, msgl_comm **out,
                          msgl_err *err);
// Of ranks on hosts that have nothing but TCP: fds [size] are rank 0's connections to the others,
// of which [0] is unused, or those' to rank 0 at [0]; the caller's. The same sums as shm's.
int msgl__comm_tcp_create(msgl_group_member *m, const int *fds, msgl_comm **out, msgl_err *err);
// minisgl-mpi.so's table, its version checked. NULL sets *err.
const struct msgl_mpi_api *msgl__mpi_open(msgl_err *err);

#endif
