// SPDX-License-Identifier: Apache-2.0
//
// What the answers of triton and double_sparsity share: a head's attention to a range of slots by
// dot products, the merge of a block's groups of lanes, and stage 2, the merge of a head's splits.
#ifndef MSGL_CUDA_ATTN_TRITON_STAGES_CUH
#define MSGL_CUDA_ATTN_TRITON_STAGES_CUH

#include "attention/triton/splits.h"
#include "cuda/attn/triton.h"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma.cuh"

// Merges what GROUPS groups of lanes or warps of a block say of `rows` rows, in order, and writes
// it to the split's place. o: [GROUPS, ROWS, PITCH] sums of exp2(s - m) v; ml: [GROUPS, ROWS] m and
// the sum of exp2(s - m).
template <int GROUPS, int ROWS, int PITCH>
static __device__ void msgl_merge_groups(const msgl_triton_call &c, const float *o,
                                         const float2 *ml, int32_t req, int32_t head, int32_t rows,
                                         int32_t split)
{
    const int32_t pairs = c.attn.head_dim / 2;
    for (int32_t i = threadIdx.x; i < rows * pairs; i += blockDim.x) {
        const int32_t row = i / pairs, col = i % pairs * 2;
        float m = -INFINITY, l = 0.f;
#pragma unroll
        for (int p = 0; p < GROUPS; p++) m = fmaxf(m, ml[p * ROWS + row].x);
        float2 sum = make_float2(0.f, 0.f);
#pragma unroll
        for (int p = 0; p < GROUPS; p++) {
            const float weight = msgl__exp2(ml[p * ROWS + row].x - m);
            const float2 v = *(const float2 *)(o + (p * ROWS + row) * PITCH + col);
            l += weight * ml[p * ROWS + row].y;
            sum.x += weight * v.x;
            sum.y += weight * v.y;
        }
        const size_t at =
            ((size_t)req * c.attn.num_q_heads + head + row) * MSGL_TRITON_MAX_SPLITS + split;
        *(float2 *)(c.attn_logits + at * c.attn.head_dim + col) = make_float2(sum.x / l, sum.y / l);
        if (col == 0) c.attn_lse[at] = (m + log2f(l)) * 0.6931471805599453f;
    }
}

// A head of its own. A key's row is spread over LANES lanes, 8 elements each, and a
// block's GROUPS groups of lanes take every GROUPS-th key, AHEAD of them at a time.
enum { MSGL_DOTS_THREADS = 128 }; // of a block of triton's

template <int HD, int THREADS> struct msgl_dots {
    static const int LANES = HD / 8, GROUPS = THREADS / LANES, AHEAD = 4;
};

template <typename T>
static __device__ __forceinline__ void msgl_unpack8(const uint4 &packed, float x[8])
{
    const uint32_t pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 two = msgl__unpack_two(pairs[i], T());
        x[2 * i] = two.x;
        x[2 * i + 1] = two.y;
    }
}

// Of the lane's 8 elements, summed over the lanes of the row.
template <int LANES>
static __device__ __forceinline__ float msgl_dot8(const float q[8], const float k[8])
{
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(q[i], k[i], sum);
#pragma unroll
    for (int d = LANES / 2; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    return sum;
}

// Shared memory of a block of msgl_dots_attend.
template <int HD, int THREADS> struct msgl_dots_room {
    float o[msgl_dots<HD, THREADS>::GROUPS * HD];
    float2 ml[msgl_dots<HD, THREADS>::GROUPS];
};

// Attends with query head `head` of request req to slots[keys.begin, keys.end), of which there is
// one, and leaves the result as split `split`. By a whole block of THREADS.
template <typename T, int HD, int THREADS>
static __device__ __forceinline__ void
msgl_dots_attend(const msgl_triton_call &c, int32_t req, int32_t head, int32_t kv_head,
                 const int32_t *slots, msgl_triton_range keys, int32_t split,
                 msgl_dots_room<HD, THREADS> *room)
{
    typedef msgl_dots<HD, THREADS> S;
    const int N = S::AHEAD;
    const msgl_cuda_attn_call &a = c.attn;
    const int32_t group = threadIdx.x / S::LANES, column = threadIdx.x % S::LANES * 8;
    const bool has = column < a.head_dim;
    const size_t slot_stride = (size_t)a.num_kv_heads * a.head_dim;
    const T *k = (const T *)a.k + (size_t)kv_head * a.head_dim + column;
    const T *v = (const T *)a.v + (size_t)kv_head * a.head_dim + column;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    const T *q_row = (const T *)a.q + req * a.ld_q + (size_t)head * a.head_dim + column;
    float q[8], o[8] = {}, m = -INFINITY, l = 0.f;
    msgl_unpack8<T>(has ? *(const uint4 *)q_row : zero, q);
    const auto slot_of = [&](int32_t key) { return key < keys.end ? slots[key] : -1; };
    int32_t slot[N];
#pragma unroll
    for (int i = 0; i < N; i++) slot[i] = slot_of(keys.begin + i * S::GROUPS + group);
    for (int32_t key0 = keys.begin; key0 < keys.end; key0 += N * S::GROUPS) {
        uint4 k_packed[N], v_packed[N];
        float s[N], before = m;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const bool there = has && slot[i] >= 0;
            const size_t at = there ? slot[i] * slot_stride : 0;
            k_packed[i] = there ? msgl__read_once(k + at) : zero;
            v_packed[i] = there ? msgl__read_once(v + at) : zero;
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            slot[i] = slot_of(key0 + (N + i) * S::GROUPS + group);
            float x[8];
            msgl_unpack8<T>(k_packed[i], x);
            s[i] = msgl_dot8<S::LANES>(q, x) * a.scale;
            if (a.softcap > 0.f) s[i] = a.softcap * tanhf(s[i] / a.softcap);
            s[i] *= 1.4426950408889634f; // to base 2
            if (key0 + i * S::GROUPS + group >= keys.end) s[i] = -INFINITY;
            m = fmaxf(m, s[i]);
        }
        const float base = m == -INFINITY ? 0.f : m; // no key yet
        const float rescale = msgl__exp2(before - base);
        l *= rescale;
#pragma unroll
        for (int d = 0; d < 8; d++) o[d] *= rescale;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float p = msgl__exp2(s[i] - base);
            float x[8];
            msgl_unpack8<T>(v_packed[i], x);
            l += p;
#pragma unroll
            for (int d = 0; d < 8; d++) o[d] = fmaf(p, x[d], o[d]);
        }
    }
    if (column == 0) room->ml[group] = make_float2(m, l);
#pragma unroll
    for (int d = 0; d < 8; d++) room->o[group * HD + column + d] = o[d];
    __syncthreads();
    msgl_merge_groups<S::GROUPS, 1, HD>(c, room->o, room->ml, req, head, 1, split);
}

// Merges the splits of a head for which has_keys(split), two columns a thread. A sink is one more
// weight, without a value; it belongs here, where it counts once.
template <typename T, typename HAS>
static __device__ __forceinline__ void msgl_merge_splits(const msgl_triton_call &c, int32_t req,
                                                         int32_t head, const HAS &has_keys)
{
    const msgl_cuda_attn_call &a = c.attn;
    const int32_t col = threadIdx.x * 2;
    if (col >= a.v_dim) return;
    const size_t row = (size_t)req * a.num_q_heads + head;
    const float *lse = c.attn_lse + row * MSGL_TRITON_MAX_SPLITS;
    const float *partial = c.attn_logits + row * MSGL_TRITON_MAX_SPLITS * a.v_dim + col;
    const float sink = a.sinks != NULL ? a.sinks[head] : -INFINITY;
    float weight[MSGL_TRITON_MAX_SPLITS], m = sink;
    float2 v[MSGL_TRITON_MAX_SPLITS];
#pragma unroll
    for (int i = 0; i < MSGL_TRITON_MAX_SPLITS; i++) {
        const bool there = has_keys(i);
        weight[i] = there ? lse[i] : -INFINITY;
        v[i] = there ? *(const float2 *)(partial + i * a.v_dim) : make_float2(0.f, 0.f);
        m = fmaxf(m, weight[i]);
    }
    float sum = expf(sink - m);
    float2 o = make_float2(0.f, 0.f);
#pragma unroll
    for (int i = 0; i < MSGL_TRITON_MAX_SPLITS; i++) {
        const float e = expf(weight[i] - m);
        sum += e;
        o.x += e * v[i].x;
        o.y += e * v[i].y;
    }
    const float scale = a.out_scale / sum;
    T *out = (T *)a.out + req * a.ld_out + (size_t)head * a.v_dim + col;
    *(uint32_t *)out = msgl__pack_two(o.x * scale, o.y * scale, T());
}

#endif
