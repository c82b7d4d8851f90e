// SPDX-License-Identifier: Apache-2.0
//
// One layer's paged attention on a GPU, as plain data for the launchers in the plug-ins. K and V of
// the new tokens are already in the pool, except with `rope`. All pointers are device memory; the
// launchers only queue work on `stream` and return a cudaError_t as int.
#ifndef MSGL_CUDA_ATTN_CALL_H
#define MSGL_CUDA_ATTN_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernel/calls.h"

typedef struct msgl_cuda_attn_call {
    msgl_dtype dtype; // of q, k, v and out
    bool e4m3;        // K and V are E4M3 instead, dtype is bf16
    int32_t num_q_heads, num_kv_heads, head_dim;
    const void *q; // [total_q, num_q_heads, head_dim], token stride ld_q elements
    size_t ld_q;
    void *out; // [total_q, num_q_heads, v_dim]
    size_t ld_out;
    // Or NULL; only the decode kernel takes it. q is the projection's output (rope->qkv): q, K and
    // V of each request's token are normed, rotated and stored as the call says, and attended.
    const msgl_rope_call *rope;
    const void *k, *v; // this layer's pool [num_slots, num_kv_heads, head_dim], [.., v_dim]
    int32_t v_dim;     // of a head's V, at most head_dim; in latent caches V lies in K: v is k
    int64_t num_slots;
    float scale;        // of q.k
    float softcap;      // s = cap * tanh(s / cap) before masking; 0: off
    float out_scale;    // of the result; 1 in most cases
    int32_t window;     // W: a query at position p sees keys in [p - W, p]; -1: all up to p
    bool both_ways;     // and those in [p, p + W], or all
    const float *sinks; // [num_q_heads] attention/attention.h has the formula; NULL: none

    // Request i has query rows [cu_seqlens_q[i], cu_seqlens_q[i + 1]) and seqlens_k[i] keys; its
    // last query is at position seqlens_k[i] - 1 (causal, bottom-right aligned). Position p of it
    // is place x = table_rows[i] * table_stride + p, which fits 31 bits, in page table[x /
    // paging.size]. Within page_size positions, counted from 0, slots are consecutive, and the
    // first one's slot is a multiple of page_size.
    int32_t batch;
    const int32_t *cu_seqlens_q; // [batch + 1]
    const int32_t *seqlens_k;    // [batch]
    const int32_t *table;        // pages; those of positions >= seqlens_k are undefined
    size_t table_stride;
    msgl_paging paging;        // of the pool
    const int32_t *table_rows; // [batch]
    int32_t page_size;         // the pool's, or a part of it
    // The same on the host, for launch decisions (upper bounds when captured in a graph).
    int32_t total_q, max_seqlen_q, max_seqlen_k;

    bool deterministic; // a row's bits must not depend on the rest of the batch, chunking or pages
    const void *plan;   // what the kernel's planner made for this batch, device memory
    void *workspace;    // of the size that its planner asked for
    float *lse;         // [total_q, num_q_heads] natural logarithm, of keys alone, or NULL

    // Two calls of a step, one behind the other, that read nothing of each other. `first`: the
    // kernel lets the next one start only when what both read is there. `second`: so the kernel may
    // begin beside the first one; it ends behind it. Either may be ignored by a kernel that waits
    // before it lets another one start.
    bool first, second;
} msgl_cuda_attn_call;

#endif
