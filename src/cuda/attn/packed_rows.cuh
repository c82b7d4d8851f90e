// SPDX-License-Identifier: Apache-2.0
//
// Blocks whose rows are (token, query head of one KV head) pairs, so that K and V are read once for
// a group's heads and neighbouring tokens: row r of a request is token r / group and head r %
// group. 64 rows of a group of 5 are 12 tokens and four heads of the next one. And the merge of
// what blocks leave that have a split of the keys each.
#ifndef MSGL_CUDA_ATTN_PACKED_ROWS_CUH
#define MSGL_CUDA_ATTN_PACKED_ROWS_CUH

#include "cuda/attn/call.h"
#include "cuda/attn/sink.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma.cuh"

// Of a block: rows [first, first + rows) of request req, whose new tokens begin at `token`, behind
// `prefix` of its len keys.
struct msgl_packed_place {
    int32_t req, first, rows, token, prefix, len;
};

// Block i of ROWS rows of all requests, in order; false: there are fewer. A warp looks at 32
// requests at a time.
template <int ROWS>
static __device__ __forceinline__ bool msgl_packed_find(const msgl_cuda_attn_call &c, int32_t i,
                                                        msgl_packed_place *p)
{
    const int32_t lane = threadIdx.x % 32, group = c.num_q_heads / c.num_kv_heads;
    for (int32_t base = 0; base < c.batch; base += 32) {
        const int32_t req = base + lane;
        const int32_t from = req < c.batch ? c.cu_seqlens_q[req] : 0;
        const int32_t rows = req < c.batch ? (c.cu_seqlens_q[req + 1] - from) * group : 0;
        const int32_t blocks = (rows + ROWS - 1) / ROWS;
        int32_t upto = blocks; // inclusive sum
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const int32_t other = __shfl_up_sync(~0u, upto, d);
            if (lane >= d) upto += other;
        }
        const uint32_t has = __ballot_sync(~0u, i < upto);
        if (has == 0) {
            i -= __shfl_sync(~0u, upto, 31);
            continue;
        }
        const int32_t owner = __ffs((int)has) - 1;
        const int32_t before = __shfl_sync(~0u, upto - blocks, owner);
        p->req = base + owner;
        p->token = __shfl_sync(~0u, from, owner);
        p->first = (i - before) * ROWS;
        p->rows = min(__shfl_sync(~0u, rows, owner) - p->first, (int32_t)ROWS);
        p->len = c.seqlens_k[p->req];
        p->prefix = p->len - __shfl_sync(~0u, rows, owner) / group;
        return true;
    }
    return false;
}

// What splits leave: of each (split, token, query head).
struct msgl_packed_splits {
    int32_t count;
    float2 *ml; // [count, total_q, num_q_heads] maximum, in base 2, and sum of exp2(s - m)
    float *o; // [count, total_q, num_q_heads, DIM] sums of exp2(s - m) v; unread where the sum is 0
};

static __device__ __forceinline__ size_t msgl_packed_partial(const msgl_cuda_attn_call &c,
                                                             int32_t split, int32_t token,
                                                             int32_t head)
{
    return ((size_t)split * c.total_q + token) * c.num_q_heads + head;
}

enum { MSGL_PACKED_MERGE_WARPS = 4 };

// A warp for each (token, query head); a lane for each split, of which there are 32 at most.
template <typename ACT, int DIM>
static __global__ __launch_bounds__(MSGL_PACKED_MERGE_WARPS * 32) void msgl_packed_merge(
    const __grid_constant__ msgl_cuda_attn_call c, const msgl_packed_splits t)
{
    const int32_t lane = threadIdx.x % 32;
    const int32_t item = blockIdx.x * MSGL_PACKED_MERGE_WARPS + threadIdx.x / 32;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    if (item >= c.total_q * c.num_q_heads) return;
    const int32_t token = item / c.num_q_heads, head = item % c.num_q_heads;
    const bool has = lane < t.count;
    const float2 own =
        has ? t.ml[msgl_packed_partial(c, lane, token, head)] : make_float2(-INFINITY, 0.f);
    float m = own.x;
#pragma unroll
    for (int x = 16; x > 0; x /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, x));
    const float weight = own.x == -INFINITY ? 0.f : msgl__exp2(own.x - m);
    float l = weight * own.y;
#pragma unroll
    for (int x = 16; x > 0; x /= 2) l += __shfl_xor_sync(~0u, l, x);
    const float sink = c.sinks != NULL ? msgl__attn_sink(c.sinks[head], m) : 0.f;
    const float scale = c.out_scale / (l + sink);
    ACT *out = (ACT *)c.out + (size_t)token * c.ld_out + (size_t)head * c.v_dim;
    for (int32_t d = lane * 2; d < DIM; d += 64) {
        float2 o = make_float2(0.f, 0.f);
#pragma unroll 4
        for (int32_t s = 0; s < t.count; s++) {
            const float y = __shfl_sync(~0u, weight, s);
            if (y == 0.f) continue; // of splits without keys nothing was written
            const float2 v =
                *(const float2 *)(t.o + msgl_packed_partial(c, s, token, head) * DIM + d);
            o.x += y * v.x;
            o.y += y * v.y;
        }
        if (d < c.v_dim) *(uint32_t *)(out + d) = msgl__pack_two(o.x * scale, o.y * scale, ACT());
    }
    if (c.lse != NULL && lane == 0) {
        c.lse[(size_t)token * c.num_q_heads + head] = (m + log2f(l)) * 0.6931471805599453f;
    }
}

// Queues it, behind the blocks of the splits.
template <typename ACT, int DIM>
static cudaError_t msgl_packed_merge_launch(const msgl_cuda_attn_call &c,
                                            const msgl_packed_splits &t, cudaStream_t stream)
{
    const int32_t items = c.total_q * c.num_q_heads;
    const int32_t blocks = (items + MSGL_PACKED_MERGE_WARPS - 1) / MSGL_PACKED_MERGE_WARPS;
    return msgl__launch(msgl_packed_merge<ACT, DIM>, (unsigned)blocks, MSGL_PACKED_MERGE_WARPS * 32,
                        0, stream, c, t);
}

#endif
