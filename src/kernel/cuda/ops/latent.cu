// SPDX-License-Identifier: Apache-2.0
//
// Family rope for latent attention: a token's first block norms its latent vector, rotates its key
// and stores both; the others rotate the heads' parts of q.
#include "kernel/cuda/device.cuh"
#include "kernel/cuda/launch.cuh"
#include "kernel/cuda/ops/ops.h"
#include "kernel/cuda/ops/pool_e4m3.cuh"
#include "kernel/cuda/ops/rms.cuh"

enum { THREADS = 256, PAIRS = 4 * THREADS }; // PAIRS: of q that a block rotates

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
    const float scale = std::is_same<KV, pool_e4m3>::value ? 1 / c.scale : 1;
    for (int i = (int)threadIdx.x; i < c.rank; i += THREADS) {
        to[i] = from_f32<KV>(to_f32(row[i]) * (inv * c.weight[i]) * scale);
    }
    row += c.rank;
    to += c.rank;
    for (int i = (int)threadIdx.x; i < c.half; i += THREADS) {
        const float2 v = rotated(to_f32(row[i]), to_f32(row[c.half + i]), cos_sin, c.half, i);
        to[i] = from_f32<KV>(v.x * scale);
        to[c.half + i] = from_f32<KV>(v.y * scale);
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

template <typename T> static void launch(msgl_exec *x, const msgl_latent_rope_call *c)
{
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
