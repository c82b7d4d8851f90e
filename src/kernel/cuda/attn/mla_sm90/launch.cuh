// SPDX-License-Identifier: Apache-2.0
//
// The MLA kernel's instantiations, each compiled in a file of its own: rows of bf16, and of E4M3.
#ifndef MSGL_KERNEL_CUDA_ATTN_MLA_SM90_LAUNCH_CUH
#define MSGL_KERNEL_CUDA_ATTN_MLA_SM90_LAUNCH_CUH

#include <cuda_runtime.h>

#include "kernel/cuda/attn/mla_sm90/config.cuh"

template <bool E4M3>
cudaError_t msgl__mla_launch(const msgl_mla_params &p, msgl_mla_mode mode, int ctas,
                             cudaStream_t stream);

#endif
