// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a prefill, in their order: the list of chunks (prefill.cu), convolution and norms
// (mix), what else needs no state (prepare), the chunks of each request one after the other (scan),
// and the norm of the results (prefill.cu).
#ifndef MSGL_CUDA_DELTA_PREFILL_CUH
#define MSGL_CUDA_DELTA_PREFILL_CUH

#include "cuda/delta/chunks.cuh"

// chunks: at least as many as there are.
cudaError_t msgl__delta_mix(const msgl_delta_args &p, const delta_scratch &s, int chunks,
                            cudaStream_t stream);
// targets: of the convolution's inputs (inputs.cuh).
cudaError_t msgl__delta_prepare(const msgl_delta_args &p, const delta_scratch &s, int chunks,
                                int targets, cudaStream_t stream);
// warps: of 16 columns of a state, a block's; 4, or 8, which does the norm too.
cudaError_t msgl__delta_scan(const msgl_delta_args &p, const delta_scratch &s, int warps,
                             cudaStream_t stream);

#endif
