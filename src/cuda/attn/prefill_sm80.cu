// SPDX-License-Identifier: Apache-2.0
//
// Prefill attention for every GPU with mma.m16n8k16 and cp.async, in the manner of FlashAttention-2
// (Dao 2023): a CTA has 64 query tokens of one head, 16 per warp, and walks the keys in tiles, the
// next tile on its way while one is computed. Head dimensions between the instantiated ones are
// filled up with zeros. Which request a CTA works for it finds from cu_seqlens_q.
//
// Tiles lie at absolute positions, so a row's bits do not depend on the chunk that it came in.
//
// Drafts to be verified, which form trees, have a kernel of their own, so that chunks do not pay
// for the mask. As there are few of them, keys are split where CTAs are few, and the partials
// merged.
#include "cuda/attn/prefill_sm80.h"

#include <algorithm>

#include "core/batch.h"
#include "cuda/attn/rows16.cuh"
#include "cuda/attn/sink.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/shared.cuh"

enum { ROWS = MSGL_TREE_ROWS, WARPS = 4, THREADS = WARPS * 32 };

template <typename T, int HD> struct shape {
    static const int KEYS = HD > 128 ? 32 : 64; // of a tile
    static const int BYTES = 2 * 2 * KEYS * msgl_rows16_pitch<T, HD>::BYTES;
};

// Trees, and what their splits leave: of each (CTA of the grid's x and y, split) for its ROWS rows.
struct tree_call {
    const uint64_t *words;
    int32_t splits;
    float2 *ml; // [CTAs, splits, ROWS] maximum and sum
    float *o;   // [CTAs, splits, ROWS, HD]
};

struct place { // of a CTA: query rows [row, row + rows), the first at position pos
    int32_t req, row, rows, pos;
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
            p->pos = c.seqlens_k[req] - (to - from) + i * ROWS;
            return true;
        }
        i -= tiles;
    }
    return false;
}

// Which keys the lane's rows see: row r is at position pos[r] and sees [pos - window, pos].
struct causal_rows {
    static const bool SPLITS = false;
    int32_t pos[2], window;

    __device__ __forceinline__ causal_rows(const msgl_cuda_attn_call &c, const uint64_t *,
                                           const place &p, int32_t first, int32_t lane)
        : pos{p.pos + first + lane / 4, p.pos + first + lane / 4 + 8}, window(c.window)
    {
    }
    __device__ __forceinline__ bool sees(int r, int32_t key) const
    {
        const int32_t from = window >= 0 ? pos[r] - window : 0;
        return key >= from && key <= pos[r];
    }
    // Keys before it are seen by all rows, but for the window.
    static __device__ __forceinline__ int32_t all_to(const place &p)
    {
        return p.pos + 1;
    }
};

// In a tree, whose tokens are all in one CTA: the keys from from[r] up to the first new one, and of
// the new ones path[r].
struct tree_rows {
    static const bool SPLITS = true;
    int32_t prefix, from[2];
    uint64_t path[2];

    __device__ __forceinline__ tree_rows(const msgl_cuda_attn_call &c, const uint64_t *tree,
                                         const place &p, int32_t first, int32_t lane)
        : prefix(p.pos)
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int32_t row = first + lane / 4 + r * 8;
            path[r] = row < p.rows ? tree[p.row + row] : 0;
            from[r] = c.window >= 0 ? prefix + __popcll(path[r]) - 1 - c.window : 0;
            // What the window has left behind of a path are its first tokens.
            for (int32_t i = prefix; i < from[r]; i++) path[r] &= path[r] - 1;
        }
    }
    __device__ __forceinline__ bool sees(int r, int32_t key) const
    {
        const int32_t token = key - prefix;
        return key >= from[r] && (token < 0 || (token < MSGL_MAX_TREE && (path[r] >> token & 1)));
    }
    static __device__ __forceinline__ int32_t all_to(const place &p)
    {
        return p.pos;
    }
};

// Where the CTA's partial of row `row` lies, in rows.
static __device__ __forceinline__ size_t partial_row(const tree_call &t, int32_t split, int32_t row)
{
    const size_t cta = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
    return (cta * t.splits + split) * ROWS + row;
}

// row: the lane's first one.
template <typename T, int HD>
static __device__ __forceinline__ void leave_partial(const tree_call &t, int32_t row, int32_t lane,
                                                     const msgl_rows16<HD> &w)
{
    const bool wide = msgl_pool_types<T>::BYTES == 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const size_t at = partial_row(t, blockIdx.z, row + r * 8);
        if (lane % 4 == 0) t.ml[at] = make_float2(w.m[r], w.l[r]);
#pragma unroll
        for (int nb = 0; nb < HD / 8; nb += wide ? 1 : 2) {
            const float *x = w.o[nb] + 2 * r;
            float *to = t.o + at * HD + nb * 8;
            if constexpr (wide) {
                *(float2 *)(to + lane % 4 * 2) = make_float2(x[0], x[1]);
            } else {
                const float *y = w.o[nb + 1] + 2 * r;
                *(float4 *)(to + lane % 4 * 4) = make_float4(x[0], y[0], x[1], y[1]);
            }
        }
    }
}

// A grid like that of the splits, without z.
template <typename T, int HD>
static __global__
__launch_bounds__(THREADS) void fa_tree_merge(const __grid_constant__ msgl_cuda_attn_call c,
                                              const tree_call t)
{
    typedef typename msgl_pool_types<T>::act act;
    const int32_t head = blockIdx.x, pairs = c.head_dim / 2;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    place p;
    if (!find_place(c, gridDim.y - 1 - blockIdx.y, &p)) return;
    for (int32_t i = threadIdx.x; i < p.rows * pairs; i += THREADS) {
        const int32_t row = i / pairs, d = i % pairs * 2;
        float m = -INFINITY, l = 0.f;
        float2 o = make_float2(0.f, 0.f);
        for (int32_t s = 0; s < t.splits; s++) m = fmaxf(m, t.ml[partial_row(t, s, row)].x);
        for (int32_t s = 0; s < t.splits; s++) {
            const size_t at = partial_row(t, s, row);
            const float2 ml = t.ml[at], v = *(const float2 *)(t.o + at * HD + d);
            const float weight = msgl__exp2(ml.x - m);
            l += weight * ml.y;
            o.x += weight * v.x;
            o.y += weight * v.y;
        }
        const float sink = c.sinks != NULL ? msgl__attn_sink(c.sinks[head], m) : 0.f;
        const float scale = c.out_scale / (l + sink);
        act *out = (act *)c.out + (size_t)(p.row + row) * c.ld_out + (size_t)head * c.head_dim;
        *(uint32_t *)(out + d) = msgl__pack_two(o.x * scale, o.y * scale, act());
        if (c.lse != NULL && d == 0) {
            c.lse[(size_t)(p.row + row) * c.num_q_heads + head] =
                (m + log2f(l)) * 0.6931471805599453f;
        }
    }
}

// SEES: causal_rows or tree_rows.
template <typename T, int HD, typename SEES>
static __global__
__launch_bounds__(THREADS) void fa_prefill_sm80(const __grid_constant__ msgl_cuda_attn_call c,
                                                const tree_call t)
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

    // Keys that any row sees, and those that all see.
    const int32_t last = p.pos + p.rows - 1;
    int32_t from = c.window >= 0 ? max(p.pos - c.window, 0) : 0, to = last + 1;
    const int32_t all_from = c.window >= 0 ? max(last - c.window, 0) : 0;
    const msgl_score score = {c.scale, c.softcap};
    const SEES rows(c, t.words, p, warp * 16, lane);
    const auto sees = [&](int r, int32_t key) { return rows.sees(r, key); };
    if constexpr (SEES::SPLITS) { // by whole tiles; behind the last one splits are without keys
        const int32_t first = from / S::KEYS, tiles = (to + S::KEYS - 1) / S::KEYS - first;
        const int32_t each = (tiles + t.splits - 1) / t.splits * S::KEYS;
        const int32_t begin = first * S::KEYS + (int32_t)blockIdx.z * each;
        from = max(from, begin);
        to = min(to, begin + each);
    }
    if (!SEES::SPLITS || from < to) {
        msgl_rows16_walk<T, HD, S::KEYS, THREADS>(keys, from, to, all_from, SEES::all_to(p), score,
                                                  sees, msgl__shared_address(smem), lane, &w);
    }
    msgl_rows16_sum(&w);
    if constexpr (SEES::SPLITS) {
        if (t.splits > 1) {
            leave_partial<T>(t, row, lane, w);
            return;
        }
    }
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

template <typename T, int HD, typename SEES>
static cudaError_t launch(const msgl_cuda_attn_call &c, tree_call t, cudaStream_t stream)
{
    dim3 grid((unsigned)c.num_q_heads, (unsigned)(c.total_q / ROWS + c.batch));
    constexpr auto kernel = fa_prefill_sm80<T, HD, SEES>;
    cudaError_t e = msgl__allow_shared<kernel>(shape<T, HD>::BYTES);
    if (e != cudaSuccess) return e;
    if constexpr (SEES::SPLITS) {
        enum { LEAST = 4, MOST = 8 }; // tiles of a split, splits
        const int32_t ctas = (int32_t)(grid.x * grid.y);
        const int32_t longest = c.max_seqlen_k / (LEAST * shape<T, HD>::KEYS);
        t.splits = c.workspace == NULL || c.deterministic ? 1 : MSGL_TREE_SPLITS / ctas;
        t.splits = std::max(1, std::min({t.splits, longest, (int32_t)MOST}));
        t.ml = (float2 *)c.workspace;
        t.o = (float *)(t.ml + MSGL_TREE_SPLITS * ROWS);
        grid.z = (unsigned)t.splits;
    }
    e = msgl__launch(kernel, grid, THREADS, shape<T, HD>::BYTES, stream, c, t);
    if (e != cudaSuccess || t.splits <= 1) return e;
    grid.z = 1;
    return msgl__launch(fa_tree_merge<T, HD>, grid, THREADS, 0, stream, c, t);
}

template <typename T, typename SEES>
static cudaError_t launch_dim(const msgl_cuda_attn_call &c, const tree_call &t, cudaStream_t s)
{
    return c.head_dim <= 64    ? launch<T, 64, SEES>(c, t, s)
           : c.head_dim <= 128 ? launch<T, 128, SEES>(c, t, s)
                               : launch<T, 256, SEES>(c, t, s);
}

template <typename SEES>
static cudaError_t launch_dtype(const msgl_cuda_attn_call &c, const uint64_t *tree, cudaStream_t s)
{
    const tree_call t = {tree, 1, NULL, NULL};
    if (c.head_dim < 8 || c.head_dim > 256 || c.head_dim % 8 != 0) return cudaErrorNotSupported;
    if (c.total_q == 0) return cudaSuccess;
    if (c.e4m3) {
        const bool fits = c.dtype == MSGL_BF16 && c.head_dim % 16 == 0;
        return fits ? launch_dim<msgl_pool_e4m3, SEES>(c, t, s) : cudaErrorNotSupported;
    }
    switch (c.dtype) {
    case MSGL_BF16: return launch_dim<__nv_bfloat16, SEES>(c, t, s);
    case MSGL_F16: return launch_dim<__half, SEES>(c, t, s);
    default: return cudaErrorNotSupported;
    }
}

extern "C" int msgl__cuda_fa_prefill_sm80(const msgl_cuda_attn_call *c, void *stream)
{
    return launch_dtype<causal_rows>(*c, NULL, (cudaStream_t)stream);
}

extern "C" int msgl__cuda_fa_tree_sm80(const msgl_cuda_attn_call *c, const uint64_t *tree,
                                       void *stream)
{
    return launch_dtype<tree_rows>(*c, tree, (cudaStream_t)stream);
}
