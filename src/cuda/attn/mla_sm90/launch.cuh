// SPDX-License-Identifier: Apache-2.0
//
// The MLA kernels, each compiled in a file of its own: rows of bf16, of E4M3, and few answers.
#ifndef MSGL_CUDA_ATTN_MLA_SM90_LAUNCH_CUH
#define MSGL_CUDA_ATTN_MLA_SM90_LAUNCH_CUH

#include <cuda_runtime.h>

#include "cuda/attn/mla_sm90/config.cuh"
#include "cuda/launch.cuh"

template <bool E4M3>
cudaError_t msgl__mla_launch(const msgl_mla_params &p, msgl_mla_mode mode, int ctas,
                             cudaStream_t stream);

// few.cuh. Ranges, which are clusters there: all of a launch run at once, as splits of a unit are
// waited for; 0: this GPU has none.
cudaError_t msgl__mla_few_ranges(const msgl_gpu *gpu, int *ranges);
cudaError_t msgl__mla_few_launch(msgl_mla_params p, int ranges, cudaStream_t stream);

#endif
