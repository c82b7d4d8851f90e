// SPDX-License-Identifier: Apache-2.0
//
// A CTA has 64 query tokens of one head, half a block, and walks the list of its block tile by
// tile, the next one on its way while one is computed. Tiles that every query sees whole take a
// path without mask, so that mask functions cost something in partial blocks only.
#include "cuda/attn/flex.h"

#include "cuda/attn/rows16.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/shared.cuh"

enum { B = MSGL_FLEX_BLOCK, ROWS = 64, WARPS = 4, THREADS = WARPS * 32, LIST_WARPS = 32 };

template <typename T, int HD> struct shape {
    static const int KEYS = HD > 128 ? 32 : 64;
    static const int STAGE = 2 * KEYS * msgl_rows16_pitch<T, HD>::BYTES;
    static const int BYTES = 2 * STAGE;
};

struct place { // tokens [token, token + tokens) of request req, of block `block` of the batch
    int32_t req, token, tokens, block;
    int32_t row, first_new, len; // of the request: its first row of q, new token and keys
};

// Unit i of all requests' units of `size` tokens, a divisor of B; false: there are fewer.
static __device__ bool find_place(const msgl_cuda_attn_call &c, int32_t i, int32_t size, place *p)
{
    int32_t blocks = 0;
    for (int32_t req = 0; req < c.batch; req++) {
        const int32_t row = c.cu_seqlens_q[req], tokens = c.cu_seqlens_q[req + 1] - row;
        const int32_t units = (tokens + size - 1) / size;
        if (i < units) {
            p->req = req;
            p->token = i * size;
            p->tokens = min(tokens - p->token, size);
            p->block = blocks + i * size / B;
            p->row = row;
            p->len = c.seqlens_k[req];
            p->first_new = p->len - tokens;
            return true;
        }
        i -= units;
        blocks += (tokens + B - 1) / B;
    }
    return false;
}

static __device__ __forceinline__ msgl_attn_query query_at(const msgl_cuda_flex_call &c,
                                                           const place &p, int32_t token)
{
    return msgl__attn_query_at(p.first_new, token, c.attn.table_rows[p.req],
                               c.tree != NULL ? c.tree + p.row + token : NULL);
}

// A warp looks at the block's pair with keys [key0, key0 + B), 32 queries at a time, a bit of
// `seen` for each: the pair's entry, or -1 if it is empty.
static __device__ int32_t look(const msgl_cuda_flex_call &c, const place &p, int32_t key0,
                               int32_t lane)
{
    bool any = false, all = true;
    for (int32_t first = 0; first < p.tokens; first += 32) {
        const int32_t n = min(p.tokens - first, 32);
        const uint32_t there = ~0u >> (32 - n);
        uint32_t seen[B / 32];
#pragma unroll
        for (int i = 0; i < B / 32; i++) seen[i] = key0 + i * 32 + lane < p.len ? there : 0;
#define X(name, text, expression)                                                                  \
    for (int t = 0; t < n && (c.mods.masks & 1u << MSGL_MASK_##name) != 0; t++) {                  \
        const msgl_attn_query q = query_at(c, p, p.token + first + t);                             \
        _Pragma("unroll") for (int i = 0; i < B / 32; i++)                                         \
        {                                                                                          \
            const int32_t key = min(key0 + i * 32 + lane, p.len - 1);                              \
            const int32_t distance = msgl__attn_distance(&q, key);                                 \
            const bool sees = msgl__attn_mask_##name(&c.mods, &q, key, distance);                  \
            seen[i] &= ~((uint32_t)!sees << t);                                                    \
        }                                                                                          \
    }
        MSGL_ATTN_MASKS(X)
#undef X
#pragma unroll
        for (int i = 0; i < B / 32; i++) {
            any |= seen[i] != 0;
            all &= seen[i] == there || key0 + i * 32 + lane >= p.len;
        }
        if (__any_sync(~0u, any) && !__all_sync(~0u, all)) return key0 / B * 2 + 1;
    }
    return __any_sync(~0u, any) ? key0 / B * 2 : -1;
}

// A CTA makes the list of one block of queries, a warp looks at every 32nd block of keys.
static __global__
__launch_bounds__(LIST_WARPS * 32) void flex_lists(const __grid_constant__ msgl_cuda_flex_call c)
{
    __shared__ int32_t found[LIST_WARPS];
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    place p;
    if (!find_place(c.attn, blockIdx.x, B, &p)) return;
    int32_t *list = c.lists + (size_t)p.block * c.lists_ld, n = 0;
    for (int32_t first = 0; first < p.len; first += LIST_WARPS * B) {
        const int32_t key0 = first + warp * B;
        const int32_t entry = key0 < p.len ? look(c, p, key0, lane) : -1;
        if (lane == 0) found[warp] = entry;
        __syncthreads();
        if (warp == 0) {
            const uint32_t there = __ballot_sync(~0u, found[lane] >= 0);
            const int32_t at = n + __popc(there & ((1u << lane) - 1));
            if (found[lane] >= 0) list[1 + at] = found[lane];
            n += __popc(there);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) list[0] = n;
}

// Where tile t of a list begins.
template <int KEYS> static __device__ __forceinline__ int32_t tile_key(const int32_t *list, int t)
{
    return list[1 + t / (B / KEYS)] / 2 * B + t % (B / KEYS) * KEYS;
}

// The functions of a tile whose first key is key0, function by function over all of the lane's
// products.
struct functions {
    const msgl_cuda_flex_call &c;
    const msgl_attn_query (&query)[2];
    int32_t head, lane, key0, len;
    bool whole; // every query sees every key

    template <bool TREE> __device__ __forceinline__ int32_t distance(int i, int32_t key) const
    {
        return TREE ? msgl__attn_distance(&query[i / 2], key) : query[i / 2].pos - key;
    }

    template <bool TREE, int NB> __device__ __forceinline__ void apply(float (&s)[NB][4]) const
    {
#define X(name, text, expression)                                                                  \
    if ((c.mods.scores & 1u << MSGL_SCORE_##name) != 0) {                                          \
        _Pragma("unroll") for (int j = 0; j < NB * 4; j++)                                         \
        {                                                                                          \
            const int i = j % 4;                                                                   \
            const int32_t key = min(key0 + j / 4 * 8 + lane % 4 * 2 + i % 2, len - 1);             \
            s[j / 4][i] =                                                                          \
                msgl__attn_score_##name(&c.mods, head, distance<TREE>(i, key), s[j / 4][i]);       \
        }                                                                                          \
    }
        MSGL_ATTN_SCORES(X)
#undef X
        if (whole) return;
#define X(name, text, expression)                                                                  \
    if ((c.mods.masks & 1u << MSGL_MASK_##name) != 0) {                                            \
        _Pragma("unroll") for (int j = 0; j < NB * 4; j++)                                         \
        {                                                                                          \
            const int i = j % 4;                                                                   \
            const int32_t key = min(key0 + j / 4 * 8 + lane % 4 * 2 + i % 2, len - 1);             \
            if (!msgl__attn_mask_##name(&c.mods, &query[i / 2], key, distance<TREE>(i, key))) {    \
                s[j / 4][i] = -INFINITY;                                                           \
            }                                                                                      \
        }                                                                                          \
    }
        MSGL_ATTN_MASKS(X)
#undef X
#pragma unroll
        for (int j = 0; j < NB * 4; j++) {
            if (key0 + j / 4 * 8 + lane % 4 * 2 + j % 2 >= len) s[j / 4][j % 4] = -INFINITY;
        }
    }

    template <int NB> __device__ __forceinline__ void operator()(float (&s)[NB][4]) const
    {
#pragma unroll
        for (int j = 0; j < NB * 4; j++) s[j / 4][j % 4] *= c.attn.scale;
        if (c.tree != NULL) {
            apply<true>(s);
        } else if (!whole || c.mods.scores != 0) {
            apply<false>(s);
        }
    }
};

template <typename T, int HD>
static __global__
__launch_bounds__(THREADS) void flex_attend(const __grid_constant__ msgl_cuda_flex_call c)
{
    typedef shape<T, HD> S;
    const int KEYS = S::KEYS;
    extern __shared__ __align__(128) char smem[];
    const msgl_cuda_attn_call &a = c.attn;
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int32_t head = blockIdx.x, kv_head = head / (a.num_q_heads / a.num_kv_heads);
    msgl__pdl_wait();
    msgl__pdl_trigger();
    place p;
    if (!find_place(a, gridDim.y - 1 - blockIdx.y, ROWS, &p)) return;
    const T *rows[2];
    msgl_attn_query query[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int32_t i = warp * 16 + lane / 4 + r * 8, token = p.token + min(i, p.tokens - 1);
        const T *q = (const T *)a.q + (size_t)(p.row + token) * a.ld_q + (size_t)head * a.head_dim;
        rows[r] = i < p.tokens ? q : NULL;
        query[r] = query_at(c, p, token);
    }
    msgl_rows16<HD> w;
    msgl_rows16_query<T>(rows, a.head_dim, lane, &w);
    msgl_rows16_start(&w);

    // What lies behind the window of all of these queries is not the request's any more.
    const int32_t first = c.tree != NULL ? p.first_new : p.first_new + p.token;
    const bool slides = (c.mods.masks & 1u << MSGL_MASK_WINDOW) != 0;
    const int32_t from = slides ? max(first - c.mods.window, 0) : 0;
    const int32_t *list = c.lists + (size_t)p.block * c.lists_ld;
    const int32_t tiles = list[0] * (B / KEYS);
    const auto keys = msgl_rows16_keys_of<T>(a, kv_head, msgl__page_row(a, a.table_rows[p.req]));
    const uint32_t ring = msgl__shared_address(smem);
    if (tiles > 0) {
        msgl_rows16_load<T, HD, KEYS, THREADS>(keys, tile_key<KEYS>(list, 0), from, p.len, ring);
    }
    msgl__copy_async_commit();
    for (int32_t t = 0; t < tiles; t++) {
        const uint32_t at = ring + t % 2 * S::STAGE, next = ring + (t + 1) % 2 * S::STAGE;
        if (t + 1 < tiles) {
            msgl_rows16_load<T, HD, KEYS, THREADS>(keys, tile_key<KEYS>(list, t + 1), from, p.len,
                                                   next);
        }
        msgl__copy_async_commit();
        msgl__copy_async_wait<1>();
        __syncthreads();
        const int32_t key0 = tile_key<KEYS>(list, t);
        const bool whole = list[1 + t / (B / KEYS)] % 2 == 0 && key0 + KEYS <= p.len;
        const functions score = {c, query, head, lane, key0, p.len, whole};
        const auto all = [](int, int32_t) { return true; };
        if (key0 < p.len) msgl_rows16_attend<T, HD, KEYS>(score, at, lane, all, &w);
        __syncthreads();
    }
    msgl_rows16_sum(&w);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (rows[r] == NULL) continue;
        const size_t row = (size_t)(p.row + p.token + warp * 16 + lane / 4 + r * 8);
        const float scale = w.l[r] == 0.f ? 0.f : a.out_scale / w.l[r];
        msgl_rows16_store<T>(w, r, scale, a.head_dim, lane,
                             (T *)a.out + row * a.ld_out + (size_t)head * a.head_dim);
        if (a.lse != NULL && lane % 4 == 0) {
            a.lse[row * a.num_q_heads + head] = msgl_rows16_lse(w, r);
        }
    }
}

template <typename T, int HD>
static cudaError_t launch(const msgl_cuda_flex_call &c, cudaStream_t stream)
{
    const dim3 grid((unsigned)c.attn.num_q_heads, (unsigned)(c.attn.total_q / ROWS + c.attn.batch));
    constexpr auto kernel = flex_attend<T, HD>;
    const cudaError_t e = msgl__allow_shared<kernel>(shape<T, HD>::BYTES);
    if (e != cudaSuccess) return e;
    return msgl__launch(kernel, grid, THREADS, shape<T, HD>::BYTES, stream, c);
}

template <typename T> static cudaError_t launch_dim(const msgl_cuda_flex_call &c, cudaStream_t s)
{
    return c.attn.head_dim <= 64    ? launch<T, 64>(c, s)
           : c.attn.head_dim <= 128 ? launch<T, 128>(c, s)
                                    : launch<T, 256>(c, s);
}

extern "C" int msgl__cuda_flex_lists(const msgl_cuda_flex_call *c, void *stream)
{
    if (c->attn.total_q == 0) return cudaSuccess;
    const dim3 grid((unsigned)(c->attn.total_q / B + c->attn.batch));
    return msgl__launch(flex_lists, grid, LIST_WARPS * 32, 0, (cudaStream_t)stream, *c);
}

extern "C" int msgl__cuda_flex_attend(const msgl_cuda_flex_call *c, void *stream)
{
    const int32_t dim = c->attn.head_dim;
    if (dim < 8 || dim > 256 || dim % 8 != 0) return cudaErrorNotSupported;
    if (c->attn.total_q == 0) return cudaSuccess;
    switch (c->attn.dtype) {
    case MSGL_BF16: return launch_dim<__nv_bfloat16>(*c, (cudaStream_t)stream);
    case MSGL_F16: return launch_dim<__half>(*c, (cudaStream_t)stream);
    default: return cudaErrorNotSupported;
    }
}
