// SPDX-License-Identifier: Apache-2.0
//
// A backend over a 2-D page table: the batch's metadata in the form that FlashAttention's varlen
// kernels and TensorRT-LLM's paged kernels take, one kernel call for prefill and decode, and the
// fixed buffers of captured graphs. fa and trtllm are descriptors over it.
#ifndef MSGL_ATTENTION_TABLE_H
#define MSGL_ATTENTION_TABLE_H

#include "attention/paged.h"

typedef struct msgl_table_metadata {
    int32_t bs; // requests, padding included
    int32_t max_seqlen_q, max_seqlen_k;
    int32_t *cu_seqlens_q;  // [bs + 1]
    int32_t *cu_seqlens_k;  // [bs + 1]
    int32_t *cache_seqlens; // [bs] key lengths
    int32_t *page_table;    // [bs, table_width] page numbers; row i is valid for
                            // ceil(cache_seqlens[i] / page_size) entries, the rest is -1 up to
                            // ceil(max_seqlen_k / page_size) and undefined beyond
    int32_t table_width;    // ceil(max_seq_len / page_size): a floor would lose the last page
    msgl_attn_plan plan;
} msgl_table_metadata;

// The descriptor's functions; create takes the descriptor to point to.
int msgl__table_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                       msgl_attn_backend **out, msgl_err *err);
void msgl__table_destroy(msgl_attn_backend *base);
int msgl__table_prepare_metadata(msgl_attn_backend *base, msgl_batch *batch);
void msgl__table_last_indices(const msgl_attn_backend *base, const msgl_batch *batch, int32_t *out);
int msgl__table_init_capture(msgl_attn_backend *base, int32_t max_seq_len,
                             const int32_t *batch_sizes, int32_t num_sizes, msgl_err *err);
int msgl__table_prepare_for_capture(msgl_attn_backend *base, msgl_batch *batch);
int msgl__table_prepare_for_replay(msgl_attn_backend *base, msgl_batch *batch);
// forward, with q k^T times bmm1_scale before the softmax and its product with V times bmm2_scale.
void msgl__table_attend(const msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                        const msgl_batch *batch, const void *q, size_t ld, float bmm1_scale,
                        float bmm2_scale, void *out);

#endif
