// SPDX-License-Identifier: Apache-2.0
//
// What torch_native does between its products.
#include "cuda/attn/native.h"

#include "cuda/launch.cuh"
#include "cuda/ops/vec8.cuh"
#include "cuda/ptx/e4m3.cuh"

enum { WARPS = 8, THREADS = 256 };

// Eight elements of E4M3 as bf16, exactly.
static __device__ __forceinline__ uint4 to_bf16(uint2 v)
{
    float f[8];
    unpack8(msgl__eight_to_f16(v.x, v.y), f, __half());
    return pack8(f, __nv_bfloat16());
}

// A warp a row; blockIdx.y: K, V. units: of 16 bytes in a row that is written.
template <bool E4M3>
static __global__
__launch_bounds__(THREADS) void gather_kernel(const __grid_constant__ msgl_native_gather g,
                                              int32_t units)
{
    const int32_t row = (int32_t)(blockIdx.x * WARPS + threadIdx.x / 32), lane = threadIdx.x % 32;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    if (row >= g.rows) return;
    const bool there = row >= g.first && row < g.end;
    const size_t from =
        there ? (size_t)msgl__paging_slot(g.paging, g.table, g.place + row) * (size_t)units : 0;
    const void *pool = blockIdx.y == 0 ? g.k : g.v;
    uint4 *to = (uint4 *)(blockIdx.y == 0 ? g.to_k : g.to_v) + (size_t)row * (size_t)units;
    for (int32_t i = lane; i < units; i += 32) {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (there && E4M3) v = to_bf16(((const uint2 *)pool)[from + i]);
        if (there && !E4M3) v = ((const uint4 *)pool)[from + i];
        to[i] = v;
    }
}

// A warp a run; blockIdx.y: head.
static __global__
__launch_bounds__(THREADS) void copy_kernel(const __grid_constant__ msgl_native_copy c)
{
    const int32_t token = (int32_t)(blockIdx.x * WARPS + threadIdx.x / 32);
    const size_t head = blockIdx.y;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    if (token >= c.tokens) return;
    const char *from = (const char *)c.from + head * c.from_head + (size_t)token * c.from_token;
    char *to = (char *)c.to + head * c.to_head + (size_t)token * c.to_token;
    for (int32_t i = threadIdx.x % 32; i < c.bytes / 16; i += 32) {
        ((uint4 *)to)[i] = ((const uint4 *)from)[i];
    }
}

static __device__ __forceinline__ void store4(float *p, const float v[4])
{
    *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]);
}

template <typename T> static __device__ __forceinline__ void store4(T *p, const float v[4])
{
    *(uint2 *)p = make_uint2(msgl__pack_two(v[0], v[1], T()), msgl__pack_two(v[2], v[3], T()));
}

static __device__ __forceinline__ float capped(float s, float cap)
{
    return cap > 0.f ? cap * tanhf(s / cap) : s;
}

// The largest score and the sum of exponentials above it of all threads' keys, in an order that the
// threads alone decide.
static __device__ __forceinline__ void combine(float *m, float *l)
{
    __shared__ float warp_m[WARPS], warp_l[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float most = *m;
    for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(MSGL_FULL_MASK, most, d));
    if (lane == 0) warp_m[warp] = most;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) most = fmaxf(most, warp_m[i]);
    const float sum = group_sum(*l * expf(*m - most), 32);
    if (lane == 0) warp_l[warp] = sum;
    __syncthreads();
    *m = most;
    *l = 0.f;
    for (int i = 0; i < WARPS; i++) *l += warp_l[i];
}

// A block a row; blockIdx.y: KV head. Keys are dealt to threads four at a time by their position,
// so that the sum of a row is the same whatever block of queries and keys it is in.
template <typename T>
static __global__
__launch_bounds__(THREADS) void softmax_kernel(const __grid_constant__ msgl_native_softmax s)
{
    const int32_t row = (int32_t)blockIdx.x, head = (int32_t)blockIdx.y, tid = threadIdx.x;
    const int32_t pos = s.first_pos + row / s.group;
    int32_t first = s.window >= 0 && pos > s.window ? pos - s.window : 0;
    if (s.chunk > 0 && pos / s.chunk * s.chunk > first) first = pos / s.chunk * s.chunk;
    const int32_t from = first / 4, to = pos / 4; // fours of keys, the last one included
    const int32_t begin = s.first_key / 4, end = begin + s.keys / 4;
    const size_t at = ((size_t)head * gridDim.x + (size_t)row) * (size_t)s.keys;
    const float4 *scores = (const float4 *)(s.scores + at);
    T *p = (T *)s.p + at;
    msgl__pdl_wait();
    msgl__pdl_trigger();

    float m = -INFINITY, l = 0.f;
    for (int32_t i = from + (tid - from % THREADS + THREADS) % THREADS; i <= to; i += THREADS) {
        const float4 four = scores[i - begin];
        const float x[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (4 * i + j < first || 4 * i + j > pos) continue;
            const float score = capped(x[j], s.softcap), next = fmaxf(m, score);
            l = l * expf(m - next) + expf(score - next);
            m = next;
        }
    }
    combine(&m, &l);
    if (s.sinks != NULL) l += expf(s.sinks[head * s.group + row % s.group] - m);
    for (int32_t i = begin + tid; i < end; i += THREADS) {
        float v[4] = {0.f, 0.f, 0.f, 0.f};
        if (i >= from && i <= to) {
            const float4 four = scores[i - begin];
            const float x[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const bool seen = 4 * i + j >= first && 4 * i + j <= pos;
                v[j] = seen ? expf(capped(x[j], s.softcap) - m) / l : 0.f;
            }
        }
        store4(p + 4 * (size_t)(i - begin), v);
    }
}

static unsigned blocks_of(int32_t rows)
{
    return (unsigned)((rows + WARPS - 1) / WARPS);
}

extern "C" int msgl__cuda_native_gather(const msgl_native_gather *g, void *stream)
{
    if (g->e4m3 && g->dtype != MSGL_BF16) return cudaErrorNotSupported;
    const int32_t units = g->width / 8 * (int32_t)msgl__dtype_size(g->dtype) / 2;
    const dim3 grid(blocks_of(g->rows), g->v != NULL ? 2 : 1), block(THREADS);
    const cudaStream_t s = (cudaStream_t)stream;
    return g->e4m3 ? msgl__launch(gather_kernel<true>, grid, block, 0, s, *g, units)
                   : msgl__launch(gather_kernel<false>, grid, block, 0, s, *g, units);
}

extern "C" int msgl__cuda_native_copy(const msgl_native_copy *c, void *stream)
{
    const dim3 grid(blocks_of(c->tokens), (unsigned)c->heads);
    return msgl__launch(copy_kernel, grid, dim3(THREADS), 0, (cudaStream_t)stream, *c);
}

extern "C" int msgl__cuda_native_softmax(const msgl_native_softmax *c, void *stream)
{
    const dim3 grid((unsigned)(c->tokens * c->group), (unsigned)c->num_kv_heads), block(THREADS);
    const cudaStream_t s = (cudaStream_t)stream;
    switch (c->dtype) {
    case MSGL_F32: return msgl__launch(softmax_kernel<float>, grid, block, 0, s, *c);
    case MSGL_F16: return msgl__launch(softmax_kernel<__half>, grid, block, 0, s, *c);
    case MSGL_BF16: return msgl__launch(softmax_kernel<__nv_bfloat16>, grid, block, 0, s, *c);
    default: return cudaErrorNotSupported;
    }
}
