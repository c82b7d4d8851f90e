// SPDX-License-Identifier: Apache-2.0
//
// The work list of the Hopper prefill kernel and its entry. The planner (attention/fa/
// plan_prefill.c) writes one list per batch on the host; every layer's launch reads the same copy
// in device memory. Heads are not in the list: a section is a range of tiles that every one of its
// heads goes through, so the list stays small and a section's KV stays in L2.
#ifndef MSGL_CUDA_ATTN_PREFILL_SM90_H
#define MSGL_CUDA_ATTN_PREFILL_SM90_H

#include "cuda/attn/call.h"

enum {
    MSGL_FA_PREFILL_ROWS = 128, // query rows (tokens x packed heads) of a tile
    MSGL_FA_PREFILL_MAX_SECTIONS = 127,
};

// One tile of one request: `tokens` queries from row `row0` of q, the first at position pos0.
typedef struct msgl_fa_prefill_tile {
    int32_t row0, pos0, tokens, klen;
    int32_t table_row;
    int32_t key_lo, key_hi; // keys that any of its queries sees: [key_lo, key_hi)
    int32_t turn;           // 0; what dual chunk attention makes of it: prefill_sm90/dual.cuh
} msgl_fa_prefill_tile;

// Work items work0 .. of a section: item i is tile tile0 + i / heads, head group head0 + i % heads.
typedef struct msgl_fa_prefill_section {
    int32_t work0, tile0, head0, heads;
} msgl_fa_prefill_section;

// In memory: this, MSGL_FA_PREFILL_MAX_SECTIONS + 1 sections (the one behind the last in use holds
// work0 = num_work), the tiles.
typedef struct msgl_fa_prefill_plan {
    uint32_t next, done; // the launch's dynamic scheduler; every launch leaves both 0 again
    int32_t num_work, num_tiles, num_sections;
    int32_t reserved[3];
} msgl_fa_prefill_plan;

// Query heads that share a tile's rows: row = token * pack + head. All heads of a group where they
// fill the tile well, else 1.
static inline int msgl__fa_prefill_pack(int num_q_heads, int num_kv_heads)
{
    const int group = num_q_heads / num_kv_heads;
    const int used = MSGL_FA_PREFILL_ROWS / group * group;
    return group <= MSGL_FA_PREFILL_ROWS / 2 && used >= MSGL_FA_PREFILL_ROWS * 7 / 8 ? group : 1;
}

// Whether there is a kernel for this call's K and V of E4M3.
static inline bool msgl__fa_prefill_takes_e4m3(const msgl_cuda_attn_call *c)
{
    return c->dtype == MSGL_BF16 && c->head_dim <= 128 && c->head_dim % 16 == 0 &&
           !(c->softcap > 0);
}

#ifdef __cplusplus
extern "C" {
#endif

// Queues one layer's prefill attention on `stream` (a cudaStream_t). c->plan is a device copy of
// msgl__fa_plan_prefill's list, written to by the launch; c->workspace is not used. Returns a
// cudaError_t: cudaErrorNotSupported for what the kernel does not cover (f32, head_dim above 256 or
// not a multiple of 8, scale <= 0), cudaErrorInvalidValue for addresses or strides that are not
// multiples of 16 bytes.
int msgl__cuda_fa_prefill_sm90(const msgl_cuda_attn_call *c, void *stream);

// The same of dual chunk attention (dual.h), by a plan made for that dual_len, which is above 0.
// Not covered besides: head_dim above 128, soft caps, windows, sinks, E4M3.
int msgl__cuda_dual_prefill_sm90(const msgl_cuda_attn_call *c, int32_t dual_len, void *stream);

#ifdef __cplusplus
}
#endif

#endif
