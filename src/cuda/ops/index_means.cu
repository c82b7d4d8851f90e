// SPDX-License-Identifier: Apache-2.0
//
// Family index (kernel/index.h): blocks by one key each, which is made of the mean of their raw
// keys. Rows of the tensor cores' tiles are (token, query) pairs of one request, a token's side by
// side, whose products are summed over its queries; a token's best blocks are found by radix, as
// single keys (index.cu), and become lists of keys, the same for every KV head. Every token is
// computed alone, in one order, so its bits and its choice depend on its request alone.
//
// The limits: a raw key is read once more than it is written, for its block's mean. Of the scores,
// a block's key of `dim` elements is 2 dim bytes, read once for the tokens of a thread block (4 to
// 64 of a chunk): an answer at 131,072 tokens in blocks of 16 reads 8,192 keys of 128 elements, 2.1
// MB, 0.5 us of an H200's 4.8 TB/s, less than the launches. The lists are what attention reads.
#include "cuda/attn/double_sparsity/largest.cuh"
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/index.cuh"
#include "cuda/ops/index_vector.cuh"
#include "cuda/ops/ops.h"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/shared.cuh"
#include "kernel/index.h"

enum {
    STORE_WARPS = 4,
    WARPS = 4,
    ROWS = 16, // of a warp
    PLAIN_THREADS = 128,
    PICK_WARPS = 16,
};

// --- keys and queries ----------------------------------------------------------------------------

struct store_args {
    msgl_index_means_store_call c;
    msgl_seqs seqs; // c.seqs is the host's
    msgl_paging paging;
};

// The first row of the token's request in this step, as far back as row `least`. Rows of drafts may
// be requests of one token each, one behind the other, with one row of the page table: of rows that
// are of table rows 2, 2, 2 and 5 the third one's first is row 0.
static __device__ __forceinline__ int32_t first_row(const msgl_seqs &s, const msgl_index_token &of,
                                                    int32_t least)
{
    int32_t first = of.first;
    for (int32_t req = of.req; s.related && first > least && req > 0; req--) {
        if (s.dev_table_rows[req - 1] != s.dev_table_rows[of.req]) break;
        first = s.dev_cu_seqlens_q[req - 1];
    }
    return first;
}

// A warp's share of the sum over the block that the token ends, every STORE_WARPS-th key of it. A
// raw key of an earlier step is in the pool, one of this step may not be there yet.
template <typename T>
static __device__ __forceinline__ void sum_keys(const store_args &a, const msgl_index_token &of,
                                                int32_t token, float *sum)
{
    const msgl_index_means_store_call &c = a.c;
    const int32_t lane = (int32_t)threadIdx.x % 32, behind = token + 1;
    const int32_t first = first_row(a.seqs, of, behind - c.size);
    for (int i = lane; i < c.dim; i += 32) sum[i] = 0;
    for (int32_t n = c.size - (int32_t)threadIdx.x / 32; n > 0; n -= STORE_WARPS) {
        const T *k = behind - n >= first
                         ? (const T *)c.k + (size_t)(behind - n) * c.ld
                         : (const T *)c.pool + (size_t)of.table[of.keys - n] * (size_t)c.dim;
#pragma unroll 4
        for (int i = lane; i < c.dim; i += 32) sum[i] += to_f32(k[i]);
    }
}

// The key of the block that the token ends, by a warp, of all shares.
static __device__ __forceinline__ void make_key(const msgl_index_means_store_call &c, int32_t first,
                                                float (*sums)[MSGL_INDEX_MAX_DIM], float *cos_sin)
{
    const int lane = (int)threadIdx.x % 32;
    for (int i = lane; i < c.half; i += 32) {
        float sine, cosine;
        sincosf((float)first * c.inv_freq[i], &sine, &cosine);
        cos_sin[i] = cosine * c.scale;
        cos_sin[c.half + i] = sine * c.scale;
    }
    for (int i = lane; i < c.dim; i += 32) {
        float sum = sums[0][i];
#pragma unroll
        for (int w = 1; w < STORE_WARPS; w++) sum += sums[w][i];
        sums[0][i] = sum / (float)c.size;
    }
    __syncwarp();
    norm_and_rotate(sums[0], c.dim, c.half, c.eps, c.k_weight, NULL, cos_sin, sums[0]);
}

// A block a token: the first warp has its key, the others its queries. All of them sum what the
// token ends.
template <typename T>
static __global__ void __launch_bounds__(STORE_WARPS * 32)
    store_kernel(const __grid_constant__ store_args a)
{
    __shared__ float sums[STORE_WARPS][MSGL_INDEX_MAX_DIM], rows[STORE_WARPS][MSGL_INDEX_MAX_DIM];
    const msgl_index_means_store_call &c = a.c;
    const int32_t token = (int32_t)blockIdx.x, warp = (int32_t)threadIdx.x / 32;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    const msgl_index_token of = msgl__index_token(a.seqs, c.pages, c.page_stride, a.paging, token);
    const bool ends = of.keys % c.size == 0;
    if (ends) {
        sum_keys<T>(a, of, token, sums[warp]);
        __syncthreads();
    }
    if (warp == 0) {
        T *to = (T *)c.pool + (size_t)of.table[of.keys - 1] * (size_t)c.dim;
        const T *k = (const T *)c.k + (size_t)token * c.ld;
        if (ends) {
            make_key(c, of.keys - c.size, sums, rows[0]);
            store_row(sums[0], c.dim, to);
        } else {
            for (int i = (int)threadIdx.x; i < c.dim; i += 32) to[i] = k[i];
        }
        return;
    }
    const float *cos_sin = c.cos_sin + (size_t)token * 2 * (size_t)c.half;
    for (int h = warp - 1; h < c.heads; h += STORE_WARPS - 1) {
        T *q = (T *)c.q + (size_t)token * c.ld + (size_t)h * (size_t)c.dim;
        norm_and_rotate(q, c.dim, c.half, c.eps, c.q_weight, NULL, cos_sin, rows[warp]);
        store_row(rows[warp], c.dim, q);
        __syncwarp();
    }
}

template <typename T> static void store(msgl_exec *x, const msgl_index_means_store_call *c)
{
    const store_args a = {*c, *c->seqs, msgl__paging_of(c->page_size)};
    MSGL_CUDA_TRY(x, msgl__launch(store_kernel<T>, dim3((unsigned)c->seqs->num_tokens),
                                  dim3(STORE_WARPS * 32), 0, msgl__cuda_stream(x), a));
}

extern "C" void msgl__cuda_index_store_means(msgl_exec *x, const msgl_index_means_store_call *c)
{
    if (c->dtype != x->act) {
        x->status = MSGL_EUNSUPPORTED;
    } else if (c->seqs->num_tokens > 0) {
        MSGL_BY_DTYPE(x->act, store, x, c);
    }
}

// --- scores by tensor cores ----------------------------------------------------------------------

struct means_args {
    msgl_index_blocks_call c;
    msgl_seqs seqs; // c.seqs is the host's
    msgl_paging paging;
    // Rows of a token in a warp's sixteen, a power of two, as many as it has queries or, of more
    // than 16, 16 at a time; tokens of a thread block.
    int32_t per_token, per_group;
};

// Tokens [first, end) of one request, the first of which sees `keys` keys.
struct means_run {
    int32_t first, end, keys;
    msgl_every_row blocks; // their keys
};

static __device__ __forceinline__ means_run find_run(const means_args &a, int32_t token,
                                                     int32_t end)
{
    const msgl_index_token of =
        msgl__index_token(a.seqs, a.c.pages, a.c.page_stride, a.paging, token);
    return {token, min(end, of.last + 1), of.keys, {of.table, a.c.size}};
}

static __device__ __forceinline__ uint32_t *orders_of(const msgl_index_blocks_call &c,
                                                      int32_t token)
{
    return (uint32_t *)c.scores + (size_t)(token - c.first) * (size_t)c.max_blocks;
}

// Queries [head0, head0 + per_token) of a warp's tokens, from `token` on, as operands; zeros where
// there are none. has: of the lane's rows.
template <typename T, int DIM>
static __device__ __forceinline__ void
load_queries(const means_args &a, const means_run &run, int32_t token, int32_t head0,
             uint32_t (&queries)[DIM / 16][4], bool (&has)[2])
{
    const msgl_index_blocks_call &c = a.c;
    const int32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int32_t row = lane / 4 + r * 8, head = head0 + row % a.per_token;
        const int32_t at = token + row / a.per_token;
        has[r] = at < run.end && head < c.queries;
        const T *q = (const T *)c.q;
        if (has[r]) q += (size_t)at * c.ld_q + (size_t)head * (size_t)c.dim;
#pragma unroll
        for (int i = 0; i < DIM / 8; i++) {
            const int32_t d = i * 8 + lane % 4 * 2;
            queries[i / 2][i % 2 * 2 + r] = has[r] && d < c.dim ? *(const uint32_t *)(q + d) : 0u;
        }
    }
}

// Scores of blocks [from, from + KEYS) of a tile, which begins with block `at`, for a warp's tokens
// from `token` on.
template <typename T, int DIM, int KEYS>
static __device__ __forceinline__ void score_tile(const means_args &a, const means_run &run,
                                                  uint32_t tile, int32_t at, int32_t from,
                                                  int32_t token)
{
    const msgl_index_blocks_call &c = a.c;
    const int32_t lane = threadIdx.x % 32, low_rows = min(a.per_token, 8);
    const uint32_t mine = tile + (from + lane % 8) * msgl_index_tile<DIM>::PITCH + lane / 8 * 16;
    float sums[KEYS / 8][4] = {};
    for (int32_t head0 = 0; head0 < c.queries; head0 += a.per_token) {
        uint32_t queries[DIM / 16][4];
        bool has[2];
        load_queries<T, DIM>(a, run, token, head0, queries, has);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            float s[4] = {};
            msgl__index_products<T, DIM>(queries, mine + n * 8 * msgl_index_tile<DIM>::PITCH, s);
#pragma unroll
            for (int i = 0; i < 4; i++) sums[n][i] += has[i / 2] ? msgl__positive(s[i]) : 0.f;
        }
    }
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            for (int d = 4; d < 4 * low_rows; d *= 2) {
                sums[n][i] += __shfl_xor_sync(~0u, sums[n][i], d);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t row = lane / 4 + i / 2 * 8, owner = token + row / a.per_token;
            const int32_t block = at + from + n * 8 + lane % 4 * 2 + i % 2;
            const int32_t seen = (run.keys + (owner - run.first)) / c.size;
            if (row % a.per_token != 0 || owner >= run.end || block >= seen) continue;
            const float rest = i < 2 && a.per_token == ROWS ? sums[n][i + 2] : 0.f;
            orders_of(c, owner)[block] = msgl__score_order(sums[n][i] + rest);
        }
    }
}

// Thread block (a tile of blocks' keys, group of tokens). Warps with the same rows, of which there
// are ROW_WARPS, share a tile's keys.
template <typename T, int DIM, int ROW_WARPS>
static __global__ void __launch_bounds__(WARPS * 32, DIM <= 64    ? 4
                                                     : DIM <= 128 ? 3
                                                                  : 2)
    score_kernel(const __grid_constant__ means_args a)
{
    __shared__ __align__(128) char keys[msgl_index_tile<DIM>::BYTES];
    const int SHARE = INDEX_KEYS / (WARPS / ROW_WARPS);
    const int KEYS = SHARE < 32 ? SHARE : 32; // whose sums fit into registers
    const msgl_index_blocks_call &c = a.c;
    const int32_t warp = threadIdx.x / 32, at = (int32_t)blockIdx.x * INDEX_KEYS;
    const uint32_t tile = msgl__shared_address(keys);
    msgl__pdl_wait();
    msgl__pdl_trigger();
    const int32_t first = c.first + (int32_t)blockIdx.y * a.per_group;
    const int32_t behind = min(first + a.per_group, c.first + c.tokens);
    for (int32_t token = first; token < behind;) { // mostly one request
        const means_run run = find_run(a, token, behind);
        const int32_t end = (run.keys + (run.end - run.first - 1)) / c.size;
        if (end > c.top_k && at < end) {
            msgl__ask_index_tile<T, DIM, WARPS * 32>(c.pool, c.dim, run.blocks, at, end, tile);
            msgl__copy_async_wait<0>();
            __syncthreads();
            const int32_t mine = run.first + warp % ROW_WARPS * (ROWS / a.per_token);
            for (int32_t from = 0; mine < run.end && from < SHARE; from += KEYS) {
                score_tile<T, DIM, KEYS>(a, run, tile, at, warp / ROW_WARPS * SHARE + from, mine);
            }
            __syncthreads(); // before the next tile
        }
        token = run.end;
    }
}

// --- scores of any dtype and dimension -----------------------------------------------------------

// Thread block (blocks, token): a thread a block.
template <typename T>
static __global__
__launch_bounds__(PLAIN_THREADS) void plain_kernel(const __grid_constant__ means_args a)
{
    const msgl_index_blocks_call &c = a.c;
    const int32_t block = (int32_t)(blockIdx.x * PLAIN_THREADS + threadIdx.x);
    const int32_t token = c.first + (int32_t)blockIdx.y;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    const means_run run = find_run(a, token, token + 1);
    const int32_t blocks = run.keys / c.size;
    if (blocks <= c.top_k || block >= blocks) return;
    const T *q = (const T *)c.q + (size_t)token * c.ld_q;
    const T *k = (const T *)c.pool + (size_t)run.blocks[block] * (size_t)c.dim;
    float sum = 0.f;
    for (int32_t h = 0; h < c.queries; h++, q += c.dim) {
        float dot = 0.f;
        for (int32_t d = 0; d < c.dim; d++) dot = fmaf(to_f32(q[d]), to_f32(k[d]), dot);
        sum += msgl__positive(dot);
    }
    orders_of(c, token)[block] = msgl__score_order(sum);
}

// --- the best of them ----------------------------------------------------------------------------

// The lists of a token, of each KV head.
struct token_lists {
    int32_t *first; // of the first head
    size_t apart;   // elements from a head's to the next one's
    int32_t heads;

    __device__ __forceinline__ void put(int32_t place, int32_t slot) const
    {
        for (int32_t h = 0; h < heads; h++) first[h * apart + place] = slot * heads + h;
    }
};

// The chosen blocks, whose numbers stand in the first list where their keys are to be, become those
// keys. A warp has as many blocks at a time as it has lanes for keys, or one.
static __device__ __forceinline__ void list_keys(const msgl_index_blocks_call &c,
                                                 const msgl_page_row &table, const token_lists &to)
{
    const int32_t lane = threadIdx.x % 32, at_once = c.size < 32 ? 32 / c.size : 1;
    const int32_t mine = lane / c.size;
    for (int32_t i0 = (int32_t)threadIdx.x / 32 * at_once; i0 < c.top_k;
         i0 += PICK_WARPS * at_once) {
        const bool there = mine < at_once && i0 + mine < c.top_k;
        const int32_t place = (i0 + mine) * c.size, block = there ? to.first[place] : 0;
        __syncwarp(); // before anything is written over the numbers
        for (int32_t i = lane % c.size; there && i < c.size; i += 32) {
            to.put(place + i, table[block * c.size + i]);
        }
    }
}

// A thread block a token.
static __global__ __launch_bounds__(PICK_WARPS *
                                    32) void pick_kernel(const __grid_constant__ means_args a)
{
    __shared__ __align__(16) int32_t counts[MSGL_COUNTS];
    __shared__ int2 tallies[PICK_WARPS];
    const msgl_index_blocks_call &c = a.c;
    msgl_clear_counts(counts, 1, PICK_WARPS * 32);
    __syncthreads();
    msgl__pdl_wait();
    msgl__pdl_trigger();
    const int32_t token = c.first + (int32_t)blockIdx.x;
    const msgl_index_token of = msgl__index_token(a.seqs, c.pages, c.page_stride, a.paging, token);
    const int32_t blocks = of.keys / c.size, list = c.top_k * c.size + c.size - 1;
    const token_lists to = {c.keys + (size_t)blockIdx.x * list, (size_t)c.tokens * list, c.heads};
    // Keys from `from` on are all there, at `place` of the lists.
    int32_t from = 0, place = 0;
    if (blocks > c.top_k) {
        const msgl_row row = {orders_of(c, token), blocks, (int32_t)threadIdx.x / 32, PICK_WARPS};
        const msgl_least least = msgl_find_least(row, c.top_k, counts);
        msgl_list_largest(row, least, tallies,
                          [&](int32_t i, int32_t at) { to.first[(size_t)at * c.size] = i; });
        __syncthreads();
        list_keys(c, of.table, to);
        from = blocks * c.size, place = c.top_k * c.size;
    }
    for (int32_t i = threadIdx.x; i < of.keys - from; i += PICK_WARPS * 32) {
        to.put(place + i, of.table[from + i]);
    }
    for (int32_t h = threadIdx.x; h < c.heads; h += PICK_WARPS * 32) {
        c.counts[(size_t)h * c.tokens + blockIdx.x] = place + of.keys - from;
    }
}

// --- launches ------------------------------------------------------------------------------------

template <typename T, int DIM, int ROW_WARPS>
static void launch_scores(msgl_exec *x, means_args *a, int32_t blocks)
{
    const dim3 grid((unsigned)((blocks + INDEX_KEYS - 1) / INDEX_KEYS),
                    (unsigned)((a->c.tokens + a->per_group - 1) / a->per_group));
    MSGL_CUDA_TRY(x, msgl__launch(score_kernel<T, DIM, ROW_WARPS>, grid, dim3(WARPS * 32), 0,
                                  msgl__cuda_stream(x), *a));
}

// Answers, each with keys of its own, or chunks.
template <typename T, int DIM> static void score(msgl_exec *x, means_args *a, int32_t blocks)
{
    while (a->per_token < a->c.queries && a->per_token < ROWS) a->per_token *= 2;
    if (a->seqs.max_seqlen_q <= 1) {
        launch_scores<T, DIM, 1>(x, a, blocks);
    } else {
        a->per_group = WARPS * ROWS / a->per_token;
        launch_scores<T, DIM, WARPS>(x, a, blocks);
    }
}

template <typename T> static void score_plain(msgl_exec *x, const means_args *a, int32_t blocks)
{
    const dim3 grid((unsigned)((blocks + PLAIN_THREADS - 1) / PLAIN_THREADS),
                    (unsigned)a->c.tokens);
    MSGL_CUDA_TRY(
        x, msgl__launch(plain_kernel<T>, grid, dim3(PLAIN_THREADS), 0, msgl__cuda_stream(x), *a));
}

extern "C" void msgl__cuda_index_choose_means(msgl_exec *x, const msgl_index_blocks_call *c)
{
    if (c->dtype != x->act) {
        x->status = MSGL_EUNSUPPORTED;
        return;
    }
    if (c->tokens <= 0) return;
    const int32_t all = c->seqs->max_seqlen_k / c->size;
    const int32_t blocks = all < c->max_blocks ? all : c->max_blocks;
    means_args a = {*c, *c->seqs, msgl__paging_of(c->page_size), 1, 1};
    if (blocks > c->top_k) {
        if (msgl__index_takes_pieces(c->dtype, c->dim, c->pool, c->q, c->ld_q)) {
            MSGL_BY_INDEX_DIM(x->act, c->dim, score, x, &a, blocks);
        } else {
            MSGL_BY_DTYPE(x->act, score_plain, x, &a, blocks);
        }
    }
    MSGL_CUDA_TRY(x, msgl__launch(pick_kernel, dim3((unsigned)c->tokens), dim3(PICK_WARPS * 32), 0,
                                  msgl__cuda_stream(x), a));
}
