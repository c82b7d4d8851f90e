// SPDX-License-Identifier: Apache-2.0
//
// What the two choices of family index share: where a new token's keys are.
#ifndef MSGL_CUDA_OPS_INDEX_CUH
#define MSGL_CUDA_OPS_INDEX_CUH

#include "core/batch.h"
#include "cuda/attn/page_row.cuh"
#include "cuda/owner.cuh"

// A new token: its request, whose last new token is `last`, the table of that, and the keys that
// the token sees.
struct msgl_index_token {
    msgl_page_row table;
    int32_t last, keys;
};

// Token `token` of the sequences, whose lengths are on the device. pages: rows of page_stride each.
static __device__ __forceinline__ msgl_index_token msgl__index_token(const msgl_seqs &s,
                                                                     const int32_t *pages,
                                                                     size_t page_stride,
                                                                     const msgl_paging &paging,
                                                                     int32_t token)
{
    const int32_t req = msgl__owner_of(s.dev_cu_seqlens_q, s.size, token);
    msgl_index_token t;
    t.table.pages = pages;
    t.table.first = s.dev_table_rows[req] * (int32_t)page_stride * paging.size;
    t.table.paging = paging;
    t.last = s.dev_cu_seqlens_q[req + 1] - 1;
    t.keys = s.dev_seqlens_k[req] - (t.last - token);
    return t;
}

#endif
