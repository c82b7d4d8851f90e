// SPDX-License-Identifier: Apache-2.0
//
// Family rope for dual chunk attention: the table of a token's four rotations, and the kernel that
// rotates its key, stores it with its value, and makes three queries of one.
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/ops.h"
#include "cuda/ops/vec8.cuh"

enum { THREADS = 256 };

// blockIdx.x: token.
static __global__ void __launch_bounds__(THREADS) dual_table_kernel(const msgl_dual_table_call c)
{
    const size_t t = blockIdx.x;
    const msgl_dual_chunk d = c.dual;
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const int32_t own = c.positions[t] % d.len, next = min(own + d.len, d.size);
    const int32_t far = min(2 * d.len - 1, d.size);
    const int32_t prompt = d.original > 0 ? c.prompt_lens[t] : 0;
    const bool answer = c.positions[t] >= prompt;
    const int32_t n = answer ? c.positions[t] + 1 : prompt;
    float factor = 1.f;
    if (d.original > 0 && n > d.original) factor += 0.1f * logf((float)n / (float)d.original);
    const float of_queries = c.scale * factor * (d.scaled_keys ? 1.f : factor);
    const float of_key = d.scaled_keys && !answer ? c.scale * factor : c.scale;
    float *row = c.cos_sin + t * MSGL_DUAL_SETS * 2 * (size_t)c.half;
    for (int i = (int)threadIdx.x; i < MSGL_DUAL_SETS * c.half; i += THREADS) {
        const int set = i / c.half, pair = i % c.half;
        const int32_t at = set < 2 ? own : set == 2 ? next : far;
        const float scale = set == 0 ? of_key : of_queries;
        float sine, cosine;
        sincosf((float)at * c.inv_freq[pair], &sine, &cosine);
        row[(size_t)set * 2 * c.half + pair] = cosine * scale;
        row[(size_t)set * 2 * c.half + c.half + pair] = sine * scale;
    }
}

extern "C" void msgl__cuda_dual_table(msgl_exec *x, const msgl_dual_table_call *c)
{
    if (c->tokens <= 0) return;
    MSGL_CUDA_TRY(x, msgl__launch(dual_table_kernel, dim3((unsigned)c->tokens), dim3(THREADS), 0,
                                  msgl__cuda_stream(x), *c));
}

// `low` of the first half of what rotates and `high` of the second, into each other.
template <int N>
static __device__ __forceinline__ void rotate(const float low[N], const float high[N],
                                              const float *set, int half, float out_low[N],
                                              float out_high[N])
{
    float cosine[N], sine[N];
    load_n<N>(set, cosine);
    load_n<N>(set + half, sine);
#pragma unroll
    for (int i = 0; i < N; i++) {
        out_low[i] = low[i] * cosine[i] - high[i] * sine[i];
        out_high[i] = high[i] * cosine[i] + low[i] * sine[i];
    }
}

// blockIdx.x: token, whose heads of q, k and v are shared out by N pairs that rotate into each
// other, then N elements that do not rotate.
template <typename T, typename KV, int N>
static __global__ void __launch_bounds__(THREADS) dual_rope_kernel(const msgl_dual_rope_call d)
{
    const msgl_rope_call &c = d.rope;
    const size_t t = blockIdx.x, set = 2 * (size_t)c.half;
    const int dim = c.head_dim, half = c.half, q_heads = c.num_q_heads, kv_heads = c.num_kv_heads;
    const int pairs = half / N, per_head = pairs + (dim - 2 * half) / N;
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const float *sets = c.cos_sin + t * MSGL_DUAL_SETS * set;
    T *row = (T *)c.qkv + t * c.ld;
    T *queries = (T *)d.queries + t * MSGL_DUAL_QUERIES * (size_t)(q_heads * dim);
    const size_t slot = (size_t)c.slots[t] * (size_t)(kv_heads * dim);
    for (int i = (int)threadIdx.x; i < (q_heads + 2 * kv_heads) * per_head; i += THREADS) {
        const int head = i / per_head, part = i % per_head;
        const bool rotates = part < pairs;
        const int at = head * dim + (rotates ? part * N : 2 * half + (part - pairs) * N);
        float low[N], high[N] = {}, out_low[N], out_high[N];
        load_n<N>(row + at, low);
        if (rotates) load_n<N>(row + at + half, high);
        if (head < q_heads) {
#pragma unroll
            for (int q = 0; q < MSGL_DUAL_QUERIES; q++) {
                T *to = queries + q * q_heads * dim + at;
                if (rotates) {
                    rotate<N>(low, high, sets + (q + 1) * set + part * N, half, out_low, out_high);
                    store_n<N>(to + half, out_high);
                }
                store_n<N>(to, rotates ? out_low : low);
            }
            continue;
        }
        const bool is_k = head < q_heads + kv_heads;
        KV *to = (KV *)(is_k ? c.k_pool : c.v_pool) + slot + at -
                 (q_heads + (is_k ? 0 : kv_heads)) * dim;
        if (is_k && rotates) {
            rotate<N>(low, high, sets + part * N, half, out_low, out_high);
            store_n<N>(row + at, out_low);
            store_n<N>(row + at + half, out_high);
        }
        store_n<N>(to, is_k && rotates ? out_low : low);
        if (rotates) store_n<N>(to + half, is_k ? out_high : high);
    }
}

template <typename T, typename KV> static void rope(msgl_exec *x, const msgl_dual_rope_call *d)
{
    const msgl_rope_call *c = &d->rope;
    const bool vector = c->half % 8 == 0 && c->head_dim % 8 == 0 && c->ld % (16 / sizeof(T)) == 0 &&
                        aligned16(c->qkv) && aligned16(d->queries) && aligned16(c->cos_sin) &&
                        aligned16(c->k_pool) && aligned16(c->v_pool);
    void (*const fn)(msgl_dual_rope_call) =
        vector ? dual_rope_kernel<T, KV, 8> : dual_rope_kernel<T, KV, 1>;
    MSGL_CUDA_TRY(
        x, msgl__launch(fn, dim3((unsigned)c->tokens), dim3(THREADS), 0, msgl__cuda_stream(x), *d));
}

template <typename T> static void rope_act(msgl_exec *x, const msgl_dual_rope_call *d)
{
    switch (d->rope.kv_dtype) {
    case MSGL_BF16: rope<T, __nv_bfloat16>(x, d); break;
    case MSGL_F16: rope<T, __half>(x, d); break;
    default: rope<T, float>(x, d);
    }
}

extern "C" void msgl__cuda_dual_rope_store(msgl_exec *x, const msgl_dual_rope_call *d)
{
    if (d->rope.tokens > 0) MSGL_BY_DTYPE(x->act, rope_act, x, d);
}
