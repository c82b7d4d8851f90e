// SPDX-License-Identifier: Apache-2.0
//
// Attention sinks behind a kernel that knows none: a sink is in the softmax's denominator alone
// (attention/attention.h), so a row without it, of which LSE L is known, is multiplied by
//     e^L / (e^L + e^z) = 1 / (1 + 2^(z log2 e - L)),  L in base 2
#ifndef MSGL_CUDA_ATTN_SINK_H
#define MSGL_CUDA_ATTN_SINK_H

#include <stdint.h>

#include "core/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

// All pointers are device memory.
typedef struct msgl_sink_call {
    msgl_dtype dtype;                      // bf16 or f16
    int32_t tokens, num_q_heads, head_dim; // head_dim: a multiple of 8
    void *out;                             // [tokens, num_q_heads, head_dim], 16-byte aligned
    const float *lse;                      // [tokens, num_q_heads], base 2; -inf: no key
    const float *sinks;                    // [num_q_heads], natural
} msgl_sink_call;

// Queues it on stream (a cudaStream_t); a cudaError_t. May be captured.
int msgl__cuda_sink(const msgl_sink_call *c, void *stream);

#ifdef __cplusplus
}
#endif

#endif
