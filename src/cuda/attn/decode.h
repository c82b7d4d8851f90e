// SPDX-License-Identifier: Apache-2.0
//
// Launch parameters of the decode kernel that are chosen by measurement, and the memory it needs.
#ifndef MSGL_CUDA_ATTN_DECODE_H
#define MSGL_CUDA_ATTN_DECODE_H

#include "core/round.h"
#include "cuda/attn/call.h"
#include "cuda/attn/decode/split.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MSGL_FA_MAX_CTAS = 512,    // of one launch
    MSGL_FA_FEW_LEN = 8192,    // keys up to which few requests have a kernel of their own
    MSGL_FA_MAX_CTA_ROWS = 16, // query heads per KV head that one CTA serves
};

typedef struct msgl_fa_decode_tune {
    int32_t min_units; // of work per CTA
    int32_t ctas;      // at most, up to MSGL_FA_MAX_CTAS; 0: what the GPU runs at once
} msgl_fa_decode_tune;

// One region of the workspace: counters, (maximum, sum) of each partial's rows, its values. All
// partials of a launch are in one region; deterministic, each request has its own.
typedef struct msgl_fa_decode_region {
    size_t partial_ml, partial_o, bytes; // offsets, size
} msgl_fa_decode_region;

static inline msgl_fa_decode_region msgl__fa_decode_region(int32_t num_q_heads,
                                                           int32_t num_kv_heads, int32_t head_dim,
                                                           bool deterministic)
{
    const size_t group = (size_t)(num_q_heads / num_kv_heads);
    const size_t row_blocks = (group + MSGL_FA_MAX_CTA_ROWS - 1) / MSGL_FA_MAX_CTA_ROWS;
    const size_t block_rows = row_blocks > 1 ? MSGL_FA_MAX_CTA_ROWS : group;
    const size_t pairs = (size_t)num_kv_heads * row_blocks;
    const size_t counters = deterministic ? pairs : MSGL_FA_MAX_CTAS;
    const size_t partials = deterministic ? MSGL_FA_MAX_CHUNKS * pairs : 2 * MSGL_FA_MAX_CTAS;
    const size_t rows = partials * block_rows;
    msgl_fa_decode_region r;
    r.partial_ml = msgl__round_up(counters * sizeof(int32_t), 64);
    r.partial_o = r.partial_ml + msgl__round_up(rows * 2 * sizeof(float), 64);
    r.bytes = r.partial_o + rows * (size_t)head_dim * sizeof(float);
    return r;
}

// Bytes of workspace for up to `batch` requests. Zeroed once: launches leave its counters zero.
static inline size_t msgl__fa_decode_workspace(int32_t num_q_heads, int32_t num_kv_heads,
                                               int32_t head_dim, int32_t batch, bool deterministic)
{
    const msgl_fa_decode_region r =
        msgl__fa_decode_region(num_q_heads, num_kv_heads, head_dim, deterministic);
    return r.bytes * (deterministic ? (size_t)batch : 1);
}

// Whether there is a kernel for these.
static inline bool msgl__fa_decode_fits(msgl_dtype dtype, int32_t head_dim)
{
    return (dtype == MSGL_BF16 || dtype == MSGL_F16) &&
           (head_dim == 64 || head_dim == 96 || head_dim == 128 || head_dim == 256);
}

// Queues one layer's decode attention, one query per request, on `stream` (a cudaStream_t).
// c->workspace has msgl__fa_decode_workspace's size for at least c->batch requests; c->plan is not
// used. Returns a cudaError_t: cudaErrorNotSupported for what msgl__fa_decode_fits denies.
int msgl__cuda_fa_decode(const msgl_cuda_attn_call *c, void *stream);
int msgl__cuda_fa_decode_tuned(const msgl_cuda_attn_call *c, const msgl_fa_decode_tune *t,
                               void *stream);

#ifdef __cplusplus
}
#endif

#endif
