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
// for the mask. As there are few of them, keys are split where CTAs are few, and the parts merged.
//
// K and V of E4M3 stay that in shared memory and become f16, which has their values, in registers;
// queries do, too. As in decode/tile.cuh, which rows and columns of a product the four elements in
// a register are is ours to choose.
#include "kernel/cuda/attn/prefill_sm80.h"

#include <algorithm>

#include "core/batch.h"
#include "kernel/cuda/attn/sink.cuh"
#include "kernel/cuda/launch.cuh"
#include "kernel/cuda/ptx/copy.cuh"
#include "kernel/cuda/ptx/e4m3.cuh"
#include "kernel/cuda/ptx/math.cuh"
#include "kernel/cuda/ptx/mma.cuh"
#include "kernel/cuda/ptx/shared.cuh"

enum { ROWS = MSGL_TREE_ROWS, WARPS = 4, THREADS = WARPS * 32 };

// What a kernel's T names: activations, what K and V are multiplied as, bytes of their elements.
template <typename T> struct types {
    typedef T act;
    typedef T product;
    static const int EACH = 2;
};
struct e4m3 { // beside bf16 activations
};
template <> struct types<e4m3> {
    typedef __nv_bfloat16 act;
    typedef __half product;
    static const int EACH = 1;
};

template <typename T, int HD> struct shape {
    static const int EACH = types<T>::EACH;
    static const int KEYS = HD > 128 ? 32 : 64;
    static const int PITCH = HD * EACH + 16; // bytes; no bank conflicts
    static const int STAGE = 2 * KEYS * PITCH;
    static const int BYTES = 2 * STAGE;
};

// Trees, and what their parts leave: of each (CTA of the grid's x and y, split) for its ROWS rows.
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

// Keys [seen, len) of a tile, zeros where the others are: slots behind a window may be another
// request's, and what a score is masked for could still be infinite.
template <typename T, int HD>
static __device__ __forceinline__ void load_tile(const msgl_cuda_attn_call &c, const char *k,
                                                 const char *v, const int32_t *table, int32_t key0,
                                                 int32_t seen, int32_t len, uint32_t stage)
{
    typedef shape<T, HD> S;
    const int CHUNKS = HD * S::EACH / 16, EACH = 16 / S::EACH; // elements of a chunk
    const size_t slot_bytes = (size_t)c.num_kv_heads * c.head_dim * S::EACH;
#pragma unroll
    for (int i = 0; i < S::KEYS * CHUNKS / THREADS; i++) {
        const int32_t at = i * THREADS + threadIdx.x, row = at / CHUNKS, chunk = at % CHUNKS;
        const int32_t key = key0 + row;
        const bool inside = key >= seen && key < len && chunk * EACH < c.head_dim;
        const size_t src = inside ? (size_t)table[key] * slot_bytes + chunk * 16 : 0;
        const uint32_t dst = stage + row * S::PITCH + chunk * 16;
        msgl__copy_async_16(dst, k + src, inside);
        msgl__copy_async_16(dst + S::KEYS * S::PITCH, v + src, inside);
    }
}

// State of a warp's 16 rows: this lane has rows lane / 4 and lane / 4 + 8.
template <int HD> struct rows16 {
    uint32_t q[HD / 16][4];
    // Elements 8 nb + 2 (lane % 4) and the next one; of E4M3, of blocks 2 i and 2 i + 1, every
    // other one of the four from 16 i + 4 (lane % 4) on.
    float o[HD / 8][4];
    float m[2], l[2];
};

template <typename T, int HD>
static __device__ __forceinline__ void load_q(const msgl_cuda_attn_call &c, const place &p,
                                              int32_t head, int32_t first, int32_t lane,
                                              rows16<HD> *w)
{
    const bool wide = types<T>::EACH == 2;
#pragma unroll
    for (int ks = 0; ks < HD / 16; ks++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t row = first + lane / 4 + (i & 1) * 8;
            const int32_t d =
                ks * 16 + (wide ? (i & 2) * 4 + lane % 4 * 2 : (i & 2) + lane % 4 * 4);
            const uint16_t *q = (const uint16_t *)c.q + (size_t)(p.row + row) * c.ld_q +
                                (size_t)head * c.head_dim + d;
            const uint32_t two = row < p.rows && d < c.head_dim ? *(const uint32_t *)q : 0u;
            w->q[ks][i] = wide ? two : msgl__bf16_to_f16(two);
        }
    }
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
};

// Scores of one tile to probabilities, in place; o and l follow.
template <int HD, int NB, typename SEES>
static __device__ __forceinline__ void softmax(const msgl_cuda_attn_call &c, float s[NB][4],
                                               const SEES &rows, int32_t key0, int32_t lane,
                                               rows16<HD> *w)
{
    const float log2e = 1.4426950408889634f;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = w->m[r];
#pragma unroll
        for (int nb = 0; nb < NB; nb++) {
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; i++) {
                float x = s[nb][i] * c.scale;
                if (c.softcap > 0.f) {
                    x *= 2.f / c.softcap;
                    x = c.softcap * (1.f - __fdividef(2.f, 1.f + __expf(x)));
                }
                const int32_t key = key0 + nb * 8 + lane % 4 * 2 + i % 2;
                s[nb][i] = rows.sees(r, key) ? x * log2e : -INFINITY;
                m = fmaxf(m, s[nb][i]);
            }
        }
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
        const float base = m == -INFINITY ? 0.f : m; // nothing seen yet
        const float rescale = msgl__exp2(w->m[r] - base);
        w->m[r] = m;
        w->l[r] *= rescale;
#pragma unroll
        for (int nb = 0; nb < HD / 8; nb++) {
            w->o[nb][2 * r] *= rescale;
            w->o[nb][2 * r + 1] *= rescale;
        }
#pragma unroll
        for (int nb = 0; nb < NB; nb++) {
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; i++) {
                s[nb][i] = msgl__exp2(s[nb][i] - base);
                w->l[r] += s[nb][i];
            }
        }
    }
}

// Fragments of two blocks of eight keys, from matrices [keys of a block][16 bytes of K] in pairs:
// of both blocks, dims [16 ks, 16 ks + 16). r holds those of E4M3 for the odd ks behind.
template <typename T, int PITCH>
static __device__ __forceinline__ void load_k(uint32_t at, int ks, uint32_t r[4], uint32_t b[4])
{
    if constexpr (types<T>::EACH == 2) {
        msgl__load_matrix_4(at + ks * 32, b);
    } else {
        if (ks % 2 == 0) msgl__load_matrix_4(at + ks * 16, r);
        msgl__e4m3_to_f16(r[ks % 2], b);
        msgl__e4m3_to_f16(r[ks % 2 + 2], b + 2);
    }
}

// Fragments of two blocks of eight elements of V, sixteen from 16 db on, and 16 keys.
template <typename T>
static __device__ __forceinline__ void load_v(uint32_t at, int db, uint32_t r[4], uint32_t b[4])
{
    if constexpr (types<T>::EACH == 2) {
        msgl__load_matrix_4_transposed(at + db * 32, b);
    } else {
        if (db % 2 == 0) msgl__load_matrix_4_transposed(at + db * 16, r);
        msgl__e4m3_to_f16_by_element(r[db % 2 * 2], b[0], b[2]);
        msgl__e4m3_to_f16_by_element(r[db % 2 * 2 + 1], b[1], b[3]);
    }
}

template <typename T, int HD, typename SEES>
static __device__ __forceinline__ void attend_tile(const msgl_cuda_attn_call &c, uint32_t stage,
                                                   const SEES &rows, int32_t key0, int32_t lane,
                                                   rows16<HD> *w)
{
    typedef shape<T, HD> S;
    typedef typename types<T>::product product;
    const int NB = S::KEYS / 8;
    float s[NB][4] = {};
    const uint32_t k_at =
        stage + ((lane & 7) + (lane >> 4) * 8) * S::PITCH + ((lane >> 3) & 1) * 16;
    uint32_t held[NB / 2][4];
#pragma unroll
    for (int ks = 0; ks < HD / 16; ks++) {
#pragma unroll
        for (int nb = 0; nb < NB; nb += 2) {
            uint32_t b[4];
            load_k<T, S::PITCH>(k_at + nb * 8 * S::PITCH, ks, held[nb / 2], b);
            msgl__mma(s[nb], w->q[ks], b[0], b[1], product());
            msgl__mma(s[nb + 1], w->q[ks], b[2], b[3], product());
        }
    }
    softmax<HD, NB>(c, s, rows, key0, lane, w);
    const uint32_t v_at = stage + (S::KEYS + (lane & 15)) * S::PITCH + (lane >> 4) * 16;
#pragma unroll
    for (int kb = 0; kb < NB / 2; kb++) {
        uint32_t p[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            p[i] = msgl__pack_two(s[2 * kb + i / 2][i % 2 * 2], s[2 * kb + i / 2][i % 2 * 2 + 1],
                                  product());
        }
        uint32_t r[4];
#pragma unroll
        for (int db = 0; db < HD / 16; db++) {
            uint32_t b[4];
            load_v<T>(v_at + kb * 16 * S::PITCH, db, r, b);
            msgl__mma(w->o[2 * db], p, b[0], b[1], product());
            msgl__mma(w->o[2 * db + 1], p, b[2], b[3], product());
        }
    }
}

// A row's results times scale, half r of the fragments.
template <typename T, int HD>
static __device__ __forceinline__ void store_row(const float o[HD / 8][4], int r, float scale,
                                                 int32_t dim, int32_t lane, uint16_t *out)
{
    typedef typename types<T>::act act;
#pragma unroll
    for (int nb = 0; nb < HD / 8; nb += types<T>::EACH == 2 ? 1 : 2) {
        if (nb * 8 >= dim) break;
        const float *x = o[nb] + 2 * r;
        if constexpr (types<T>::EACH == 2) {
            *(uint32_t *)(out + nb * 8 + lane % 4 * 2) =
                msgl__pack_two(x[0] * scale, x[1] * scale, act());
        } else {
            const float *y = o[nb + 1] + 2 * r;
            *(uint2 *)(out + nb * 8 + lane % 4 * 4) =
                make_uint2(msgl__pack_two(x[0] * scale, y[0] * scale, act()),
                           msgl__pack_two(x[1] * scale, y[1] * scale, act()));
        }
    }
}

template <typename T, int HD>
static __device__ __forceinline__ void store(const msgl_cuda_attn_call &c, const place &p,
                                             int32_t head, int32_t first, int32_t lane,
                                             rows16<HD> *w)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int32_t row = first + lane / 4 + r * 8;
        float l = w->l[r];
        l += __shfl_xor_sync(~0u, l, 1);
        l += __shfl_xor_sync(~0u, l, 2);
        if (row >= p.rows) continue;
        const float sink = c.sinks != NULL ? msgl__attn_sink(c.sinks[head], w->m[r]) : 0.f;
        const float scale = c.out_scale / (l + sink);
        store_row<T, HD>(w->o, r, scale, c.head_dim, lane,
                         (uint16_t *)c.out + (size_t)(p.row + row) * c.ld_out +
                             (size_t)head * c.head_dim);
        if (c.lse != NULL && lane % 4 == 0) {
            c.lse[(size_t)(p.row + row) * c.num_q_heads + head] =
                (w->m[r] + log2f(l)) * 0.6931471805599453f;
        }
    }
}

// Where the CTA's part of row `row` lies, in rows.
static __device__ __forceinline__ size_t part_row(const tree_call &t, int32_t split, int32_t row)
{
    const size_t cta = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
    return (cta * t.splits + split) * ROWS + row;
}

template <typename T, int HD>
static __device__ __forceinline__ void leave_part(const tree_call &t, int32_t first, int32_t lane,
                                                  const rows16<HD> &w)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float l = w.l[r];
        l += __shfl_xor_sync(~0u, l, 1);
        l += __shfl_xor_sync(~0u, l, 2);
        const size_t at = part_row(t, blockIdx.z, first + lane / 4 + r * 8);
        if (lane % 4 == 0) t.ml[at] = make_float2(w.m[r], l);
#pragma unroll
        for (int nb = 0; nb < HD / 8; nb += types<T>::EACH == 2 ? 1 : 2) {
            const float *x = w.o[nb] + 2 * r;
            float *to = t.o + at * HD + nb * 8;
            if constexpr (types<T>::EACH == 2) {
                *(float2 *)(to + lane % 4 * 2) = make_float2(x[0], x[1]);
            } else {
                const float *y = w.o[nb + 1] + 2 * r;
                *(float4 *)(to + lane % 4 * 4) = make_float4(x[0], y[0], x[1], y[1]);
            }
        }
    }
}

// A grid like that of the parts, without z.
template <typename T, int HD>
static __global__
__launch_bounds__(THREADS) void fa_tree_merge(const __grid_constant__ msgl_cuda_attn_call c,
                                              const tree_call t)
{
    typedef typename types<T>::act act;
    const int32_t head = blockIdx.x, pairs = c.head_dim / 2;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    place p;
    if (!find_place(c, gridDim.y - 1 - blockIdx.y, &p)) return;
    for (int32_t i = threadIdx.x; i < p.rows * pairs; i += THREADS) {
        const int32_t row = i / pairs, d = i % pairs * 2;
        float m = -INFINITY, l = 0.f;
        float2 o = make_float2(0.f, 0.f);
        for (int32_t s = 0; s < t.splits; s++) m = fmaxf(m, t.ml[part_row(t, s, row)].x);
        for (int32_t s = 0; s < t.splits; s++) {
            const size_t at = part_row(t, s, row);
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
    extern __shared__ __align__(128) char smem[];
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int32_t head = blockIdx.x, kv_head = head / (c.num_q_heads / c.num_kv_heads);
    msgl__pdl_wait();
    msgl__pdl_trigger();
    place p;
    if (!find_place(c, gridDim.y - 1 - blockIdx.y, &p)) return; // the longest last rows first
    const int32_t *table = c.table + (size_t)c.table_rows[p.req] * c.table_stride;
    const char *k = (const char *)c.k + (size_t)kv_head * c.head_dim * S::EACH;
    const char *v = (const char *)c.v + (size_t)kv_head * c.head_dim * S::EACH;
    const int32_t first = warp * 16;
    rows16<HD> w = {};
    w.m[0] = w.m[1] = -INFINITY;
    load_q<T, HD>(c, p, head, first, lane, &w);
    const SEES rows(c, t.words, p, first, lane);

    const int32_t len = p.pos + p.rows; // keys that the last row sees
    const int32_t seen = c.window >= 0 && p.pos > c.window ? p.pos - c.window : 0;
    int32_t begin = seen / S::KEYS, end = (len + S::KEYS - 1) / S::KEYS;
    if constexpr (SEES::SPLITS) {
        const int32_t each = (end - begin + t.splits - 1) / t.splits;
        begin += (int32_t)blockIdx.z * each; // behind the end: a part without keys
        end = min(begin + each, end);
    }
    const uint32_t ring = msgl__shared_address(smem);
    load_tile<T, HD>(c, k, v, table, begin * S::KEYS, seen, len, ring);
    msgl__copy_async_commit();
    for (int32_t tile = begin; tile < end; tile++) {
        const uint32_t at = (tile - begin) & 1;
        if (tile + 1 < end) {
            load_tile<T, HD>(c, k, v, table, (tile + 1) * S::KEYS, seen, len,
                             ring + (at ^ 1) * S::STAGE);
        }
        msgl__copy_async_commit();
        msgl__copy_async_wait<1>();
        __syncthreads();
        attend_tile<T, HD>(c, ring + at * S::STAGE, rows, tile * S::KEYS, lane, &w);
        __syncthreads();
    }
    if constexpr (SEES::SPLITS) {
        if (t.splits > 1) {
            leave_part<T, HD>(t, first, lane, w);
            return;
        }
    }
    store<T, HD>(c, p, head, first, lane, &w);
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
        t.splits = c.workspace == NULL || c.deterministic ? 1 : MSGL_TREE_PARTS / ctas;
        t.splits = std::max(1, std::min({t.splits, longest, (int32_t)MOST}));
        t.ml = (float2 *)c.workspace;
        t.o = (float *)(t.ml + MSGL_TREE_PARTS * ROWS);
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
        return fits ? launch_dim<e4m3, SEES>(c, t, s) : cudaErrorNotSupported;
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
