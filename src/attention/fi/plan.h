// SPDX-License-Identifier: Apache-2.0
//
// The split-KV work list of FlashInfer's scheduler (Ye et al. 2025, section 3.3, and its paged
// prefill planner): how a batch is cut into (request, query tile, KV chunk) triples of about equal
// cost that fill the workers. Host work on lengths only. The arrays have FlashInfer's names and
// meaning, so that a CUDA kernel can take them as they are.
#ifndef MSGL_ATTENTION_FI_PLAN_H
#define MSGL_ATTENTION_FI_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#define MSGL_FI_MAX_Q_TILE 128

typedef struct msgl_fi_plan_limits {
    int32_t group, num_kv_heads, head_dim;
    int32_t max_grid; // (work item, KV head) pairs that run at once
    // 0: choose; else every chunk has this many keys (results then do not depend on the batch).
    int32_t fixed_chunk;
    int32_t max_works;
} msgl_fi_plan_limits;

typedef struct msgl_fi_plan {
    int32_t q_tile;        // packed rows (token, head of the group) of a query tile
    int32_t kv_chunk_size; // keys
    bool split_kv;         // some request has more than one chunk: partial results and a merge
    int32_t num_works;
    int32_t *request_indices, *qo_tile_indices, *kv_tile_indices; // [num_works]
    int32_t *o_indptr;     // [bs + 1] first row of each request's partial results, in tokens
    int32_t *merge_indptr; // [tokens + 1] the rows that are merged into each token's output
} msgl_fi_plan;

// Query tile by the mean packed length, as FlashInfer's FA2 kernels are compiled: 16, 64 or 128.
int32_t msgl__fi_q_tile(const msgl_fi_plan_limits *l, int32_t bs, const int32_t *qo_indptr);

// An upper bound of num_works for every batch of at most max_bs requests and max_tokens tokens.
int64_t msgl__fi_max_works(const msgl_fi_plan_limits *l, int32_t max_bs, int32_t max_tokens);

// qo_indptr, kv_indptr [bs + 1]: first token and first key of each request. Returns 0 or
// MSGL_ELIMIT when the list would not fit max_works.
int msgl__fi_plan(const msgl_fi_plan_limits *l, int32_t bs, const int32_t *qo_indptr,
                  const int32_t *kv_indptr, msgl_fi_plan *p);

#endif
