// SPDX-License-Identifier: Apache-2.0
//
// Attention of drafts to be verified, which form trees, or chains, with their known tokens: for
// every GPU with mma.m16n8k16 and cp.async. They are few, so K and V are read once for all of a
// request's new tokens: the rows of a CTA are (token, query head of one KV head) pairs, row r being
// token r / group and head r % group, 64 of them, so that 12 tokens of a group of 5 share one
// reading. Keys are split where CTAs are few, and the partials merged. Nothing is planned on the
// host, so a captured graph follows the lengths in device memory. Lengths, table and the keys
// before the new ones are older than the step: they are on their way while the kernel before this
// one still runs.
#include "cuda/attn/tree_sm80.h"

#include <algorithm>

#include "core/batch.h"
#include "cuda/attn/packed_rows.cuh"
#include "cuda/attn/rows16.cuh"
#include "cuda/attn/sink.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/shared.cuh"

enum { ROWS = 64, WARPS = 4, THREADS = WARPS * 32 };

template <typename T, int HD> struct shape {
    static const int KEYS = 32, STAGES = HD > 128 ? 3 : 4; // keys of a tile, tiles in memory
    static const int TILE = 2 * KEYS * msgl_rows16_pitch<T, HD>::BYTES;
    static const int BYTES = STAGES * TILE;
};

// Which keys the lane's two rows see: from from[r] up to the first new one, and of the new ones
// path[r].
struct tree_rows {
    int32_t prefix, from[2];
    uint64_t path[2];

    // token: of each row, from the step's first; -1: there is no such row.
    __device__ __forceinline__ tree_rows(const msgl_cuda_attn_call &c, const uint64_t *words,
                                         const msgl_packed_place &p, const int32_t token[2])
        : prefix(p.prefix)
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            path[r] = token[r] >= 0 ? words[token[r]] : 0;
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

// r: which of the lane's rows, of this token and head.
template <typename T, int HD>
static __device__ __forceinline__ void leave_partial(const msgl_packed_splits &t, size_t at, int r,
                                                     int32_t lane, const msgl_rows16<HD> &w)
{
    const bool wide = msgl_pool_types<T>::BYTES == 2;
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

// A thread's share of the copies of tiles: which rows of a tile, and the pages that the next ones
// are in, read ahead.
template <typename T, int HD> struct tile_loads {
    typedef shape<T, HD> S;
    static const int CHUNKS = HD * msgl_pool_types<T>::BYTES / 16; // of 16 bytes, in a row
    static const int EACH = S::KEYS * CHUNKS / THREADS;
    static_assert(S::KEYS * CHUNKS % THREADS == 0, "whole turns");
    int32_t pages[EACH];

    static __device__ __forceinline__ int32_t row(int i)
    {
        return (i * THREADS + (int32_t)threadIdx.x) / CHUNKS;
    }
    template <class KEYS>
    __device__ __forceinline__ void look_up(const KEYS &keys, int32_t key0, int32_t from,
                                            int32_t to)
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int32_t key = key0 + row(i);
            pages[i] = key >= from && key < to ? keys.slots.page(key) : 0;
        }
    }
    // Zeros for keys outside [from, to), whose slots may be another request's.
    template <class KEYS>
    __device__ __forceinline__ void issue(const KEYS &keys, int32_t key0, int32_t from, int32_t to,
                                          uint32_t tile) const
    {
        const int PITCH = msgl_rows16_pitch<T, HD>::BYTES;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int32_t key = key0 + row(i), chunk = (i * THREADS + threadIdx.x) % CHUNKS;
            const bool inside =
                key >= from && key < to && chunk * 16 / msgl_pool_types<T>::BYTES < keys.head_dim;
            const size_t src =
                inside ? (size_t)keys.slots.slot(pages[i], key) * keys.slot_bytes + chunk * 16 : 0;
            const uint32_t dst = tile + row(i) * PITCH + chunk * 16;
            msgl__copy_async_16(dst, keys.k + src, inside);
            msgl__copy_async_16(dst + S::KEYS * PITCH, keys.v + src, inside);
        }
    }
};

// Keys [from, to) of the CTA's rows; take_q: called when the step's kernels before have ended.
template <typename T, int HD, class KEYS, class TAKE_Q>
static __device__ __forceinline__ void walk(const msgl_cuda_attn_call &c, const KEYS &keys,
                                            const msgl_packed_place &p, int32_t from, int32_t to,
                                            const tree_rows &rows, uint32_t ring, int32_t lane,
                                            const TAKE_Q &take_q, msgl_rows16<HD> *w)
{
    typedef shape<T, HD> S;
    const msgl_score score = {c.scale, c.softcap};
    // All rows see the keys before the new ones, but for the window.
    const int32_t all_from = c.window >= 0 ? max(p.len - 1 - c.window, 0) : 0;
    const int32_t begin = from / S::KEYS, end = (to + S::KEYS - 1) / S::KEYS;
    const bool has_rows = (int32_t)threadIdx.x / 32 * 16 < p.rows; // the warp
    bool waited = false;
    tile_loads<T, HD> loads;
    loads.look_up(keys, begin * S::KEYS, from, to);
#pragma unroll 1
    for (int i = 0; i < S::STAGES - 1; i++) {
        const int32_t key0 = (begin + i) * S::KEYS;
        if (begin + i < end) {
            if (!waited && min(key0 + S::KEYS, to) > p.prefix) { // has new ones
                msgl__pdl_wait();
                waited = true;
            }
            loads.issue(keys, key0, from, to, ring + i * S::TILE);
            loads.look_up(keys, key0 + S::KEYS, from, to);
        }
        msgl__copy_async_commit();
    }
    if (!waited) msgl__pdl_wait();
    msgl__pdl_trigger();
    take_q();
#pragma unroll 1
    for (int32_t tile = begin; tile < end; tile++) {
        const int32_t key0 = tile * S::KEYS, next = tile + S::STAGES - 1;
        msgl__copy_async_wait<S::STAGES - 2>();
        __syncthreads(); // and the stage of the tile before has been read
        if (next < end) {
            loads.issue(keys, next * S::KEYS, from, to,
                        ring + (next - begin) % S::STAGES * S::TILE);
            loads.look_up(keys, (next + 1) * S::KEYS, from, to);
        }
        msgl__copy_async_commit();
        if (!has_rows) continue;
        const uint32_t at = ring + (tile - begin) % S::STAGES * S::TILE;
        if (key0 >= all_from && key0 + S::KEYS <= p.prefix) {
            const auto all = [](int, int32_t) { return true; };
            msgl_rows16_attend<T, HD, S::KEYS>(score, at, lane, all, w);
        } else {
            const auto some = [&](int r, int32_t i) { return rows.sees(r, key0 + i); };
            msgl_rows16_attend<T, HD, S::KEYS>(score, at, lane, some, w);
        }
    }
}

template <typename T, int HD>
static __global__
__launch_bounds__(THREADS) void fa_tree(const __grid_constant__ msgl_cuda_attn_call c,
                                        const uint64_t *words, const msgl_packed_splits t)
{
    typedef shape<T, HD> S;
    typedef typename msgl_pool_types<T>::act act;
    extern __shared__ __align__(128) char smem[];
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int32_t kv_head = blockIdx.x, group = c.num_q_heads / c.num_kv_heads;
    msgl_packed_place p;
    if (!msgl_packed_find<ROWS>(c, blockIdx.y, &p)) {
        msgl__pdl_wait();
        return;
    }
    int32_t token[2], head[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int32_t row = warp * 16 + lane / 4 + r * 8, at = p.first + row;
        token[r] = row < p.rows ? p.token + at / group : -1;
        head[r] = kv_head * group + at % group;
    }
    const tree_rows rows(c, words, p, token);
    // Keys that any row sees, by whole tiles shared out among the splits; behind the last one
    // splits are without keys.
    int32_t from = c.window >= 0 ? max(p.prefix - c.window, 0) : 0, to = p.len;
    const int32_t first = from / S::KEYS, tiles = (to + S::KEYS - 1) / S::KEYS - first;
    const int32_t each = (tiles + t.count - 1) / t.count * S::KEYS;
    const int32_t begin = first * S::KEYS + (int32_t)blockIdx.z * each;
    from = max(from, begin);
    to = min(to, begin + each);

    msgl_rows16<HD> w;
    msgl_rows16_start(&w);
    const auto take_q = [&] {
        const act *q[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            q[r] = token[r] < 0 ? NULL
                                : (const act *)c.q + (size_t)token[r] * c.ld_q +
                                      (size_t)head[r] * c.head_dim;
        }
        msgl_rows16_query<T>(q, c.head_dim, lane, &w);
    };
    const auto keys = msgl_rows16_keys_of<T>(c, kv_head, msgl__page_row(c, c.table_rows[p.req]));
    walk<T, HD>(c, keys, p, from, to, rows, msgl__shared_address(smem), lane, take_q, &w);
    msgl_rows16_sum(&w);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (token[r] < 0) continue;
        if (t.count > 1) {
            leave_partial<T>(t, msgl_packed_partial(c, blockIdx.z, token[r], head[r]), r, lane, w);
            continue;
        }
        const float sink = c.sinks != NULL ? msgl__attn_sink(c.sinks[head[r]], w.m[r]) : 0.f;
        act *out = (act *)c.out + (size_t)token[r] * c.ld_out + (size_t)head[r] * c.head_dim;
        msgl_rows16_store<T>(w, r, c.out_scale / (w.l[r] + sink), c.head_dim, lane, out);
        if (c.lse != NULL && lane % 4 == 0) {
            c.lse[(size_t)token[r] * c.num_q_heads + head[r]] = msgl_rows16_lse(w, r);
        }
    }
}

// Splits for about two CTAs to an SM, each of LEAST tiles or more. Blocks are not known here: of a
// graph the tokens may be of one request or of as many.
template <typename T, int HD>
static int32_t choose_splits(const msgl_cuda_attn_call &c, int32_t sms)
{
    enum { LEAST = 4, USUAL_TOKENS = 4 }; // of a request
    if (c.workspace == NULL || c.deterministic) return 1;
    const int32_t requests = std::min(c.batch, std::max(1, c.total_q / USUAL_TOKENS));
    const int32_t wanted = 2 * sms / (c.num_kv_heads * requests);
    const int32_t longest = c.max_seqlen_k / (LEAST * shape<T, HD>::KEYS);
    const int32_t room = MSGL_TREE_PARTIALS / c.total_q;
    return std::max(1, std::min({wanted, longest, room, (int32_t)MSGL_TREE_SPLITS}));
}

template <typename T, int HD>
static cudaError_t launch(const msgl_cuda_attn_call &c, const uint64_t *words, cudaStream_t stream)
{
    msgl_gpu gpu;
    cudaError_t e = msgl__current_gpu(&gpu);
    constexpr auto kernel = fa_tree<T, HD>;
    if (e == cudaSuccess) e = msgl__allow_shared<kernel>(shape<T, HD>::BYTES);
    if (e != cudaSuccess) return e;
    msgl_packed_splits t = {choose_splits<T, HD>(c, gpu.sms), (float2 *)c.workspace, NULL};
    t.o = (float *)(t.ml + (size_t)MSGL_TREE_PARTIALS * c.num_q_heads);
    const int32_t group = c.num_q_heads / c.num_kv_heads;
    const dim3 grid((unsigned)c.num_kv_heads, (unsigned)(c.total_q * group / ROWS + c.batch),
                    (unsigned)t.count);
    e = msgl__launch(kernel, grid, THREADS, shape<T, HD>::BYTES, stream, c, words, t);
    if (e != cudaSuccess || t.count == 1) return e;
    return msgl_packed_merge_launch<typename msgl_pool_types<T>::act, HD>(c, t, stream);
}

template <typename T>
static cudaError_t launch_dim(const msgl_cuda_attn_call &c, const uint64_t *words, cudaStream_t s)
{
    return c.head_dim <= 64    ? launch<T, 64>(c, words, s)
           : c.head_dim <= 128 ? launch<T, 128>(c, words, s)
                               : launch<T, 256>(c, words, s);
}

extern "C" int msgl__cuda_fa_tree_sm80(const msgl_cuda_attn_call *c, const uint64_t *tree,
                                       void *stream)
{
    const cudaStream_t s = (cudaStream_t)stream;
    if (c->head_dim < 8 || c->head_dim > 256 || c->head_dim % 8 != 0) return cudaErrorNotSupported;
    if (c->v_dim != c->head_dim) return cudaErrorNotSupported;
    if (c->total_q == 0) return cudaSuccess;
    if (c->e4m3) {
        const bool fits = c->dtype == MSGL_BF16 && c->head_dim % 16 == 0;
        return fits ? launch_dim<msgl_pool_e4m3>(*c, tree, s) : cudaErrorNotSupported;
    }
    switch (c->dtype) {
    case MSGL_BF16: return launch_dim<__nv_bfloat16>(*c, tree, s);
    case MSGL_F16: return launch_dim<__half>(*c, tree, s);
    default: return cudaErrorNotSupported;
    }
}
