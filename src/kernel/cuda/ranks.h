// SPDX-License-Identifier: Apache-2.0
//
// Ranks on GPUs: how they combine their parts (distributed/communicator.h). Short messages go over
// peer memory (all GPUs see each other's), long ones, and all where there is no peer memory,
// through NCCL, which is opened at run time if it is there.
#ifndef MSGL_KERNEL_CUDA_RANKS_H
#define MSGL_KERNEL_CUDA_RANKS_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "core/err.h"
#include "kernel/device.h"

struct msgl_comm; // distributed/communicator.h

// How ranks find each other before their communicator is there.
typedef struct msgl_cuda_ranks {
    int rank, size;
    // all [size, bytes]: everybody's `own`, by rank; bytes is a multiple of 4. Every rank calls it
    // as often, in the same order. False: one of the others has ended.
    bool (*exchange)(void *ctx, const void *own, size_t bytes, void *all);
    void *ctx;
    const char *nccl; // path of libnccl.so.2; "auto": looked for; "none": not used
    bool no_peers;    // everything goes through NCCL
} msgl_cuda_ranks;

// distributed/cuda/comm.cu: a communicator of an opened device's stream. On success *out is the
// caller's until its destroy, and *note a line that says how the ranks are connected. MSGL_EPEER:
// another rank ended; MSGL_EUNSUPPORTED: neither peer memory nor NCCL connects them (says why);
// MSGL_EDEVICE, MSGL_ENOMEM.
int msgl__cuda_comm_create(msgl_device *d, const msgl_cuda_ranks *ranks, struct msgl_comm **out,
                           char *note, size_t note_size, msgl_err *err);
// Rank 0's measured choices of kernels (gemm/choices.h) to the others, which then measure only what
// is missing: so that all choose the same experts, whose scores a product makes. MSGL_EPEER,
// MSGL_ENOMEM.
int msgl__cuda_gemm_broadcast(msgl_device *d, const msgl_cuda_ranks *ranks, msgl_err *err);

#ifdef __cplusplus
}
#endif

#endif
