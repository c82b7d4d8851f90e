// SPDX-License-Identifier: Apache-2.0
//
// Instead of src/cuda/ptx/shared.cuh: addresses are distances from a place that shared
// variables, which are thread_local here, lie near to.
#ifndef MSGL_KERNEL_CUDA_PTX_SHARED_CUH
#define MSGL_KERNEL_CUDA_PTX_SHARED_CUH

#include "emulator.h"

static inline char *emulator_shared(uint32_t address)
{
    alignas(1024) static thread_local char origin[1024];
    return origin + (int32_t)address;
}

static inline uint32_t msgl__shared_address(const void *p)
{
    return (uint32_t)((const char *)p - emulator_shared(0));
}

template <typename T> static inline T msgl__read_shared(uint32_t address)
{
    return *(const T *)emulator_shared(address);
}

template <typename T> static inline void msgl__write_shared(uint32_t address, T v)
{
    *(T *)emulator_shared(address) = v;
}

#endif
