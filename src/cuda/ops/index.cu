// SPDX-License-Identifier: Apache-2.0
//
// Family index (kernel/index.h): single keys and lists. Scores are products of a token's queries,
// which are rows of the tensor cores' tiles, 16 a warp, and its keys, 64 a block; a token's best
// are found by radix, as double sparsity's. Every token is computed alone, in one order, so its
// bits and its choice depend on its request alone.
#include "cuda/attn/double_sparsity/largest.cuh"
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/index.cuh"
#include "cuda/ops/index_vector.cuh"
#include "cuda/ops/ops.h"
#include "cuda/ops/vec8.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/shared.cuh"
#include "kernel/index.h"

enum {
    STORE_WARPS = 4,
    SCORE_WARPS = 4,
    PICK_WARPS = 16,
    LIST_THREADS = 128,
};

// --- keys and queries ----------------------------------------------------------------------------

// A block a token: the first warp has its key, the others its queries, a warp a query or, where
// these have no norm, a thread a pair.
template <typename T>
static __global__ void __launch_bounds__(STORE_WARPS * 32)
    store_kernel(const msgl_index_store_call c)
{
    __shared__ float rows[STORE_WARPS][MSGL_INDEX_MAX_DIM];
    const size_t t = blockIdx.x;
    const int warp = (int)threadIdx.x / 32;
    const float *cos_sin = c.cos_sin + t * 2 * (size_t)c.half;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    T *queries = (T *)c.q + t * c.ld_q;
    if (warp == 0) {
        const T *k = (const T *)c.k + t * c.ld_k;
        norm_and_rotate(k, c.dim, c.half, c.eps, c.k_weight, c.k_bias, cos_sin, rows[0]);
        store_row(rows[0], c.dim, (T *)c.pool + (size_t)c.slots[t] * (size_t)c.dim);
    } else if (c.q_weight != NULL) {
        for (int h = warp - 1; h < c.heads; h += STORE_WARPS - 1) {
            T *q = queries + (size_t)h * (size_t)c.dim;
            norm_and_rotate(q, c.dim, c.half, c.eps, c.q_weight, NULL, cos_sin, rows[warp]);
            store_row(rows[warp], c.dim, q);
            __syncwarp();
        }
    } else {
        for (int i = (int)threadIdx.x - 32; i < c.heads * c.half; i += (STORE_WARPS - 1) * 32) {
            rotate_pair(queries + (size_t)(i / c.half) * (size_t)c.dim, cos_sin, c.half,
                        i % c.half);
        }
    }
}

template <typename T> static void store(msgl_exec *x, const msgl_index_store_call *c)
{
    MSGL_CUDA_TRY(x, msgl__launch(store_kernel<T>, dim3((unsigned)c->tokens),
                                  dim3(STORE_WARPS * 32), 0, msgl__cuda_stream(x), *c));
}

// The pool is of the activations' dtype.
extern "C" void msgl__cuda_index_store(msgl_exec *x, const msgl_index_store_call *c)
{
    if (c->dtype != x->act) {
        x->status = MSGL_EUNSUPPORTED;
    } else if (c->tokens > 0) {
        MSGL_BY_DTYPE(x->act, store, x, c);
    }
}

// --- scores --------------------------------------------------------------------------------------

// Tokens [first, first + num) of the sequences, whose orders are rows from 0 on.
struct choose_args {
    msgl_index_choose_call c;
    msgl_seqs seqs; // c.seqs is the host's
    msgl_paging paging;
    int32_t first, every; // every: as in msgl_every_row
};

// The keys that a token sees.
struct seen_keys {
    msgl_every_row table;
    int32_t keys;
};

static __device__ __forceinline__ seen_keys find_keys(const choose_args &a, int32_t token)
{
    const msgl_index_token of =
        msgl__index_token(a.seqs, a.c.pages, a.c.page_stride, a.paging, token);
    return {{of.table, a.every}, of.keys / a.every};
}

// Block (a tile of keys, token). A warp has every fourth sixteen of the queries.
template <typename T, int DIM>
static __global__ __launch_bounds__(SCORE_WARPS *
                                    32) void score_kernel(const __grid_constant__ choose_args a)
{
    const int PITCH = msgl_index_tile<DIM>::PITCH;
    __shared__ __align__(128) char keys[msgl_index_tile<DIM>::BYTES];
    __shared__ float sums[SCORE_WARPS][INDEX_KEYS];
    const msgl_index_choose_call &c = a.c;
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    const int32_t token = a.first + (int32_t)blockIdx.y, key0 = (int32_t)blockIdx.x * INDEX_KEYS;
    const seen_keys of = find_keys(a, token);
    if (of.keys <= c.top_k || key0 >= of.keys) return;

    const uint32_t tile = msgl__shared_address(keys);
    msgl__ask_index_tile<T, DIM, SCORE_WARPS * 32>(c.pool, c.dim, of.table, key0, of.keys, tile);
    for (int32_t i = lane; i < INDEX_KEYS; i += 32) sums[warp][i] = 0.f;
    msgl__copy_async_wait<0>();
    __syncthreads();

    const T *q = (const T *)c.q + (size_t)token * c.ld_q;
    const uint32_t at = tile + lane % 8 * PITCH + lane / 8 * 16;
    for (int32_t head0 = warp * 16; head0 < c.heads; head0 += SCORE_WARPS * 16) {
        uint32_t queries[DIM / 16][4];
        float weight[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int32_t head = head0 + lane / 4 + r * 8;
            const bool has = head < c.heads;
            weight[r] = has ? c.weights[(size_t)token * c.heads + head] : 0.f;
#pragma unroll
            for (int ks = 0; ks < DIM / 16; ks++) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int32_t d = ks * 16 + h * 8 + lane % 4 * 2;
                    const bool there = has && d < c.dim;
                    queries[ks][2 * h + r] =
                        there ? *(const uint32_t *)(q + (size_t)head * c.dim + d) : 0u;
                }
            }
        }
        for (int nb = 0; nb < INDEX_KEYS / 8; nb++) {
            float s[4] = {}, x[2];
            msgl__index_products<T, DIM>(queries, at + nb * 8 * PITCH, s);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                x[i] = weight[0] * msgl__positive(s[i]) + weight[1] * msgl__positive(s[2 + i]);
#pragma unroll
                for (int d = 4; d < 32; d *= 2) x[i] += __shfl_xor_sync(~0u, x[i], d);
            }
            if (lane < 4) {
                sums[warp][nb * 8 + lane * 2] += x[0];
                sums[warp][nb * 8 + lane * 2 + 1] += x[1];
            }
        }
    }
    __syncthreads();
    uint32_t *orders = (uint32_t *)c.scores + (size_t)blockIdx.y * (size_t)c.max_keys;
    for (int32_t i = threadIdx.x; i < INDEX_KEYS && key0 + i < of.keys; i += SCORE_WARPS * 32) {
        float sum = 0.f;
#pragma unroll
        for (int w = 0; w < SCORE_WARPS; w++) sum += sums[w][i];
        orders[key0 + i] = msgl__score_order(sum);
    }
}

// --- the best of them ----------------------------------------------------------------------------

// A block a token.
static __global__ __launch_bounds__(PICK_WARPS *
                                    32) void pick_kernel(const __grid_constant__ choose_args a)
{
    __shared__ __align__(16) int32_t counts[MSGL_COUNTS];
    __shared__ int2 tallies[PICK_WARPS];
    const msgl_index_choose_call &c = a.c;
    msgl_clear_counts(counts, 1, PICK_WARPS * 32);
    __syncthreads();
    msgl__pdl_wait();
    msgl__pdl_trigger();
    const int32_t token = a.first + (int32_t)blockIdx.x;
    const seen_keys of = find_keys(a, token);
    int32_t *slots = c.slots + (size_t)token * (size_t)c.top_k;
    if (threadIdx.x == 0) c.counts[token] = min(of.keys, c.top_k);
    if (of.keys <= c.top_k) {
        for (int32_t i = threadIdx.x; i < of.keys; i += PICK_WARPS * 32) slots[i] = of.table[i];
        return;
    }
    const uint32_t *orders = (const uint32_t *)c.scores + (size_t)blockIdx.x * (size_t)c.max_keys;
    const msgl_row row = {orders, of.keys, (int32_t)threadIdx.x / 32, PICK_WARPS};
    const msgl_least least = msgl_find_least(row, c.top_k, counts);
    msgl_list_largest(row, least, tallies,
                      [&](int32_t i, int32_t place) { slots[place] = of.table[i]; });
}

template <typename T, int DIM> static void choose(msgl_exec *x, const msgl_index_choose_call *c)
{
    const int32_t every = c->every > 1 ? c->every : 1, all = c->seqs->max_seqlen_k / every;
    const int32_t most = all < c->max_keys ? all : c->max_keys;
    const unsigned tiles = (unsigned)((most + INDEX_KEYS - 1) / INDEX_KEYS);
    choose_args a = {*c, *c->seqs, msgl__paging_of(c->page_size), 0, every};
    for (; a.first < c->seqs->num_tokens; a.first += c->score_rows) {
        const int32_t left = c->seqs->num_tokens - a.first;
        const unsigned num = (unsigned)(left < c->score_rows ? left : c->score_rows);
        if (most > c->top_k) {
            MSGL_CUDA_TRY(x, msgl__launch(score_kernel<T, DIM>, dim3(tiles, num),
                                          dim3(SCORE_WARPS * 32), 0, msgl__cuda_stream(x), a));
        }
        MSGL_CUDA_TRY(x, msgl__launch(pick_kernel, dim3(num), dim3(PICK_WARPS * 32), 0,
                                      msgl__cuda_stream(x), a));
    }
}

extern "C" void msgl__cuda_index_choose(msgl_exec *x, const msgl_index_choose_call *c)
{
    if (c->dtype != x->act || !msgl__index_takes_pieces(c->dtype, c->dim, c->pool, c->q, c->ld_q)) {
        x->status = MSGL_EUNSUPPORTED;
    } else {
        MSGL_BY_INDEX_DIM(x->act, c->dim, choose, x, c);
    }
}

// --- lists ---------------------------------------------------------------------------------------

struct list_args {
    msgl_index_list_call c;
    msgl_seqs seqs; // c.seqs is the host's
    msgl_paging paging;
};

// A block a token. A list is written once and little is read for it: the launch is what it takes.
static __global__ void __launch_bounds__(LIST_THREADS)
    list_kernel(const __grid_constant__ list_args a)
{
    const msgl_index_list_call &c = a.c;
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const int32_t token = c.first + (int32_t)blockIdx.x;
    const msgl_index_token of = msgl__index_token(a.seqs, c.pages, c.page_stride, a.paging, token);
    const int32_t near = min(c.window, of.keys), t = (int32_t)threadIdx.x;
    int32_t *keys = c.keys + (size_t)blockIdx.x * c.ld_keys, num = 0;
    for (int32_t i = t; i < near; i += LIST_THREADS) keys[i] = of.table[of.keys - near + i];
    if (c.every > 0 && c.chosen != NULL) {
        const int32_t *chosen = c.chosen + (size_t)token * c.ld_chosen;
        num = c.chosen_counts[token];
        for (int32_t i = t; i < num; i += LIST_THREADS) keys[near + i] = chosen[i] + c.shift;
    } else if (c.every > 0) {
        const msgl_every_row windows = {of.table, c.every};
        num = of.keys / c.every;
        for (int32_t i = t; i < num; i += LIST_THREADS) keys[near + i] = windows[i] + c.shift;
    }
    if (t == 0) c.counts[blockIdx.x] = near + num;
}

extern "C" void msgl__cuda_index_list(msgl_exec *x, const msgl_index_list_call *c)
{
    if (c->tokens <= 0) return;
    const list_args a = {*c, *c->seqs, msgl__paging_of(c->page_size)};
    MSGL_CUDA_TRY(x, msgl__launch(list_kernel, dim3((unsigned)c->tokens), dim3(LIST_THREADS), 0,
                                  msgl__cuda_stream(x), a));
}
