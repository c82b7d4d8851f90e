// SPDX-License-Identifier: Apache-2.0
//
// The small-batch products once more, launched in the stream's order: what tests and benchmarks of
// early launches compare with.
#define MSGL_CUDA_NO_PDL
#define msgl__cuda_gemv_can msgl__cuda_gemv_plain_can
#define msgl__cuda_gemv msgl__cuda_gemv_plain

#include "cuda/gemm/gemv.cu"
