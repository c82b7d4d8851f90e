// SPDX-License-Identifier: Apache-2.0
//
// Ranks on GPUs: how they combine their parts (distributed/communicator.h). Short messages go over
// peer memory (all GPUs see each other's), long ones, and all where there is no peer memory,
// through NCCL, which is opened at run time if it is there.
#ifndef MSGL_CUDA_RANKS_RANKS_H
#define MSGL_CUDA_RANKS_RANKS_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "core/err.h"
#include "kernel/plugin.h"

// cuda/ranks/comm.cu: a communicator of an opened device's stream. On success *out is the
// caller's until its destroy, and *note a line that says how the ranks are connected. MSGL_EPEER:
// another rank ended; MSGL_EUNSUPPORTED: neither peer memory nor NCCL connects them (says why);
// MSGL_EDEVICE, MSGL_ENOMEM.
int msgl__cuda_comm_create(msgl_device *d, const msgl_device_ranks *ranks, struct msgl_comm **out,
                           char *note, size_t note_size, msgl_err *err);
// Rank 0's measured choices of kernels (gemm/choices.h) to the others, which then measure only what
// is missing: so that all choose the same experts, whose scores a product makes. MSGL_EPEER,
// MSGL_ENOMEM.
int msgl__cuda_gemm_broadcast(msgl_device *d, const msgl_device_ranks *ranks, msgl_err *err);

// cuda/ranks/groups.c
extern const msgl_group_ops msgl__cuda_groups;

#ifdef __cplusplus
}
#endif

#endif
