// SPDX-License-Identifier: Apache-2.0
//
// Body of the instantiation files.
#ifndef MSGL_CUDA_ATTN_PREFILL_SM90_INST_CUH
#define MSGL_CUDA_ATTN_PREFILL_SM90_INST_CUH

#include "cuda/attn/prefill_sm90/kernel.cuh"
#include "cuda/attn/prefill_sm90/launch.cuh"
#include "cuda/launch.cuh"

template <class C>
static cudaError_t msgl__fa_prefill_start(const msgl_fa_prefill_params &p, int grid,
                                          cudaStream_t stream)
{
    const int bytes = (int)sizeof(msgl_fa_prefill_smem<C>) + 1024;
    constexpr auto kernel = msgl__fa_prefill_kernel<C>;
    const cudaError_t code = msgl__allow_shared<kernel>((size_t)bytes);
    if (code != cudaSuccess) return code;
    return msgl__launch(kernel, dim3((unsigned)grid), dim3(C::THREADS), (size_t)bytes, stream, p);
}

template <class T, int HD, bool SOFTCAP>
cudaError_t msgl__fa_prefill_launch(const msgl_fa_prefill_params &p, bool gather, int grid,
                                    cudaStream_t stream)
{
    return gather ? msgl__fa_prefill_start<msgl_fa_prefill_config<T, HD, true, SOFTCAP>>(p, grid,
                                                                                         stream)
                  : msgl__fa_prefill_start<msgl_fa_prefill_config<T, HD, false, SOFTCAP>>(p, grid,
                                                                                          stream);
}

template <class T, int HD>
cudaError_t msgl__fa_prefill_launch_dual(const msgl_fa_prefill_params &p, bool gather, int grid,
                                         cudaStream_t stream)
{
    typedef msgl_fa_prefill_config<T, HD, true, false, false, true> rows;
    typedef msgl_fa_prefill_config<T, HD, false, false, false, true> boxes;
    return gather ? msgl__fa_prefill_start<rows>(p, grid, stream)
                  : msgl__fa_prefill_start<boxes>(p, grid, stream);
}

template <int HD>
cudaError_t msgl__fa_prefill_launch_e4m3(const msgl_fa_prefill_params &p, int grid,
                                         cudaStream_t stream)
{
    return msgl__fa_prefill_start<msgl_fa_prefill_config<__nv_bfloat16, HD, true, false, true>>(
        p, grid, stream);
}

#endif
