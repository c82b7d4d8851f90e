// SPDX-License-Identifier: Apache-2.0
//
// Chunks: a block has 64 neighbouring queries of one request and one head, 16 per warp, and walks
// their keys in tiles, the next tile on its way while one is computed. First come tiles of the
// cached prefix, which all queries see; then those with the new tokens, where each query sees what
// is before it. (Where only some see a tile, scores are masked.)
//
// Tiles lie at absolute positions, so a row's bits do not depend on the chunk that it came in.
#include "cuda/attn/rows16.cuh"
#include "cuda/attn/sink.cuh"
#include "cuda/attn/triton.h"
#include "cuda/attn/triton/latent.h"
#include "cuda/attn/triton/sight.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/shared.cuh"

enum { ROWS = 64, WARPS = 4, THREADS = WARPS * 32 };

template <typename T, int HD> struct shape {
    static const int KEYS = HD > 128 ? 32 : 64; // of a tile
    static const int BYTES = 2 * 2 * KEYS * msgl_rows16_pitch<T, HD>::BYTES;
};

// The lane's row r divided by its sum, of which the head's sink is a part.
template <typename T, int HD>
static __device__ __forceinline__ void store_row(const msgl_triton_call &c, size_t token,
                                                 int32_t head, int r, int32_t lane,
                                                 const msgl_rows16<HD> &w)
{
    float sum = w.l[r];
    if (c.attn.sinks != NULL) sum += msgl__attn_sink(c.attn.sinks[head], w.m[r]);
    T *out = (T *)c.attn.out + token * c.attn.ld_out + (size_t)head * c.attn.head_dim;
    msgl_rows16_store<T>(w, r, c.attn.out_scale / sum, c.attn.head_dim, lane, out);
}

// Block (head, 64 queries, request).
template <typename T, int HD>
static __global__
__launch_bounds__(THREADS) void triton_extend(const __grid_constant__ msgl_triton_call c)
{
    typedef shape<T, HD> S;
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
    msgl_rows16_query<T>(q, a.head_dim, lane, &w);
    msgl_rows16_start(&w);

    // All keys that any row sees, and those that all rows see.
    const int32_t least = sight.in_tree ? prefix : prefix + first; // position of any row
    const int32_t any_from = a.window >= 0 ? max(least - a.window, 0) : 0;
    const int32_t any_to = prefix + last + 1;
    const int32_t all_from = a.window >= 0 ? max(prefix + last - a.window, 0) : 0;
    const int32_t all_to = sight.in_tree ? prefix : prefix + first + 1;
    const auto keys = msgl_rows16_keys_of<T>(a, kv_head, c.kv_indices + c.kv_indptr[req]);
    const msgl_score score = {a.scale, a.softcap};
    const auto sees = [&](int r, int32_t key) { return sight.sees(r, key); };
    msgl_rows16_walk<T, HD, S::KEYS, THREADS>(keys, any_from, any_to, all_from, all_to, score, sees,
                                              msgl__shared_address(smem), lane, &w);
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
    const cudaError_t e = msgl__allow_shared<kernel>(shape<T, HD>::BYTES);
    if (e != cudaSuccess) return e;
    return msgl__launch(kernel, grid, THREADS, shape<T, HD>::BYTES, s, c);
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
