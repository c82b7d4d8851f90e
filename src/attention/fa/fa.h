// SPDX-License-Identifier: Apache-2.0
//
// Metadata of the fa backend: what FlashAttention's varlen kernels with a paged cache take.
#ifndef MSGL_ATTENTION_FA_FA_H
#define MSGL_ATTENTION_FA_FA_H

#include "attention/paged.h"

typedef struct msgl_fa_metadata {
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
} msgl_fa_metadata;

extern const msgl_attn_desc msgl__attn_fa;

#endif
