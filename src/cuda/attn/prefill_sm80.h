// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_ATTN_PREFILL_SM80_H
#define MSGL_CUDA_ATTN_PREFILL_SM80_H

#include "cuda/attn/call.h"

#ifdef __cplusplus
extern "C" {
#endif

// Queues one layer's prefill attention on `stream` (a cudaStream_t): tensor cores of any GPU from
// sm_80 on, bf16 and f16, head_dim a multiple of 8 up to 256, no plan, no workspace. Returns a
// cudaError_t; cudaErrorNotSupported for other dtypes and dimensions.
int msgl__cuda_fa_prefill_sm80(const msgl_cuda_attn_call *c, void *stream);

#ifdef __cplusplus
}
#endif

#endif
