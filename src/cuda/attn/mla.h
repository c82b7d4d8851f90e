// SPDX-License-Identifier: Apache-2.0
//
// Absorbed multi-head latent attention, answers and prompts, as plain data for its kernel (Hopper
// only). A token's cache row is 512 latent values c and 64 rotary ones; all heads share it, and its
// first 512 values are V. Per query row q [576], that is token and head:
//     s = scale * q.row, out = out_scale * sum softmax(s) c [512]
// All pointers are device memory; the launchers only queue work on `stream` (a cudaStream_t), may
// be captured in a graph, and return a cudaError_t as int.
#ifndef MSGL_CUDA_ATTN_MLA_H
#define MSGL_CUDA_ATTN_MLA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/paging.h"
#include "core/round.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MSGL_MLA_ROW = 576,    // values of q and of a cache row
    MSGL_MLA_LATENT = 512, // of them those that are V too
    MSGL_MLA_MAX_PAGE = 128,
    MSGL_MLA_MAX_Q_LEN = 8, // unless ragged
    MSGL_MLA_MAX_HEADS = 128,
    MSGL_MLA_TILE = 64,      // query rows, and keys, that a block computes at a time
    MSGL_MLA_MAX_CTAS = 160, // of one launch
    MSGL_MLA_FEW_BATCH = 8,  // answers up to so many have a kernel of their own
};

typedef struct msgl_mla_call {
    int32_t num_heads; // up to MSGL_MLA_MAX_HEADS
    const void *q;     // bf16 [tokens, num_heads, 576], token stride ld_q elements
    size_t ld_q;
    void *out; // bf16 [tokens, num_heads, 512], token stride ld_out elements
    size_t ld_out;
    float *lse;     // [tokens, num_heads] natural logarithm, or NULL
    const void *kv; // bf16, or E4M3 if `e4m3`, this layer's pool [num_slots, 576]
    bool e4m3;
    int64_t num_slots;
    float scale;     // of q.row; above 0
    float out_scale; // of the result

    // Each request has q_len query tokens, its last ones: query token t of request i sees keys
    // [0, seqlens_k[i] - q_len + t]. One without a visible key: zeros, LSE -inf. Key p of request i
    // is place x = table_rows[i] * table_stride + p, which fits 31 bits, in page table[x /
    // paging.size]. Slots that are not a key's may hold anything.
    int32_t batch, q_len;     // q_len up to MSGL_MLA_MAX_Q_LEN
    const int32_t *seqlens_k; // [batch], only read by the planner
    const int32_t *table;
    size_t table_stride;       // a multiple of paging.size
    msgl_paging paging;        // of the pool
    const int32_t *table_rows; // [batch], only read by the planner
    int32_t page_size; // a power of two up to MSGL_MLA_MAX_PAGE that divides the pool's page

    // Not NULL: ragged, request i has the query tokens [cu_seqlens_q[i], cu_seqlens_q[i + 1]), of
    // total_q in all and one or more each; q_len is the most of a request, of any size. Only read
    // by the planner.
    const int32_t *cu_seqlens_q; // [batch + 1]
    int32_t total_q;

    // NULL, or [tokens]: the query tokens of a request, at most 64 of them, form trees, and bit j
    // of its token t is set where it sees token j. (msgl_seqs' dev_tree; the planner does without.)
    const uint64_t *tree;

    // A row's bits do not depend on the rest of the batch, on chunks, or on pages: the keys of a
    // row are not shared out.
    bool deterministic;

    void *plan;      // msgl__mla_plan_bytes, written by msgl__cuda_mla_plan
    void *workspace; // msgl__mla_workspace_bytes
} msgl_mla_call;

// How lengths are shared out; what msgl__cuda_mla_plan takes was measured.
typedef struct msgl_mla_tune {
    int32_t overhead;  // what a request costs besides its tiles of keys, in tiles
    int32_t min_tiles; // of a block's range; fewer are not worth another split to merge
    int32_t snap;      // a unit's ends shorter than this are not cut off
    int32_t whole;     // units of up to so many tiles are not cut at all
} msgl_mla_tune;

// Blocks of query rows that a request has.
static inline int32_t msgl__mla_row_tiles(int32_t num_heads, int32_t q_len)
{
    return msgl__ceil_div(num_heads * q_len, MSGL_MLA_TILE);
}

// Units that the planner makes of a step at most: of one without cu_seqlens_q a request each, else
// runs of 64 or 128 query rows of a request.
static inline int32_t msgl__mla_units(int32_t num_heads, int32_t batch, int32_t ragged_tokens)
{
    return batch + (int32_t)((int64_t)ragged_tokens * num_heads / MSGL_MLA_TILE);
}

// Bytes of a plan for up to `batch` requests; ragged_tokens: up to so many query tokens in ragged
// calls, 0 for others.
static inline size_t msgl__mla_plan_bytes(int32_t num_heads, int32_t batch, int32_t ragged_tokens)
{
    const size_t units = (size_t)msgl__mla_units(num_heads, batch, ragged_tokens);
    return 12 * sizeof(int32_t) * MSGL_MLA_MAX_CTAS +         // ranges
           8 * sizeof(int32_t) * units +                      // units
           sizeof(int32_t) * (units + 1 + (size_t)batch + 1); // sums of their costs; first ones
}

// Groups of 16 rows of a tile that hold query rows.
static inline int32_t msgl__mla_row_groups(int32_t num_heads, int32_t q_len)
{
    const int32_t rows = num_heads * q_len;
    return rows < MSGL_MLA_TILE ? msgl__ceil_div(rows, 16) : MSGL_MLA_TILE / 16;
}

// q_len: the most of a request. Counters, then maximum and sum of the rows of each partial, then
// the partials' values in f32.
typedef struct msgl_mla_workspace {
    size_t partial_ml, partial_o, bytes; // offsets, size
} msgl_mla_workspace;

static inline msgl_mla_workspace msgl__mla_workspace_layout(int32_t num_heads, int32_t q_len)
{
    // A range has up to two requests that others have splits of.
    const size_t groups =
        2 * (size_t)MSGL_MLA_MAX_CTAS * (size_t)msgl__mla_row_groups(num_heads, q_len);
    msgl_mla_workspace w;
    w.partial_ml = msgl__round_up(2 * sizeof(int32_t) * MSGL_MLA_MAX_CTAS, 1024);
    w.partial_o = w.partial_ml + groups * 16 * 2 * sizeof(float);
    w.bytes = w.partial_o + groups * 16 * MSGL_MLA_LATENT * sizeof(float);
    return w;
}

// Bytes of workspace, zeroed once: launches leave the counters in it zero.
static inline size_t msgl__mla_workspace_bytes(int32_t num_heads, int32_t q_len)
{
    return msgl__mla_workspace_layout(num_heads, q_len).bytes;
}

// Ranges out the keys of a step's requests among the blocks of the launches that follow: once a
// step, before its layers. Reads of the call only num_heads, batch, lengths, page_size, e4m3,
// deterministic and plan.
int msgl__cuda_mla_plan(const msgl_mla_call *c, void *stream);
int msgl__cuda_mla_plan_tuned(const msgl_mla_call *c, const msgl_mla_tune *t, void *stream);

// One layer's attention by that plan. cudaErrorNotSupported: not a Hopper GPU, or a size outside of
// the limits above; cudaErrorInvalidValue: an address or a stride that is not a multiple of 16
// bytes. Splits of a request are merged in fixed order: the same batch gives the same bits.
int msgl__cuda_mla(const msgl_mla_call *c, void *stream);

#ifdef __cplusplus
}
#endif

#endif
