// SPDX-License-Identifier: Apache-2.0
//
// Dual chunk attention on a GPU (docs/internals/dual-chunk.md). A token's three queries, for keys
// of its own chunk of dual_len tokens, of the one before and of earlier ones, are [num_q_heads,
// head_dim] each, one behind the other.
#ifndef MSGL_CUDA_ATTN_DUAL_H
#define MSGL_CUDA_ATTN_DUAL_H

#include "cuda/attn/call.h"
#include "kernel/dual_chunk.h"

#ifdef __cplusplus
extern "C" {
#endif

// The ranges of the keys of each request's last query, in the order of its queries that meet them,
// as requests of their own whose query is behind all of them. A range that a request lacks has one
// of its keys: the merge leaves it out.
typedef struct msgl_dual_ranges {
    int32_t *seqlens_k; // [batch, MSGL_DUAL_QUERIES]
    int32_t *firsts;    // [batch, MSGL_DUAL_QUERIES] place of a range's first token in the table
} msgl_dual_ranges;

// Requests that prompts' kernel leaves out: of more than `rows` new tokens and, with them, more
// than `keys` keys; INT32_MAX: none.
typedef struct msgl_dual_sparse {
    int32_t rows, keys;
} msgl_dual_sparse;

// All of them queue work on `stream` (a cudaStream_t) and return a cudaError_t.

// Whether prompts are faster with a plan (backends/plan_prefill.h, with dual_len): the prefill
// kernel for Hopper (prefill_sm90.h) then takes them. capability: msgl_device's.
static inline bool msgl__dual_plans(int32_t capability, int32_t head_dim)
{
    return capability / 10 == 9 && head_dim <= 128;
}

// Prefill, bf16 and f16, head_dim a multiple of 8 up to 256, without window and sinks; no
// workspace. cudaErrorNotSupported for what it lacks. c->plan: NULL, or a device copy of a plan,
// which leaves out what `sparse` says.
int msgl__cuda_dual_prefill(const msgl_cuda_attn_call *c, int32_t dual_len, msgl_dual_sparse sparse,
                            void *stream);
// Decode: the ranges of c's requests (only lengths and rows of the table are read); and out = what
// attention made of the ranges, results [batch, MSGL_DUAL_QUERIES, num_q_heads, head_dim], weighted
// by their log-sum-exp c->lse [batch, MSGL_DUAL_QUERIES, num_q_heads].
int msgl__cuda_dual_ranges(const msgl_cuda_attn_call *c, int32_t dual_len,
                           const msgl_dual_ranges *to, void *stream);
int msgl__cuda_dual_merge(const msgl_cuda_attn_call *c, int32_t dual_len, const void *results,
                          void *stream);

#ifdef __cplusplus
}
#endif

#endif
