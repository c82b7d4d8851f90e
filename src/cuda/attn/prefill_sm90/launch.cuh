// SPDX-License-Identifier: Apache-2.0
//
// One instantiation of the prefill kernel; each is compiled in its own file.
#ifndef MSGL_CUDA_ATTN_PREFILL_SM90_LAUNCH_CUH
#define MSGL_CUDA_ATTN_PREFILL_SM90_LAUNCH_CUH

#include <cuda_runtime.h>

#include "cuda/attn/prefill_sm90/config.cuh"

template <class T, int HD, bool SOFTCAP>
cudaError_t msgl__fa_prefill_launch(const msgl_fa_prefill_params &p, bool gather, int grid,
                                    cudaStream_t stream);

// Dual chunk attention; HD 64 or 128.
template <class T, int HD>
cudaError_t msgl__fa_prefill_launch_dual(const msgl_fa_prefill_params &p, bool gather, int grid,
                                         cudaStream_t stream);

// K and V of E4M3, q and out bf16; HD 64 or 128, no soft cap.
template <int HD>
cudaError_t msgl__fa_prefill_launch_e4m3(const msgl_fa_prefill_params &p, int grid,
                                         cudaStream_t stream);

#endif
