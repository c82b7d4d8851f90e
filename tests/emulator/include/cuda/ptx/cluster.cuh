// SPDX-License-Identifier: Apache-2.0
//
// Instead of src/cuda/ptx/cluster.cuh: kernels that share parts with those of clusters, and are run
// by blocks alone.
#ifndef MSGL_KERNEL_CUDA_PTX_CLUSTER_CUH
#define MSGL_KERNEL_CUDA_PTX_CLUSTER_CUH

#include "emulator.h"

static inline void msgl__cluster_sync(void)
{
    emulator_fail("a barrier of a cluster", EMULATOR_HERE);
}

template <typename T> static inline T *msgl__cluster_pointer(T *, int)
{
    emulator_fail("another block's shared memory", EMULATOR_HERE);
}

#endif
