// SPDX-License-Identifier: Apache-2.0
//
// Prefill attention for every GPU with mma.m16n8k16 and cp.async, in the manner of FlashAttention-2
// (Dao 2023): a CTA has 64 query tokens of one head, 16 per warp, and walks the keys in tiles, the
// next tile on its way while one is computed. Head dimensions between the instantiated ones are
// filled up with zeros. Which request a CTA works for it finds from cu_seqlens_q.
//
// Tiles lie at absolute positions, so a row's bits do not depend on the chunk that it came in.
#include "cuda/attn/prefill_sm80.h"

#include "cuda/attn/last_key.cuh"
#include "cuda/attn/rows16.cuh"
#include "cuda/attn/sink.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/shared.cuh"

enum { ROWS = 64, WARPS = 4, THREADS = WARPS * 32 };

template <typename T, int HD> struct shape {
    static const int KEYS = HD > 128 ? 32 : 64; // of a tile
    static const int BYTES = 2 * 2 * KEYS * msgl_rows16_pitch<T, HD>::BYTES;
};

struct place { // of a CTA: query rows [row, row + rows), the first at position pos of len
    int32_t req, row, rows, pos, len;
};

// CTA i of the tiles of all requests, in order; false: there are fewer.
static __device__ bool find_place(const msgl_cuda_attn_call &c, int32_t i, place *p)
{
    for (int32_t req = 0; req < c.batch; req++) {
        const int32_t from = c.cu_seqlens_q[req], to = c.cu_seqlens_q[req + 1];
        const int32_t tiles = (to - from + ROWS - 1) / ROWS;
        if (i < tiles) {
            p->req = req;
            p->row = from + i * ROWS;
            p->rows = to - p->row < ROWS ? to - p->row : ROWS;
            p->len = c.seqlens_k[req];
            p->pos = p->len - (to - from) + i * ROWS;
            return true;
        }
        i -= tiles;
    }
    return false;
}

template <typename T, int HD>
static __global__
__launch_bounds__(THREADS) void fa_prefill_sm80(const __grid_constant__ msgl_cuda_attn_call c)
{
    typedef shape<T, HD> S;
    typedef typename msgl_pool_types<T>::act act;
    extern __shared__ __align__(128) char smem[];
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int32_t head = blockIdx.x, kv_head = head / (c.num_q_heads / c.num_kv_heads);
    msgl__pdl_wait();
    msgl__pdl_trigger();
    place p;
    if (!find_place(c, gridDim.y - 1 - blockIdx.y, &p)) return; // the longest last rows first
    const auto keys = msgl_rows16_keys_of<T>(c, kv_head, msgl__page_row(c, c.table_rows[p.req]));
    const int32_t row = warp * 16 + lane / 4; // and row + 8
    const act *q[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        q[r] = row + r * 8 < p.rows ? (const act *)c.q + (size_t)(p.row + row + r * 8) * c.ld_q +
                                          (size_t)head * c.head_dim
                                    : NULL;
    }
    msgl_rows16<HD> w;
    msgl_rows16_query<T>(q, c.head_dim, lane, &w);
    msgl_rows16_start(&w);

    // Keys that any row sees, and those that all see: row r is at position pos[r] and sees [pos -
    // window, to].
    const int32_t last = p.pos + p.rows - 1, window = c.window;
    const int32_t end = msgl__last_key(c, last, p.len) + 1;
    const int32_t all_to = msgl__last_key(c, p.pos, p.len) + 1;
    const int32_t from = window >= 0 ? max(p.pos - window, 0) : 0;
    const int32_t all_from = window >= 0 ? max(last - window, 0) : 0;
    const int32_t pos[2] = {p.pos + row, p.pos + row + 8};
    const int32_t to[2] = {msgl__last_key(c, pos[0], p.len), msgl__last_key(c, pos[1], p.len)};
    const msgl_score score = {c.scale, c.softcap};
    const auto sees = [&](int r, int32_t key) {
        return key >= (window >= 0 ? pos[r] - window : 0) && key <= to[r];
    };
    msgl_rows16_walk<T, HD, S::KEYS, THREADS>(keys, from, end, all_from, all_to, score, sees,
                                              msgl__shared_address(smem), lane, &w);
    msgl_rows16_sum(&w);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row + r * 8 >= p.rows) continue;
        const size_t token = (size_t)(p.row + row + r * 8);
        const float sink = c.sinks != NULL ? msgl__attn_sink(c.sinks[head], w.m[r]) : 0.f;
        act *out = (act *)c.out + token * c.ld_out + (size_t)head * c.head_dim;
        msgl_rows16_store<T>(w, r, c.out_scale / (w.l[r] + sink), c.head_dim, lane, out);
        if (c.lse != NULL && lane % 4 == 0) {
            c.lse[token * c.num_q_heads + head] = msgl_rows16_lse(w, r);
        }
    }
}

template <typename T, int HD>
static cudaError_t launch(const msgl_cuda_attn_call &c, cudaStream_t stream)
{
    const dim3 grid((unsigned)c.num_q_heads, (unsigned)(c.total_q / ROWS + c.batch));
    constexpr auto kernel = fa_prefill_sm80<T, HD>;
    const cudaError_t e = msgl__allow_shared<kernel>(shape<T, HD>::BYTES);
    if (e != cudaSuccess) return e;
    return msgl__launch(kernel, grid, THREADS, shape<T, HD>::BYTES, stream, c);
}

template <typename T> static cudaError_t launch_dim(const msgl_cuda_attn_call &c, cudaStream_t s)
{
    return c.head_dim <= 64    ? launch<T, 64>(c, s)
           : c.head_dim <= 128 ? launch<T, 128>(c, s)
                               : launch<T, 256>(c, s);
}

extern "C" int msgl__cuda_fa_prefill_sm80(const msgl_cuda_attn_call *c, void *stream)
{
    const cudaStream_t s = (cudaStream_t)stream;
    const bool fits = msgl__fa_prefill_sm80_fits(c->e4m3 ? MSGL_E4M3 : c->dtype, c->head_dim);
    if (!fits || c->v_dim != c->head_dim) return cudaErrorNotSupported;
    if (c->total_q == 0) return cudaSuccess;
    if (c->e4m3) {
        return c->dtype == MSGL_BF16 ? launch_dim<msgl_pool_e4m3>(*c, s) : cudaErrorNotSupported;
    }
    switch (c->dtype) {
    case MSGL_BF16: return launch_dim<__nv_bfloat16>(*c, s);
    case MSGL_F16: return launch_dim<__half>(*c, s);
    default: return cudaErrorNotSupported;
    }
}
