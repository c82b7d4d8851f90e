// SPDX-License-Identifier: Apache-2.0
//
// What programs of emulated kernels are linked with besides them.
#include <cuda_runtime.h>

#include "cuda/attn/prefill_sm90.h"

enum { BYTES = 227 * 1024 };

// Dynamic shared memory: an array for each name that kernels declare it by.
alignas(1024) thread_local char smem[BYTES];
alignas(1024) thread_local float4 slice[BYTES / sizeof(float4)];
alignas(1024) thread_local int32_t counts[BYTES / sizeof(int32_t)];
alignas(1024) thread_local int32_t slots[BYTES / sizeof(int32_t)];

// Hopper's kernels are not emulated, so the GPU is none.
int msgl__cuda_fa_prefill_sm90(const msgl_cuda_attn_call *, void *)
{
    return cudaErrorNotSupported;
}
int msgl__cuda_dual_prefill_sm90(const msgl_cuda_attn_call *, int32_t, void *)
{
    return cudaErrorNotSupported;
}
