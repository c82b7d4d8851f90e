// SPDX-License-Identifier: Apache-2.0
//
// Attention as it is defined, for every dtype and shape: what the fast kernels are not made for
// (f32, odd head dimensions, trees of these). All arithmetic is f32.
//
// One warp per query row and head. A step takes 32 keys: each lane the score of its own key, then
// all lanes together the weighted sum of the 32 rows of V, each lane its own elements; the softmax
// is online (Milakov & Gimelshein 2018).
#include "cuda/attn/reference.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "cuda/attn/last_key.cuh"
#include "cuda/attn/page_row.cuh"
#include "cuda/launch.cuh"
#include "cuda/owner.cuh"

// As kernel/attn.h has them, which is for C alone.
enum { MAX_DIM = 256, MAX_LATENT = 576 }; // the second one is for K and V of up to 512, too
enum { WARPS = 4, STEP = 32 };

static __device__ __forceinline__ float to_f32(float x)
{
    return x;
}

static __device__ __forceinline__ float to_f32(__half x)
{
    return __half2float(x);
}

static __device__ __forceinline__ float to_f32(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

static __device__ __forceinline__ float to_f32(__nv_fp8_e4m3 x)
{
    return (float)x;
}

static __device__ __forceinline__ void from_f32(float *p, float x)
{
    *p = x;
}

static __device__ __forceinline__ void from_f32(__half *p, float x)
{
    *p = __float2half_rn(x);
}

static __device__ __forceinline__ void from_f32(__nv_bfloat16 *p, float x)
{
    *p = __float2bfloat16_rn(x);
}

static __device__ __forceinline__ float warp_max(float x)
{
    for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
    return x;
}

static __device__ __forceinline__ float warp_sum(float x)
{
    for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
    return x;
}

// What holds eight elements of E4M3, or 16 bytes of others.
template <typename T> struct packed_of {
    typedef uint4 type;
};
template <> struct packed_of<__nv_fp8_e4m3> {
    typedef uint2 type;
};

// q.k of one key.
template <typename T>
static __device__ __forceinline__ float dot(const float *q, const T *k, int32_t dim)
{
    typedef typename packed_of<T>::type pack;
    const int N = sizeof(pack) / sizeof(T);
    float sum = 0.f;
    for (int32_t d = 0; d < dim; d += N) {
        const pack packed = *(const pack *)(k + d);
        const T *x = (const T *)&packed;
#pragma unroll
        for (int i = 0; i < N; i++) sum = fmaf(q[d + i], to_f32(x[i]), sum);
    }
    return sum;
}

// Whether a new token whose path in a tree is `path` sees a key that is no later, of which `prefix`
// are older than the step: distances count along the path.
static __device__ __forceinline__ bool tree_sees(uint64_t path, int32_t prefix, int32_t window,
                                                 int32_t key)
{
    const int32_t token = key - prefix;
    if (token >= 0 && (path >> token & 1) == 0) return false;
    const int32_t before = token < 0 ? key : prefix + __popcll(path & ((1ull << token) - 1));
    return window < 0 || prefix + __popcll(path) - 1 - before <= window;
}

// DIM: most elements of K and V, a multiple of 32. TREE: new tokens form trees.
template <typename T, typename KV, int DIM, bool TREE>
static __global__
__launch_bounds__(WARPS * 32) void attn_ref_kernel(const __grid_constant__ msgl_cuda_attn_call c,
                                                   const uint64_t *tree)
{
    __shared__ float queries[WARPS][DIM];
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, dim = c.head_dim;
    const int64_t unit = (int64_t)blockIdx.x * WARPS + warp;
    const int32_t row = (int32_t)(unit / c.num_q_heads), head = (int32_t)(unit % c.num_q_heads);
    msgl__pdl_wait();
    msgl__pdl_trigger();
    if (row >= c.total_q) return;

    const int32_t req = msgl__owner_of(c.cu_seqlens_q, c.batch, row);
    const int32_t pos = c.seqlens_k[req] - c.cu_seqlens_q[req + 1] + row; // of the query
    const int32_t prefix = pos - (row - c.cu_seqlens_q[req]);
    const uint64_t path = TREE ? tree[row] : 0;
    // First key; in a tree of those that a window may leave.
    const int32_t least = TREE ? prefix + __popcll(path) - 1 : pos;
    const int32_t begin = c.window >= 0 && least > c.window ? least - c.window : 0;
    const int32_t last = msgl__last_key(c, pos, c.seqlens_k[req]);
    const msgl_page_row table = msgl__page_row(c, c.table_rows[req]);
    const int32_t kv_head = head / (c.num_q_heads / c.num_kv_heads);
    const int32_t v_dim = c.v == c.k ? dim : c.v_dim; // from head to head
    const size_t k_stride = (size_t)c.num_kv_heads * dim, v_stride = (size_t)c.num_kv_heads * v_dim;
    const KV *k = (const KV *)c.k + (size_t)kv_head * dim;
    const KV *v = (const KV *)c.v + (size_t)kv_head * v_dim;
    const T *q = (const T *)c.q + (size_t)row * c.ld_q + (size_t)head * dim;
    for (int32_t d = lane; d < dim; d += 32) queries[warp][d] = to_f32(q[d]);
    __syncwarp();

    float acc[DIM / 32] = {}, m = -INFINITY, l = 0.f;
    for (int32_t first = begin / STEP * STEP; first <= last; first += STEP) {
        const int32_t key = first + lane;
        const bool seen =
            key >= begin && key <= last && (!TREE || tree_sees(path, prefix, c.window, key));
        const int32_t slot = table[key > last ? last : key < begin ? begin : key];
        float s = dot(queries[warp], k + (size_t)slot * k_stride, dim) * c.scale;
        if (c.softcap > 0.f) s = c.softcap * tanhf(s / c.softcap);
        if (!seen) s = -INFINITY;
        const float next = fmaxf(m, warp_max(s));
        const bool none = TREE && next == -INFINITY; // seen yet: a path may begin later
        const float p = seen ? expf(s - next) : 0.f, rescale = none ? 1.f : expf(m - next);
        l = l * rescale + warp_sum(p);
        m = next;
#pragma unroll
        for (int i = 0; i < DIM / 32; i++) acc[i] *= rescale;
        const int32_t from = first < begin ? begin - first : 0;
        const int32_t to = last - first < STEP - 1 ? last - first : STEP - 1;
        for (int32_t j = from; j <= to; j++) {
            const float pj = __shfl_sync(~0u, p, j);
            const KV *vj = v + (size_t)__shfl_sync(~0u, slot, j) * v_stride;
#pragma unroll
            for (int i = 0; i < DIM / 32; i++) {
                if (i * 32 + lane < c.v_dim) acc[i] = fmaf(pj, to_f32(vj[i * 32 + lane]), acc[i]);
            }
        }
    }
    const float sink = c.sinks != NULL ? expf(c.sinks[head] - m) : 0.f;
    const float scale = c.out_scale / (l + sink);
    T *out = (T *)c.out + (size_t)row * c.ld_out + (size_t)head * c.v_dim;
#pragma unroll
    for (int i = 0; i < DIM / 32; i++) {
        if (i * 32 + lane < c.v_dim) from_f32(out + i * 32 + lane, acc[i] * scale);
    }
    if (c.lse != NULL && lane == 0) c.lse[(size_t)row * c.num_q_heads + head] = m + logf(l);
}

template <typename T, typename KV, int DIM>
static cudaError_t launch_dim(const msgl_cuda_attn_call &c, const uint64_t *tree, cudaStream_t s)
{
    const int64_t units = (int64_t)c.total_q * c.num_q_heads;
    const dim3 grid((unsigned)((units + WARPS - 1) / WARPS)), block(WARPS * 32);
    return tree != NULL
               ? msgl__launch(attn_ref_kernel<T, KV, DIM, true>, grid, block, 0, s, c, tree)
               : msgl__launch(attn_ref_kernel<T, KV, DIM, false>, grid, block, 0, s, c, tree);
}

template <typename T, typename KV = T>
static cudaError_t launch(const msgl_cuda_attn_call &c, const uint64_t *tree, cudaStream_t s)
{
    return c.head_dim <= MAX_DIM ? launch_dim<T, KV, MAX_DIM>(c, tree, s)
                                 : launch_dim<T, KV, MAX_LATENT>(c, tree, s);
}

extern "C" int msgl__cuda_attn_reference_tree(const msgl_cuda_attn_call *c, const uint64_t *tree,
                                              void *stream)
{
    if (c->head_dim < 8 || c->head_dim > MAX_LATENT || c->head_dim % 8 != 0) {
        return cudaErrorNotSupported;
    }
    if (c->total_q == 0) return cudaSuccess;
    const cudaStream_t s = (cudaStream_t)stream;
    if (c->e4m3) {
        if (c->dtype != MSGL_BF16) return cudaErrorNotSupported;
        return launch<__nv_bfloat16, __nv_fp8_e4m3>(*c, tree, s);
    }
    switch (c->dtype) {
    case MSGL_F32: return launch<float>(*c, tree, s);
    case MSGL_F16: return launch<__half>(*c, tree, s);
    case MSGL_BF16: return launch<__nv_bfloat16>(*c, tree, s);
    default: return cudaErrorNotSupported;
    }
}

extern "C" int msgl__cuda_attn_reference(const msgl_cuda_attn_call *c, void *stream)
{
    return msgl__cuda_attn_reference_tree(c, NULL, stream);
}
