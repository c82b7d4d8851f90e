// SPDX-License-Identifier: Apache-2.0
//
// Chunks: a block has 64 neighbouring queries of one request and one head, 16 per warp, and walks
// their keys in tiles, the next tile on its way while one is computed. First come tiles of the
// cached prefix, which all queries see; then those with the new tokens, where each query sees what
// is before it. (Where only some see a tile, scores are masked.)
//
// Tiles lie at absolute positions, so a row's bits do not depend on the chunk that it came in.
#include "kernel/cuda/attn/rows16.cuh"
#include "kernel/cuda/attn/sink.cuh"
#include "kernel/cuda/attn/triton.h"
#include "kernel/cuda/attn/triton/latent.h"
#include "kernel/cuda/attn/triton/sight.cuh"
#include "kernel/cuda/launch.cuh"
#include "kernel/cuda/ptx/copy.cuh"
#include "kernel/cuda/ptx/shared.cuh"

enum { ROWS = 64, WARPS = 4, THREADS = WARPS * 32 };

template <int HD> struct shape {
    static const int KEYS = HD > 128 ? 32 : 64; // of a tile
    static const int PITCH = msgl_rows16_pitch<HD>::BYTES;
    static const int STAGE = 2 * KEYS * PITCH;
    static const int BYTES = 2 * STAGE;
};

// K and V of keys [from, to) that lie in the tile behind key0; zeros elsewhere, as a masked score
// times what another request has there could be NaN.
template <int HD>
static __device__ __forceinline__ void
load_tile(const char *k, const char *v, size_t slot_bytes, int32_t head_dim, const int32_t *slots,
          int32_t key0, int32_t from, int32_t to, uint32_t stage)
{
    typedef shape<HD> S;
    const int CHUNKS = HD / 8; // of 16 bytes, in a row
#pragma unroll
    for (int i = 0; i < S::KEYS * CHUNKS / THREADS; i++) {
        const int32_t at = i * THREADS + threadIdx.x, row = at / CHUNKS, chunk = at % CHUNKS;
        const int32_t key = key0 + row;
        const bool there = key >= from && key < to && chunk * 8 < head_dim;
        const size_t src = there ? (size_t)slots[key] * slot_bytes + chunk * 16 : 0;
        const uint32_t dst = stage + row * S::PITCH + chunk * 16;
        msgl__copy_async_16(dst, k + src, there);
        msgl__copy_async_16(dst + S::KEYS * S::PITCH, v + src, there);
    }
    msgl__copy_async_commit();
}

// The lane's row r divided by its sum, of which the head's sink is a part.
template <typename T, int HD>
static __device__ __forceinline__ void store_row(const msgl_triton_call &c, size_t token,
                                                 int32_t head, int r, int32_t lane,
                                                 const msgl_rows16<HD> &w)
{
    float sum = w.l[r];
    if (c.attn.sinks != NULL) sum += msgl__attn_sink(c.attn.sinks[head], w.m[r]);
    T *out = (T *)c.attn.out + token * c.attn.ld_out + (size_t)head * c.attn.head_dim;
    msgl_rows16_store(w, r, c.attn.out_scale / sum, c.attn.head_dim, lane, out);
}

// Block (head, 64 queries, request).
template <typename T, int HD>
static __global__
__launch_bounds__(THREADS) void triton_extend(const __grid_constant__ msgl_triton_call c)
{
    typedef shape<HD> S;
    extern __shared__ __align__(128) char smem[];
    const msgl_cuda_attn_call &a = c.attn;
    const int32_t head = blockIdx.x, kv_head = head / (a.num_q_heads / a.num_kv_heads);
    const int32_t req = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    const int32_t queries = a.cu_seqlens_q[req + 1] - a.cu_seqlens_q[req];
    const int32_t first = (gridDim.y - 1 - blockIdx.y) * ROWS; // the last see the most keys
    if (first >= queries) return;
    const int32_t len = a.seqlens_k[req], prefix = len - queries;
    const int32_t last = min(first + ROWS, queries) - 1;

    // The lane's rows.
    const T *q[2];
    int32_t row[2];
    msgl_triton_sight sight(c, prefix);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        row[r] = first + warp * 16 + lane / 4 + r * 8;
        const int32_t token = a.cu_seqlens_q[req] + row[r];
        sight.look(c, r, row[r], token, row[r] <= last);
        q[r] = row[r] > last ? NULL
                             : (const T *)a.q + (size_t)token * a.ld_q + (size_t)head * a.head_dim;
    }
    msgl_rows16<HD> w;
    msgl_rows16_start(q, a.head_dim, lane, &w);

    // All keys that any row sees, and those that all rows see.
    const int32_t least = sight.in_tree ? prefix : prefix + first; // position of any row
    const int32_t any_from = a.window >= 0 ? max(least - a.window, 0) : 0;
    const int32_t any_to = prefix + last + 1;
    const int32_t all_from = a.window >= 0 ? max(prefix + last - a.window, 0) : 0;
    const int32_t all_to = sight.in_tree ? prefix : prefix + first + 1;
    const int32_t begin = any_from / S::KEYS, end = (any_to + S::KEYS - 1) / S::KEYS;
    const int32_t *slots = c.kv_indices + c.kv_indptr[req];
    const size_t slot_bytes = (size_t)a.num_kv_heads * a.head_dim * 2;
    const char *k = (const char *)a.k + (size_t)kv_head * a.head_dim * 2;
    const char *v = (const char *)a.v + (size_t)kv_head * a.head_dim * 2;
    const uint32_t ring = msgl__shared_address(smem);
    const msgl_score score = {a.scale, a.softcap};
    load_tile<HD>(k, v, slot_bytes, a.head_dim, slots, begin * S::KEYS, any_from, any_to, ring);
    for (int32_t tile = begin; tile < end; tile++) {
        const int32_t key0 = tile * S::KEYS;
        const uint32_t at = ring + (tile - begin) % 2 * S::STAGE;
        const uint32_t next = ring + (tile - begin + 1) % 2 * S::STAGE;
        if (tile + 1 < end) {
            load_tile<HD>(k, v, slot_bytes, a.head_dim, slots, key0 + S::KEYS, any_from, any_to,
                          next);
            msgl__copy_async_wait<1>();
        } else {
            msgl__copy_async_wait<0>();
        }
        __syncthreads();
        if (key0 >= all_from && key0 + S::KEYS <= all_to) {
            const auto sees = [](int, int32_t) { return true; };
            msgl_rows16_attend<T, HD, S::KEYS>(score, at, lane, sees, &w);
        } else {
            const auto sees = [&](int r, int32_t i) { return sight.sees(r, key0 + i); };
            msgl_rows16_attend<T, HD, S::KEYS>(score, at, lane, sees, &w);
        }
        __syncthreads(); // the stage is free
    }
    msgl_rows16_sum(&w);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row[r] > last) continue;
        store_row<T>(c, (size_t)(a.cu_seqlens_q[req] + row[r]), head, r, lane, w);
    }
}

template <typename T, int HD> static cudaError_t launch(const msgl_triton_call &c, cudaStream_t s)
{
    const msgl_cuda_attn_call &a = c.attn;
    const dim3 grid((unsigned)a.num_q_heads, (unsigned)((a.max_seqlen_q + ROWS - 1) / ROWS),
                    (unsigned)a.batch);
    constexpr auto kernel = triton_extend<T, HD>;
    const cudaError_t e = msgl__allow_shared<kernel>(shape<HD>::BYTES);
    if (e != cudaSuccess) return e;
    return msgl__launch(kernel, grid, THREADS, shape<HD>::BYTES, s, c);
}

template <typename T> static cudaError_t launch_dim(const msgl_triton_call &c, cudaStream_t s)
{
    return c.attn.head_dim <= 64    ? launch<T, 64>(c, s)
           : c.attn.head_dim <= 128 ? launch<T, 128>(c, s)
                                    : launch<T, 256>(c, s);
}

extern "C" int msgl__cuda_triton_extend(const msgl_triton_call *c, void *stream)
{
    const int32_t dim = c->attn.head_dim;
    if (c->attn.batch == 0) return cudaSuccess;
    if (msgl__triton_is_latent(c)) return msgl__triton_latent_extend(c, stream);
    if (dim < 8 || dim > 256 || dim % 8 != 0) return cudaErrorNotSupported;
    switch (c->attn.dtype) {
    case MSGL_BF16: return launch_dim<__nv_bfloat16>(*c, (cudaStream_t)stream);
    case MSGL_F16: return launch_dim<__half>(*c, (cudaStream_t)stream);
    default: return cudaErrorNotSupported;
    }
}
