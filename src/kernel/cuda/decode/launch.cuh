// SPDX-License-Identifier: Apache-2.0
//
// Instantiation of the decode kernel for one dtype: included by one .cu file per dtype.
#ifndef MSGL_KERNEL_CUDA_DECODE_LAUNCH_CUH
#define MSGL_KERNEL_CUDA_DECODE_LAUNCH_CUH

#include <cuda_runtime.h>

#include "kernel/cuda/decode/decode.h"
#include "kernel/cuda/decode/kernel.cuh"

// large: the GPU has the shared memory of MSGL_DECODE_LARGE's architectures.
cudaError_t msgl__fa_decode_bf16(const msgl_decode_args *a, int head_dim, int grid, bool large,
                                 cudaStream_t stream);
cudaError_t msgl__fa_decode_f16(const msgl_decode_args *a, int head_dim, int grid, bool large,
                                cudaStream_t stream);

template <typename T, int HD, int ROWS, bool LARGE, bool DET>
static cudaError_t msgl_decode_launch(const msgl_decode_args &a, int grid, cudaStream_t stream)
{
    typedef msgl_decode_shape<HD, LARGE> S;
    void (*kernel)(msgl_decode_args) = msgl_decode_kernel<T, HD, ROWS, LARGE, DET>;
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES);
    if (e != cudaSuccess) return e;
    return msgl__launch(kernel, grid, S::THREADS, S::BYTES, stream, a);
}

template <typename T, int HD, bool LARGE, bool DET>
static cudaError_t msgl_decode_launch_rows(const msgl_decode_args &a, int grid, cudaStream_t stream)
{
    return a.rows <= 8 ? msgl_decode_launch<T, HD, 8, LARGE, DET>(a, grid, stream)
                       : msgl_decode_launch<T, HD, 16, LARGE, DET>(a, grid, stream);
}

template <typename T, int HD, bool LARGE>
static cudaError_t msgl_decode_launch_det(const msgl_decode_args &a, int grid, cudaStream_t stream)
{
    return a.deterministic ? msgl_decode_launch_rows<T, HD, LARGE, true>(a, grid, stream)
                           : msgl_decode_launch_rows<T, HD, LARGE, false>(a, grid, stream);
}

template <typename T, int HD>
static cudaError_t msgl_decode_launch_fit(const msgl_decode_args &a, int grid, bool large,
                                          cudaStream_t stream)
{
    return large ? msgl_decode_launch_det<T, HD, true>(a, grid, stream)
                 : msgl_decode_launch_det<T, HD, false>(a, grid, stream);
}

template <typename T>
static cudaError_t msgl_decode_launch_dim(const msgl_decode_args &a, int head_dim, int grid,
                                          bool large, cudaStream_t stream)
{
    switch (head_dim) {
    case 64: return msgl_decode_launch_fit<T, 64>(a, grid, large, stream);
    case 96: return msgl_decode_launch_fit<T, 96>(a, grid, large, stream);
    case 128: return msgl_decode_launch_fit<T, 128>(a, grid, large, stream);
    case 256: return msgl_decode_launch_fit<T, 256>(a, grid, large, stream);
    }
    return cudaErrorInvalidValue;
}

#endif
