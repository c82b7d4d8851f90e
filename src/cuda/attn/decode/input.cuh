// SPDX-License-Identifier: Apache-2.0
//
// The new tokens' share of a piece: its query heads and, where the piece has the newest token, that
// token's K and V. They come from the projection's output, are normed and rotated here as the rope
// kernel would do it (ops/rope_head.cuh), and go to shared memory, from where all warps take them;
// K and V to the pool as well. Lane groups of the whole CTA share the heads, so that a head is made
// once per piece.
//
// No other part of the kernel reads the newest token's slot, so the order of that store and of the
// pool's reads does not matter. Without rope the queries are rotated and the pool is complete.
#ifndef MSGL_CUDA_ATTN_DECODE_INPUT_CUH
#define MSGL_CUDA_ATTN_DECODE_INPUT_CUH

#include "cuda/attn/decode/args.cuh"
#include "cuda/ops/rope_head.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/e4m3.cuh"

// One lane's part of a head, on its way from global memory.
struct msgl_decode_fetched {
    uint4 first, second;
    float c[8], s[8];
    int32_t slot;
};

// The heads of a piece, in the order queries, K, V.
static __device__ __forceinline__ int32_t msgl_decode_count_heads(const msgl_decode_args &a,
                                                                  const msgl_fa_walk &walk,
                                                                  const msgl_decode_head &head)
{
    return head.rows + (a.rope.on && walk.hi == walk.tiles ? 2 : 0);
}

// Of the heads of a piece, the one that the calling thread works on. The last warps come first:
// where warps have different numbers of tiles, they have fewer.
template <typename S> static __device__ __forceinline__ int32_t msgl_decode_lane_group()
{
    return (S::THREADS - 32 - threadIdx.x / 32 * 32 + threadIdx.x % 32) / S::LANES;
}

// Brings the norms' weights near; no kernel writes them.
template <int HD>
static __device__ __forceinline__ void msgl_decode_prefetch_weights(const msgl_decode_args &a)
{
    const int32_t line = threadIdx.x % 32 * 32; // 128 bytes
    const float *weight = threadIdx.x < 32 ? a.rope.q_weight : a.rope.k_weight;
    if (threadIdx.x < 64 && line < HD && weight != NULL) msgl__prefetch_l2(weight + line);
}

// Starts reading head i of the piece.
template <typename T, int HD>
static __device__ __forceinline__ void msgl_decode_fetch(const msgl_decode_args &a,
                                                         const msgl_fa_walk &walk, int32_t i,
                                                         msgl_decode_fetched *f)
{
    typedef typename msgl_decode_types<T>::act act;
    const int CHUNKS = HD / 8;
    const msgl_decode_head head = msgl_decode_find_head(a, walk.head);
    if (i >= msgl_decode_count_heads(a, walk, head)) return;
    const int32_t j = threadIdx.x % MSGL_HEAD_LANES(HD);
    const head_lane l = find_head_lane(j, a.rope.half);
    const int32_t kv_heads = a.q_heads / a.group;
    const int32_t from =
        i < head.rows ? head.first + i : a.q_heads + (i - head.rows) * kv_heads + head.kv_head;
    const uint4 *row = (const uint4 *)((const act *)a.q + (size_t)walk.req * a.ld_q + from * HD);
    f->first = f->second = make_uint4(0, 0, 0, 0);
    if (l.first < CHUNKS) f->first = row[l.first];
    if (l.second < CHUNKS) f->second = row[l.second];
    if (l.rotates) {
        const float *angles = a.rope.cos_sin + (size_t)walk.req * 2 * a.rope.half + j * 8;
        load8(angles, f->c);
        load8(angles + a.rope.half, f->s);
    }
    if (i >= head.rows) f->slot = a.rope.slots[walk.req];
}

// Groups p and q of a head to `row`: as activations, or as T's pool has them.
template <int CHUNKS, typename T>
static __device__ __forceinline__ void msgl_decode_put_head(const head_lane &l, const float p[8],
                                                            const float q[8], char *row, T)
{
    if (l.first < CHUNKS) ((uint4 *)row)[l.first] = pack8(p, T());
    if (l.second < CHUNKS) ((uint4 *)row)[l.second] = pack8(q, T());
}

template <int CHUNKS>
static __device__ __forceinline__ void msgl_decode_put_head(const head_lane &l, const float p[8],
                                                            const float q[8], char *row,
                                                            msgl_decode_e4m3)
{
    if (l.first < CHUNKS) ((uint2 *)row)[l.first] = msgl__eight_to_e4m3(p);
    if (l.second < CHUNKS) ((uint2 *)row)[l.second] = msgl__eight_to_e4m3(q);
}

// Norms and rotates head i of the piece and puts it where it is needed. All lanes of a warp call.
template <typename T, int HD, typename S>
static __device__ __forceinline__ void
msgl_decode_prepare(const msgl_decode_args &a, const msgl_fa_walk &walk, int32_t i,
                    const msgl_decode_fetched &f, char *input)
{
    typedef typename msgl_decode_types<T>::act act;
    const int CHUNKS = HD / 8;
    const msgl_decode_head head = msgl_decode_find_head(a, walk.head);
    const int32_t heads = msgl_decode_count_heads(a, walk, head);
    if (i - (int32_t)(threadIdx.x % 32) / S::LANES >= heads) return; // the whole warp
    const head_lane l = find_head_lane(threadIdx.x % S::LANES, a.rope.half);
    const bool is_v = i == head.rows + 1;
    const float *weight = i < head.rows ? a.rope.q_weight : is_v ? NULL : a.rope.k_weight;
    // The weights first: at the start of a CTA they are on their way together with the head.
    float w1[8], w2[8], p[8] = {}, q[8] = {};
    if (i < heads && weight != NULL) {
        if (l.first < CHUNKS) load8(weight + l.first * 8, w1);
        if (l.second < CHUNKS) load8(weight + l.second * 8, w2);
    }
    if (i < heads) {
        unpack8(f.first, p, act());
        unpack8(f.second, q, act());
    }
    if (a.rope.q_weight != NULL || a.rope.k_weight != NULL) {
        const float sum = group_sum(head_squares(p, q), S::LANES);
        if (i < heads && weight != NULL) {
            const float scale = head_scale(sum, HD, a.rope.eps);
            head_norm(p, w1, scale);
            head_norm(q, w2, scale);
        }
    }
    if (i >= heads) return;
    if (l.rotates && !is_v) head_rotate(p, q, f.c, f.s);
    const int32_t at = i < head.rows ? i : S::ROWS + i - head.rows;
    char *row = input + at * S::INPUT_PITCH;
    if (i < head.rows) {
        msgl_decode_put_head<CHUNKS>(l, p, q, row, act());
        return;
    }
    if (S::EACH == 1) {
        const float inverse = is_v ? a.rope.v_inverse : a.rope.k_inverse;
#pragma unroll
        for (int e = 0; e < 8; e++)
            p[e] = __fmul_rn(p[e], inverse), q[e] = __fmul_rn(q[e], inverse);
    }
    msgl_decode_put_head<CHUNKS>(l, p, q, row, T());
    // Of several blocks of query rows, one stores.
    if (head.first == head.kv_head * a.group) {
        char *pool = (char *)(is_v ? a.rope.v_pool : a.rope.k_pool);
        row = pool + (uint64_t)(uint32_t)f.slot * a.slot_bytes + head.kv_head * HD * S::EACH;
        msgl_decode_put_head<CHUNKS>(l, p, q, row, T());
    }
}

// All heads of the piece; the first one of each lane group has been fetched.
template <typename T, int HD, typename S>
static __device__ __forceinline__ void msgl_decode_prepare_all(const msgl_decode_args &a,
                                                               const msgl_fa_walk &walk,
                                                               msgl_decode_fetched *f, char *input)
{
    const int GROUPS = S::THREADS / S::LANES;
    const int32_t i = msgl_decode_lane_group<S>();
    msgl_decode_prepare<T, HD, S>(a, walk, i, *f, input);
#pragma unroll 1
    for (int from = GROUPS; from < S::ROWS + 2; from += GROUPS) {
        msgl_decode_fetch<T, HD>(a, walk, from + i, f);
        msgl_decode_prepare<T, HD, S>(a, walk, from + i, *f, input);
    }
}

#endif
