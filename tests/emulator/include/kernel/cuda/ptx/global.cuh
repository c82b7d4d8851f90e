// SPDX-License-Identifier: Apache-2.0
//
// Instead of src/kernel/cuda/ptx/global.cuh: blocks run one after the other, so memory has one
// order.
#ifndef MSGL_KERNEL_CUDA_PTX_GLOBAL_CUH
#define MSGL_KERNEL_CUDA_PTX_GLOBAL_CUH

#include "emulator.h"

static inline int32_t msgl__count(int32_t *p)
{
    return (*p)++;
}

static inline void msgl__store_release(int32_t *p, int32_t v)
{
    *p = v;
}

static inline int32_t msgl__load_acquire(const int32_t *p)
{
    return *p;
}

static inline void msgl__store_relaxed(int32_t *p, int32_t v)
{
    *p = v;
}

static inline int4 msgl__load_relaxed_4(const int32_t *p)
{
    return *(const int4 *)p;
}

#endif
