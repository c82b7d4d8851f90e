// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_ATTN_PREFILL_SM80_H
#define MSGL_CUDA_ATTN_PREFILL_SM80_H

#include "cuda/attn/call.h"

#ifdef __cplusplus
extern "C" {
#endif

// Whether there is a kernel for this pool: bf16 and f16, head_dim a multiple of 8 up to 256; of
// E4M3, of 16.
static inline bool msgl__fa_prefill_sm80_fits(msgl_dtype kv_dtype, int32_t head_dim)
{
    return kv_dtype != MSGL_F32 && head_dim >= 8 && head_dim <= 256 &&
           head_dim % (kv_dtype == MSGL_E4M3 ? 16 : 8) == 0;
}

// Queues one layer's prefill attention on `stream` (a cudaStream_t): tensor cores of any GPU from
// sm_80 on, K and V of head_dim, both ways too, no plan, no workspace. Returns a cudaError_t;
// cudaErrorNotSupported for what msgl__fa_prefill_sm80_fits denies.
int msgl__cuda_fa_prefill_sm80(const msgl_cuda_attn_call *c, void *stream);

#ifdef __cplusplus
}
#endif

#endif
