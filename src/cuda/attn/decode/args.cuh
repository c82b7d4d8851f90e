// SPDX-License-Identifier: Apache-2.0
//
// What the decode kernel is told, and what it makes of a CTA's shared memory.
#ifndef MSGL_CUDA_ATTN_DECODE_ARGS_CUH
#define MSGL_CUDA_ATTN_DECODE_ARGS_CUH

#include "cuda/attn/decode.h"
#include "cuda/attn/decode/split.h"
#include "cuda/attn/pool_types.cuh"
#include "cuda/ops/rope_head.cuh"

// Norm and rotation of the new tokens, and where K and V go: as msgl_rope_call.
struct msgl_decode_rope {
    bool on;
    int32_t half;
    const float *q_weight, *k_weight, *cos_sin;
    float eps;
    void *k_pool, *v_pool;
    float k_inverse, v_inverse; // of a pool of E4M3: what K and V are multiplied by
    const int32_t *slots;
};

// What the kernel's T names.
template <typename T> using msgl_decode_types = msgl_pool_types<T>;
typedef msgl_pool_e4m3 msgl_decode_e4m3;

struct msgl_decode_args {
    const void *q, *k, *v; // q: with rope, the projection's output
    void *out;
    float *lse;
    const int32_t *seqlens, *table, *table_rows;
    size_t ld_q, ld_out; // elements
    int32_t table_stride;
    msgl_paging paging;
    uint32_t slot_bytes;    // from one slot to the next
    int32_t q_heads, group; // all query heads; per KV head
    // A KV head's group takes row_blocks blocks of up to 16 query heads, `rows` each. The split's
    // heads are (KV head, row block) pairs.
    int32_t row_blocks, rows;
    int32_t min_units;
    float scale_log2; // scale * log2(e); with a soft cap: scale / cap
    float cap_log2;   // cap * log2(e), or 0
    float out_scale;
    const float *sinks; // [q_heads], or NULL
    bool deterministic;
    bool first; // as in msgl_cuda_attn_call
    msgl_decode_rope rope;
    msgl_fa_split split;
    size_t request_stride; // bytes from one request's partials to the next's; 0: in one region
    float *partial_o;      // [slots, rows, HD]
    float2 *partial_ml;    // [slots, rows] maximum and sum, base 2
    int32_t *counters;     // arrivals
};

// Shared memory per CTA: 227 KB on sm_90 and sm_100, 163 KB on sm_80, 99 KB on sm_86, 89 and 120.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 900 || __CUDA_ARCH__ / 100 == 10)
#define MSGL_DECODE_LARGE true
#else
#define MSGL_DECODE_LARGE false
#endif

// Whether two CTAs can share an SM.
#define MSGL_DECODE_HAS_PAIR(hd, rows, large) ((large) && (hd) <= 128 && (rows) <= 8)

// PAIR: two CTAs of half the size share an SM, so that one loads and multiplies while the other
// merges. Best where items are many. Where they are fewer than SMs, one CTA has more warps for
// each. ROPE: whether the kernel can rotate. One that cannot keeps q in registers from the start,
// and takes the memory of the new tokens for tiles and for merging. EACH: bytes of an element of
// the pool.
template <int HD, int ROWS_, bool LARGE, bool PAIR, bool ROPE_, int EACH_>
struct msgl_decode_shape {
    static const bool ROPE = ROPE_;
    static const int ROWS = ROWS_; // query heads, padded
    static const int CTAS = PAIR ? 2 : 1;
    // By measurement (docs/internals/fa-decode.md, step 10).
    static const bool FEWER = MSGL_DECODE_HAS_PAIR(HD, ROWS, LARGE) && !PAIR && ROPE;
    static const int WARPS = (LARGE ? 8 : 4) / (HD > 128 || PAIR ? 2 : 1);
    static const int EACH = EACH_;
    static const int STAGES_OF_16_BITS = LARGE ? (HD > 96   ? 3
                                                  : HD > 64 ? 4
                                                            : 5) -
                                                     FEWER
                                               : (HD > 96   ? 2
                                                  : HD > 64 ? 3
                                                            : 4);
    static const int STAGES = EACH == 2 ? STAGES_OF_16_BITS : 2 * STAGES_OF_16_BITS - 1;
    static const int THREADS = WARPS * 32;
    static const int LANES = MSGL_HEAD_LANES(HD); // that norm and rotate a head
    static const int PITCH = HD * EACH + 16;      // bytes, of a tile's rows
    static const int INPUT_PITCH = HD * 2 + 16;   // of the new tokens'
    static const int STAGE = 2 * MSGL_FA_TILE * PITCH;
    static const int RING = STAGES * STAGE;    // of one warp
    static const int PASS_ROWS = ROPE ? 2 : 4; // merged at a time
    static const int MERGE_PITCH = HD + 8;     // floats
    static const int MERGE = WARPS * PASS_ROWS * MERGE_PITCH * 4;
    static const int SUMS = WARPS * ROWS * 8; // maxima and sums
    // Of one piece: query heads, newest K and V.
    static const int INPUT = ROPE ? (ROWS + 2) * INPUT_PITCH : 0;
    static const int SLOTS = WARPS * STAGES * MSGL_FA_TILE;    // table entries
    static const int TABLE = (SLOTS + 2 * WARPS * STAGES) * 4; // and where their tiles are
    static const int BYTES = WARPS * RING + MERGE + SUMS + 2 * INPUT + TABLE;
    static_assert((BYTES + 1024 + 96) * CTAS <= (LARGE ? 228 : 100) * 1024, "memory of an SM");
};

// The query heads of a (KV head, row block) pair.
struct msgl_decode_head {
    int32_t kv_head, first, rows;
};

static __device__ __forceinline__ msgl_decode_head msgl_decode_find_head(const msgl_decode_args &a,
                                                                         int32_t pair)
{
    msgl_decode_head h = {pair, pair * a.group, a.rows};
    if (a.row_blocks > 1) {
        h.kv_head = pair / a.row_blocks;
        const int32_t row = (pair - h.kv_head * a.row_blocks) * MSGL_FA_MAX_CTA_ROWS;
        h.first = h.kv_head * a.group + row;
        if (a.group - row < h.rows) h.rows = a.group - row;
    }
    return h;
}

#endif
