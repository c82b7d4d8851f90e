// SPDX-License-Identifier: Apache-2.0
//
// Host planner of the Hopper prefill kernel: cuts a batch into tiles of query rows, longest first
// within sections whose KV fits in part of the L2 cache.
#ifndef MSGL_CUDA_BACKENDS_PLAN_PREFILL_H
#define MSGL_CUDA_BACKENDS_PLAN_PREFILL_H

#include <stddef.h>
#include <stdint.h>

#include "cuda/attn/dual.h"

typedef struct msgl_fa_prefill_batch {
    int32_t num_q_heads, num_kv_heads, head_dim;
    int32_t elem_size;           // bytes of one element of K and V
    int32_t window;              // as in msgl_cuda_attn_call
    size_t l2_bytes;             // of the device
    int32_t batch;               // requests
    const int32_t *cu_seqlens_q; // [batch + 1], host
    const int32_t *seqlens_k;    // [batch], host
    const int32_t *table_rows;   // [batch], host
    // NULL, or [batch], host: a request's keys end there, though its queries are behind: multiples
    // of a tile of keys, unless seqlens_k.
    const int32_t *keys;
    int32_t dual_len; // 0, or dual chunk attention: a tile of queries ends where such a chunk does
    const msgl_dual_sparse *left_out; // NULL, or requests to leave out (cuda/attn/dual.h)
} msgl_fa_prefill_batch;

// Bytes that a plan takes at most for up to `batch` requests with `total_q` queries together. With
// dual_len each end of a chunk within a request counts as one more.
size_t msgl__fa_plan_prefill_size(int num_q_heads, int num_kv_heads, int batch, int total_q);

// Writes the plan to `out` (8-byte aligned, of the size above); the caller copies it to the device
// before the batch's first launch. Requests without queries are left out. Returns the bytes
// written.
size_t msgl__fa_plan_prefill(const msgl_fa_prefill_batch *b, void *out);

#endif
