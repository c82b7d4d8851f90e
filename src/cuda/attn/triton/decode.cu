// SPDX-License-Identifier: Apache-2.0
//
// Answers, in two stages. Stage 1: block (heads, split, request) attends to one split of a
// request's keys and leaves the result with the logarithm of its weight. Up to 16 query heads that
// share a KV head go together, as the 16 rows of a tensor core's product, so that K and V are read
// once for all of them; a head of its own takes dot products. Stage 2 merges a head's splits.
// (Stage 1 of latent caches: latent.cu.)
//
// Within a block the keys are dealt out once more, to warps or groups of lanes, whose partial
// results are merged by the same formula in shared memory.
#include "cuda/attn/rows16.cuh"
#include "cuda/attn/triton/latent.h"
#include "cuda/attn/triton/stages.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/shared.cuh"

static __device__ __forceinline__ msgl_triton_range keys_of(const msgl_triton_call &c, int32_t req,
                                                            int32_t split)
{
    const int32_t len = c.attn.seqlens_k[req];
    return msgl__triton_range(len, msgl__triton_seen(len, c.attn.window), c.num_kv_splits[req],
                              split);
}

// Stage 1 of groups. Each warp takes every WARPS-th tile of the split's keys and has a ring of
// STAGES tiles of its own in shared memory, so that no warp waits for another until the end. FEW:
// there are fewer blocks than multiprocessors, and each of them is twice as large.
template <typename T, int HD, bool FEW> struct grouped {
    static const int WARPS = (HD > 128 ? 2 : 4) * (FEW ? 2 : 1), THREADS = WARPS * 32, STAGES = 2;
    static const int KEYS = 16; // of a tile
    static const int PITCH = msgl_rows16_pitch<T, HD>::BYTES;
    static const int TILE = 2 * KEYS * PITCH, RING = STAGES * TILE, BYTES = WARPS * RING;
    static const int MERGE_PITCH = HD + 8; // floats
    static_assert(WARPS * 16 * MERGE_PITCH * 4 <= BYTES,
                  "partials are merged where the rings were");
};

// Brings a tile: lane i has the slot of key i % KEYS, negative where there is none.
template <typename T, int HD>
static __device__ __forceinline__ void bring_tile(const msgl_cuda_attn_call &a, int32_t kv_head,
                                                  int32_t slot, int32_t lane, uint32_t to)
{
    typedef grouped<T, HD, false> S;
    const int CHUNKS = HD / 8; // of 16 bytes, in a row
    const size_t head_bytes = (size_t)a.head_dim * 2, slot_bytes = a.num_kv_heads * head_bytes;
#pragma unroll
    for (int i = 0; i < S::KEYS * CHUNKS / 32; i++) {
        const int32_t row = (i * 32 + lane) / CHUNKS, chunk = (i * 32 + lane) % CHUNKS;
        const int32_t from = __shfl_sync(~0u, slot, row);
        const bool there = from >= 0 && chunk * 8 < a.head_dim;
        const size_t src = there ? from * slot_bytes + kv_head * head_bytes + chunk * 16 : 0;
        const uint32_t dst = to + row * S::PITCH + chunk * 16;
        msgl__copy_async_16_line(dst, (const char *)a.k + src, there);
        msgl__copy_async_16_line(dst + S::KEYS * S::PITCH, (const char *)a.v + src, there);
    }
}

template <typename T, int HD, bool FEW>
static __global__ __launch_bounds__(grouped<T, HD, FEW>::THREADS) void triton_stage1_grouped(
    const __grid_constant__ msgl_triton_call c)
{
    typedef grouped<T, HD, FEW> S;
    const int STAGES = S::STAGES;
    extern __shared__ __align__(128) char smem[];
    __shared__ float2 ml[S::WARPS * 16];
    const msgl_cuda_attn_call &a = c.attn;
    const int32_t group = a.num_q_heads / a.num_kv_heads;
    const int32_t blocks = msgl__triton_div(group, MSGL_TRITON_HEADS);
    const int32_t kv_head = blockIdx.x / blocks, block = blockIdx.x % blocks;
    const int32_t head = kv_head * group + block * MSGL_TRITON_HEADS;
    const int32_t rows = min(group - block * MSGL_TRITON_HEADS, MSGL_TRITON_HEADS);
    const int32_t req = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    const msgl_triton_range keys = keys_of(c, req, blockIdx.y);
    if (keys.begin == keys.end) return;

    const int32_t *slots = c.kv_indices + c.kv_indptr[req];
    const int32_t tiles = msgl__triton_div(keys.end - keys.begin, S::KEYS);
    const uint32_t ring = msgl__shared_address(smem) + warp * S::RING;
    const auto slot_of = [&](int32_t tile) { // read a tile ahead of where it is needed
        const int32_t key = keys.begin + tile * S::KEYS + lane % S::KEYS;
        return key < keys.end ? slots[key] : -1;
    };
    const auto bring = [&](int32_t tile, int32_t slot, int32_t stage) {
        if (tile < tiles) bring_tile<T, HD>(a, kv_head, slot, lane, ring + stage * S::TILE);
        msgl__copy_async_commit();
    };
    int32_t slot = slot_of(warp), stage = 0;
#pragma unroll
    for (int i = 0; i < STAGES; i++) {
        bring(warp + i * S::WARPS, slot, i);
        slot = slot_of(warp + (i + 1) * S::WARPS);
    }
    const T *q[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int32_t row = lane / 4 + r * 8;
        q[r] =
            row < rows ? (const T *)a.q + req * a.ld_q + (size_t)(head + row) * a.head_dim : NULL;
    }
    msgl_rows16<HD> w;
    msgl_rows16_query<T>(q, a.head_dim, lane, &w);
    msgl_rows16_start(&w);
    const msgl_score score = {a.scale, a.softcap};
    for (int32_t tile = warp; tile < tiles; tile += S::WARPS) {
        msgl__copy_async_wait<STAGES - 1>();
        __syncwarp();
        const int32_t left = keys.end - keys.begin - tile * S::KEYS;
        const auto sees = [&](int, int32_t i) { return i < left; };
        msgl_rows16_attend<T, HD, S::KEYS>(score, ring + stage * S::TILE, lane, sees, &w);
        __syncwarp();
        bring(tile + STAGES * S::WARPS, slot, stage);
        slot = slot_of(tile + (STAGES + 1) * S::WARPS);
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
    msgl__copy_async_wait<0>();
    __syncthreads(); // the rings are free
    msgl_rows16_sum(&w);
    float *o = (float *)smem;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int32_t row = warp * 16 + lane / 4 + r * 8;
        if (lane % 4 == 0) ml[row] = make_float2(w.m[r], w.l[r]);
#pragma unroll
        for (int nb = 0; nb < HD / 8; nb++) {
            *(float2 *)(o + row * S::MERGE_PITCH + nb * 8 + lane % 4 * 2) =
                make_float2(w.o[nb][2 * r], w.o[nb][2 * r + 1]);
        }
    }
    __syncthreads();
    msgl_merge_groups<S::WARPS, 16, S::MERGE_PITCH>(c, o, ml, req, head, rows, blockIdx.y);
}

// Stage 1 of heads of their own.
template <typename T, int HD>
static __global__ __launch_bounds__(MSGL_DOTS_THREADS) void triton_stage1_dots(
    const __grid_constant__ msgl_triton_call c)
{
    __shared__ msgl_dots_room<HD, MSGL_DOTS_THREADS> room;
    const int32_t head = blockIdx.x, req = blockIdx.z;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    const msgl_triton_range keys = keys_of(c, req, blockIdx.y);
    if (keys.begin == keys.end) return;
    const int32_t *slots = c.kv_indices + c.kv_indptr[req];
    msgl_dots_attend<T, HD>(c, req, head, head, slots, keys, blockIdx.y, &room);
}

// Stage 2: block (head, request). Requests without splits are left out.
enum { MERGE_THREADS = 128, MAX_MERGE_THREADS = 256 };

template <typename T>
static __global__
__launch_bounds__(MAX_MERGE_THREADS) void triton_stage2(const __grid_constant__ msgl_triton_call c)
{
    const int32_t head = blockIdx.x, req = blockIdx.y;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    if (c.num_kv_splits[req] == 0) return;
    msgl_merge_splits<T>(c, req, head, [&](int32_t split) {
        const msgl_triton_range keys = keys_of(c, req, split);
        return keys.begin < keys.end;
    });
}

template <typename T> static cudaError_t launch_stage2(const msgl_triton_call &c, cudaStream_t s)
{
    const dim3 rows((unsigned)c.attn.num_q_heads, (unsigned)c.attn.batch);
    const int threads = c.attn.v_dim > 2 * MERGE_THREADS ? MAX_MERGE_THREADS : MERGE_THREADS;
    return msgl__launch(triton_stage2<T>, rows, threads, 0, s, c);
}

template <typename T, int HD, bool FEW>
static cudaError_t launch_grouped(const msgl_triton_call &c, dim3 grid, cudaStream_t s)
{
    typedef grouped<T, HD, FEW> S;
    constexpr auto kernel = triton_stage1_grouped<T, HD, FEW>;
    const cudaError_t e = msgl__allow_shared<kernel>(S::BYTES);
    if (e != cudaSuccess) return e;
    return msgl__launch(kernel, grid, S::THREADS, S::BYTES, s, c);
}

template <typename T, int HD> static cudaError_t launch(const msgl_triton_call &c, cudaStream_t s)
{
    const msgl_cuda_attn_call &a = c.attn;
    const int32_t group = a.num_q_heads / a.num_kv_heads;
    const int32_t blocks = a.num_kv_heads * msgl__triton_div(group, MSGL_TRITON_HEADS);
    const dim3 grid((unsigned)blocks, MSGL_TRITON_MAX_SPLITS, (unsigned)a.batch);
    msgl_gpu gpu;
    cudaError_t e = msgl__current_gpu(&gpu);
    if (e != cudaSuccess) return e;
    const bool large = gpu.major == 9 || gpu.major == 10; // in shared memory
    const bool few = large && !a.deterministic &&         // whose bits must not tell the batch
                     (int64_t)blocks * MSGL_TRITON_MAX_SPLITS * a.batch <= gpu.sms;
    e = group == 1 ? msgl__launch(triton_stage1_dots<T, HD>, grid, MSGL_DOTS_THREADS, 0, s, c)
        : few      ? launch_grouped<T, HD, true>(c, grid, s)
                   : launch_grouped<T, HD, false>(c, grid, s);
    return e != cudaSuccess ? e : launch_stage2<T>(c, s);
}

template <typename T> static cudaError_t launch_dim(const msgl_triton_call &c, cudaStream_t s)
{
    return c.attn.head_dim <= 64    ? launch<T, 64>(c, s)
           : c.attn.head_dim <= 128 ? launch<T, 128>(c, s)
                                    : launch<T, 256>(c, s);
}

static int decode_latent(const msgl_triton_call *c, cudaStream_t s)
{
    const int code = msgl__triton_latent_stage1(c, s);
    if (code != cudaSuccess) return code;
    return c->attn.dtype == MSGL_BF16 ? launch_stage2<__nv_bfloat16>(*c, s)
                                      : launch_stage2<__half>(*c, s);
}

extern "C" int msgl__cuda_triton_decode(const msgl_triton_call *c, void *stream)
{
    const int32_t dim = c->attn.head_dim;
    if (c->attn.batch == 0) return cudaSuccess;
    if (msgl__triton_is_latent(c)) return decode_latent(c, (cudaStream_t)stream);
    if (dim < 8 || dim > 256 || dim % 8 != 0) return cudaErrorNotSupported;
    switch (c->attn.dtype) {
    case MSGL_BF16: return launch_dim<__nv_bfloat16>(*c, (cudaStream_t)stream);
    case MSGL_F16: return launch_dim<__half>(*c, (cudaStream_t)stream);
    default: return cudaErrorNotSupported;
    }
}
