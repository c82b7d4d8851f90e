// SPDX-License-Identifier: Apache-2.0
//
// The last key of `len` that a query at position pos sees: its own, or, both ways, that at the
// window's other end. Of 100 keys the one at 90 sees up to 95 with a window of 5, up to 99 with one
// of 20.
#ifndef MSGL_CUDA_ATTN_LAST_KEY_CUH
#define MSGL_CUDA_ATTN_LAST_KEY_CUH

#include "cuda/attn/call.h"

static __device__ __forceinline__ int32_t msgl__last_key(const msgl_cuda_attn_call &c, int32_t pos,
                                                         int32_t len)
{
    if (!c.both_ways) return pos;
    return c.window >= 0 && c.window < len - 1 - pos ? pos + c.window : len - 1;
}

#endif
