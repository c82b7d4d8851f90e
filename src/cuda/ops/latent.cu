// SPDX-License-Identifier: Apache-2.0
//
// Family rope for latent attention: a token's first warp norms its latent vector, rotates its key
// and stores both; the others rotate the heads' parts of q, eight pairs a lane. Where rows are not
// made of eights, blocks do that an element at a time.
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/ops.h"
#include "cuda/ops/pool_e4m3.cuh"
#include "cuda/ops/rms.cuh"

enum {
    THREADS = 256,
    PAIRS = 4 * THREADS, // of q that a block rotates
    WARPS = THREADS / 32,
    WARP_PAIRS =
        32 * 8, // that a warp rotates, and elements of a latent vector that it takes at once
    MAX_RANK = 4 * WARP_PAIRS,
};

// --- by warps -----------------------------------------------------------------------------------

// Pairs [i, i + 8) of a head, times `factor`.
template <typename T, typename O>
static __device__ __forceinline__ void rotate_eight(const T *from, O *to, const float *cos_sin,
                                                    int half, int i, float factor)
{
    float a[8], b[8], c[8], s[8], x[8], y[8];
    load8(from + i, a), load8(from + half + i, b);
    load8(cos_sin + i, c), load8(cos_sin + half + i, s);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        x[j] = (a[j] * c[j] - b[j] * s[j]) * factor;
        y[j] = (b[j] * c[j] + a[j] * s[j]) * factor;
    }
    store8(to + i, x), store8(to + half + i, y);
}

template <typename T, typename KV>
static __device__ __forceinline__ void store_by_warp(const msgl_latent_rope_call &c, size_t t,
                                                     const float *cos_sin)
{
    const T *row = (const T *)c.latent + t * c.ld_latent;
    KV *to = (KV *)c.pool + (size_t)c.slots[t] * (size_t)(c.rank + 2 * c.half);
    const int at = (int)threadIdx.x % 32 * 8;
    float v[MAX_RANK / WARP_PAIRS][8], sum = 0;
#pragma unroll
    for (int i = 0; i < MAX_RANK / WARP_PAIRS; i++) {
        if (at + i * WARP_PAIRS >= c.rank) break;
        load8(row + at + i * WARP_PAIRS, v[i]);
#pragma unroll
        for (int j = 0; j < 8; j++) sum += v[i][j] * v[i][j];
    }
    const float factor = pool_factor<KV>(c.scale);
    const float inv = 1.0f / sqrtf(group_sum(sum, 32) / (float)c.rank + c.eps);
#pragma unroll
    for (int i = 0; i < MAX_RANK / WARP_PAIRS; i++) {
        if (at + i * WARP_PAIRS >= c.rank) break;
        float weight[8];
        load8(c.weight + at + i * WARP_PAIRS, weight);
#pragma unroll
        for (int j = 0; j < 8; j++) v[i][j] *= inv * weight[j] * factor;
        store8(to + at + i * WARP_PAIRS, v[i]);
    }
    if (at < c.half) rotate_eight(row + c.rank, to + c.rank, cos_sin, c.half, at, factor);
}

// per: warps of a token.
template <typename T, typename KV>
static __global__ void __launch_bounds__(THREADS)
    latent_by_warps(const msgl_latent_rope_call c, int per)
{
    msgl__pdl_trigger();
    const int warp = (int)(blockIdx.x * WARPS + threadIdx.x / 32), part = warp % per;
    const size_t t = (size_t)(warp / per);
    const float *cos_sin = c.cos_sin + t * 2 * (size_t)c.half;
    msgl__pdl_wait();
    if (t >= (size_t)c.tokens) return;
    if (part == 0) {
        store_by_warp<T, KV>(c, t, cos_sin);
        return;
    }
    const int p = (part - 1) * WARP_PAIRS + (int)threadIdx.x % 32 * 8;
    if (p >= c.num_heads * c.half) return;
    const size_t head = (size_t)(p / c.half);
    rotate_eight((const T *)c.q + t * c.ld_q + head * c.head_q,
                 (T *)c.out + t * c.ld_out + head * c.head_out, cos_sin, c.half, p % c.half, 1);
}

static bool in_eights(const msgl_latent_rope_call *c)
{
    const size_t all = (size_t)c->rank | (size_t)c->half | c->ld_latent | c->ld_q | c->head_q |
                       c->ld_out | c->head_out;
    return all % 8 == 0 && c->rank <= MAX_RANK && c->half <= WARP_PAIRS && aligned16(c->latent) &&
           aligned16(c->weight) && aligned16(c->cos_sin) && aligned16(c->q) && aligned16(c->out) &&
           aligned16(c->pool);
}

// --- by blocks, an element at a time ------------------------------------------------------------

// Of (a, b), by cos_sin [2 half].
static __device__ __forceinline__ float2 rotated(float a, float b, const float *cos_sin, int half,
                                                 int i)
{
    const float c = cos_sin[i], s = cos_sin[half + i];
    return make_float2(a * c - b * s, b * c + a * s);
}

template <typename T, typename KV>
static __device__ __forceinline__ void store_latent(const msgl_latent_rope_call &c, size_t t,
                                                    const float *cos_sin)
{
    const T *row = (const T *)c.latent + t * c.ld_latent;
    KV *to = (KV *)c.pool + (size_t)c.slots[t] * (size_t)(c.rank + 2 * c.half);
    const float inv = 1.0f / root_mean_square(row, c.eps, c.rank);
    const float factor = pool_factor<KV>(c.scale);
    for (int i = (int)threadIdx.x; i < c.rank; i += THREADS) {
        to[i] = from_f32<KV>(to_f32(row[i]) * (inv * c.weight[i]) * factor);
    }
    row += c.rank;
    to += c.rank;
    for (int i = (int)threadIdx.x; i < c.half; i += THREADS) {
        const float2 v = rotated(to_f32(row[i]), to_f32(row[c.half + i]), cos_sin, c.half, i);
        to[i] = from_f32<KV>(v.x * factor);
        to[c.half + i] = from_f32<KV>(v.y * factor);
    }
}

template <typename T, typename KV>
static __global__ void __launch_bounds__(THREADS) latent_kernel(const msgl_latent_rope_call c)
{
    msgl__pdl_trigger();
    const size_t t = blockIdx.x;
    const float *cos_sin = c.cos_sin + t * 2 * (size_t)c.half;
    msgl__pdl_wait();
    if (blockIdx.y == 0) {
        store_latent<T, KV>(c, t, cos_sin);
        return;
    }
    const int first = ((int)blockIdx.y - 1) * PAIRS, all = c.num_heads * c.half;
    for (int p = first + (int)threadIdx.x; p < first + PAIRS && p < all; p += THREADS) {
        const size_t head = (size_t)(p / c.half);
        const int i = p % c.half;
        const T *q = (const T *)c.q + t * c.ld_q + head * c.head_q;
        T *out = (T *)c.out + t * c.ld_out + head * c.head_out;
        const float2 v = rotated(to_f32(q[i]), to_f32(q[c.half + i]), cos_sin, c.half, i);
        out[i] = from_f32<T>(v.x);
        out[c.half + i] = from_f32<T>(v.y);
    }
}

template <typename T> static void launch_warps(msgl_exec *x, const msgl_latent_rope_call *c)
{
    const int per = 1 + (c->num_heads * c->half + WARP_PAIRS - 1) / WARP_PAIRS;
    const unsigned blocks = (unsigned)(((int64_t)c->tokens * per + WARPS - 1) / WARPS);
    void (*const fn)(msgl_latent_rope_call, int) =
        c->dtype == MSGL_BF16   ? latent_by_warps<T, __nv_bfloat16>
        : c->dtype == MSGL_F16  ? latent_by_warps<T, __half>
        : c->dtype == MSGL_E4M3 ? latent_by_warps<T, pool_e4m3>
                                : latent_by_warps<T, float>;
    MSGL_CUDA_TRY(x,
                  msgl__launch(fn, dim3(blocks), dim3(THREADS), 0, msgl__cuda_stream(x), *c, per));
}

template <typename T> static void launch(msgl_exec *x, const msgl_latent_rope_call *c)
{
    if (in_eights(c)) {
        launch_warps<T>(x, c);
        return;
    }
    const int blocks = 1 + (c->num_heads * c->half + PAIRS - 1) / PAIRS;
    void (*const fn)(msgl_latent_rope_call) = c->dtype == MSGL_BF16
                                                  ? latent_kernel<T, __nv_bfloat16>
                                              : c->dtype == MSGL_F16  ? latent_kernel<T, __half>
                                              : c->dtype == MSGL_E4M3 ? latent_kernel<T, pool_e4m3>
                                                                      : latent_kernel<T, float>;
    MSGL_CUDA_TRY(x, msgl__launch(fn, dim3((unsigned)c->tokens, (unsigned)blocks), dim3(THREADS), 0,
                                  msgl__cuda_stream(x), *c));
}

void msgl__cuda_latent_rope_store(msgl_exec *x, const msgl_latent_rope_call *c)
{
    if (c->tokens <= 0) return;
    MSGL_BY_DTYPE(x->act, launch, x, c);
}
