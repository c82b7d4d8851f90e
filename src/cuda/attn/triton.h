// SPDX-License-Identifier: Apache-2.0
//
// The triton backend's kernels (docs/internals/triton.md), for every GPU from sm_80 on: bf16 and
// f16, head_dim a multiple of 8 up to 256, or a latent cache of up to 576, of which up to 512 are V
// (v_dim < head_dim, one KV head). All only queue work on `stream` (a cudaStream_t) and
// return a cudaError_t: cudaErrorNotSupported for other dtypes and dimensions. Nothing of a launch
// depends on lengths, but for upper bounds.
#ifndef MSGL_CUDA_ATTN_TRITON_H
#define MSGL_CUDA_ATTN_TRITON_H

#include "cuda/attn/call.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MSGL_TRITON_MAX_WINDOWS = 8,
    MSGL_TRITON_MAX_V_DIM = 512, // of latent caches
};

// A step's metadata, device memory, with SGLang's names.
typedef struct msgl_triton_lists {
    int32_t *kv_indptr;     // [batch + 1] where each request's slots begin
    int32_t *kv_indices;    // [kv_indptr[batch]] slots of all requests' tokens
    int32_t *num_kv_splits; // [num_windows, splits_stride], the first batch of each
    int32_t splits_stride;
} msgl_triton_lists;

// What makes them, once a step. Lengths, table and rows as in msgl_cuda_attn_call.
typedef struct msgl_triton_lists_call {
    msgl_triton_lists lists;
    int32_t batch, num_q_heads, num_kv_heads;
    const int32_t *seqlens_k, *table, *table_rows;
    size_t table_stride;
    msgl_paging paging;
    int32_t max_seqlen_k; // or more
    int32_t num_windows;  // of the model's layers; 0: chunks, which are not split
    int32_t windows[MSGL_TRITON_MAX_WINDOWS];
    bool deterministic;
} msgl_triton_lists_call;

// One layer. Of `attn` the page table is not read (lists are), and plan, workspace, rope and lse
// are not used.
typedef struct msgl_triton_call {
    msgl_cuda_attn_call attn;
    const int32_t *kv_indptr, *kv_indices;
    const int32_t *num_kv_splits; // [batch] of the layer's window; answers
    // What stage 1 of answers leaves for stage 2: [batch, num_q_heads, MSGL_TRITON_MAX_SPLITS,
    // v_dim], and without v_dim the natural logarithm of each split's weight. Splits without
    // keys are not written.
    float *attn_logits, *attn_lse;
    const uint64_t *tree; // [total_q] as msgl_seqs' dev_tree, or NULL; chunks
} msgl_triton_call;

int msgl__cuda_triton_lists(const msgl_triton_lists_call *c, void *stream);
// Answers: one query per request.
int msgl__cuda_triton_decode(const msgl_triton_call *c, void *stream);
// Chunks: any number of queries.
int msgl__cuda_triton_extend(const msgl_triton_call *c, void *stream);

#ifdef __cplusplus
}
#endif

#endif
