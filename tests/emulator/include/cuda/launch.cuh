// SPDX-License-Identifier: Apache-2.0
//
// Instead of src/cuda/launch.cuh: a GPU of few SMs whose kernels run one after the other.
#ifndef MSGL_KERNEL_CUDA_LAUNCH_CUH
#define MSGL_KERNEL_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

struct msgl_gpu {
    int ordinal, sms, major;
};

static inline void msgl__pdl_wait(void)
{
}
static inline void msgl__pdl_trigger(void)
{
}

static inline cudaError_t msgl__current_gpu(msgl_gpu *gpu)
{
    *gpu = {0, 8, 8};
    return cudaSuccess;
}

// What an H100 has for a block.
template <auto KERNEL> static inline cudaError_t msgl__allow_shared(size_t bytes, bool = false)
{
    return bytes <= 227 * 1024 ? cudaSuccess : cudaErrorInvalidValue;
}

template <typename... Params, typename... Args>
static inline cudaError_t msgl__launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t,
                                       cudaStream_t, Args... args)
{
    emulator_queue([=] { emulator_run(grid, block, [=] { kernel(args...); }); });
    return cudaSuccess;
}

template <typename... Params, typename... Args>
static inline cudaError_t msgl__launch_in_order(void (*kernel)(Params...), dim3 grid, dim3 block,
                                                size_t shared, cudaStream_t stream, Args... args)
{
    return msgl__launch(kernel, grid, block, shared, stream, args...);
}

#endif
