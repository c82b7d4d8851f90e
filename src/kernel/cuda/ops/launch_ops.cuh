// SPDX-License-Identifier: Apache-2.0
//
// Programmatic dependent launch (CUDA programming guide, 3.2.8): a kernel may start while the one
// before it in the stream still runs. It waits before it touches memory that others write, and lets
// the next one start as early as possible; the wait covers everything before it in the stream.
// On GPUs without it the launches are plain and both calls do nothing.
#ifndef MSGL_KERNEL_CUDA_OPS_LAUNCH_OPS_CUH
#define MSGL_KERNEL_CUDA_OPS_LAUNCH_OPS_CUH

#include "kernel/cuda/device.cuh"

static __device__ __forceinline__ void msgl__pdl_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void msgl__pdl_trigger()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

template <typename... Params, typename... Args>
static inline cudaError_t msgl__launch_cluster(const msgl_cuda_device *d, void (*kernel)(Params...),
                                               dim3 grid, dim3 block, unsigned cluster,
                                               Args... args)
{
    const bool hopper = d->base.capability >= 90;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = cluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = d->stream;
    config.attrs = attributes;
    config.numAttrs = !hopper ? 0 : cluster > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

template <typename... Params, typename... Args>
static inline cudaError_t msgl__launch(const msgl_cuda_device *d, void (*kernel)(Params...),
                                       dim3 grid, dim3 block, Args... args)
{
    return msgl__launch_cluster(d, kernel, grid, block, 1, args...);
}

#endif
