// SPDX-License-Identifier: Apache-2.0
//
// Family index (kernel/index.h): whole blocks of keys, chosen by each KV head. Scores are products
// of rows, (token, head) pairs of one request, and its keys, 64 at a time, by tensor cores; of a
// block's products the largest is kept. A row's best blocks are found by radix, as those of single
// keys (index.cu), and become lists of keys. Every row is computed alone, in one order, so its bits
// and its choice depend on its request alone.
//
// The limits of the scores: an index key of `dim` elements is 2 dim bytes, which are read once for
// up to 64 rows of a chunk and once for all heads of an answer: an answer at 131,072 keys of 128
// elements reads 34 MB, 7 us of an H200's 4.8 TB/s. Operations are 2 dim for a row and key in whole
// sixteens of rows: a chunk of 8,192 tokens of 4 heads has 34 M pairs a head, 34 GFLOP in all,
// which tensor cores that are fed from shared memory do in about 0.1 ms.
#include "cuda/attn/double_sparsity/largest.cuh"
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/index.cuh"
#include "cuda/ops/ops.h"
#include "cuda/ops/vec8.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/shared.cuh"
#include "kernel/index.h"

enum {
    WARPS = 4,
    ROWS = 16,   // of a warp
    RANGE = 512, // keys of a thread block, or one block of keys
    PICK_WARPS = 8,
};

struct blocks_args {
    msgl_index_blocks_call c;
    msgl_seqs seqs; // c.seqs is the host's
    msgl_paging paging;
    int32_t per_range, per_group; // blocks of keys and tokens of a thread block
};

// Tokens [first, end) of one request, the first of which sees `keys` keys: rows are (token, head)
// pairs, and the r-th one's token sees keys + r / heads.
struct blocks_run {
    int32_t first, end, keys;
    msgl_page_row table;
};

static __device__ __forceinline__ blocks_run find_run(const blocks_args &a, int32_t token,
                                                      int32_t end)
{
    const msgl_index_token of =
        msgl__index_token(a.seqs, a.c.pages, a.c.page_stride, a.paging, token);
    return {token, min(end, of.last + 1), of.keys, of.table};
}

static __device__ __forceinline__ int32_t blocks_of(const msgl_index_blocks_call &c, int32_t keys)
{
    return (keys + c.size - 1) / c.size;
}

// A row's orders of its blocks.
static __device__ __forceinline__ uint32_t *orders_of(const msgl_index_blocks_call &c,
                                                      int32_t token, int32_t head)
{
    const size_t row = (size_t)(token - c.first) * (size_t)c.heads + (size_t)head;
    return (uint32_t *)c.scores + row * (size_t)c.max_blocks;
}

// Keeps a block's score of row `row` of a run; the last ones are before all others.
static __device__ __forceinline__ void keep_score(const msgl_index_blocks_call &c,
                                                  const blocks_run &run, int32_t row, int32_t block,
                                                  float best)
{
    const int32_t at = row / c.heads, blocks = blocks_of(c, run.keys + at);
    if (block >= blocks) return;
    const float score = block >= blocks - c.local ? INFINITY : best;
    orders_of(c, run.first + at, row % c.heads)[block] = msgl__score_order(score);
}

// --- scores by tensor cores ----------------------------------------------------------------------

// A warp's sixteen rows of a run, from row0 on: queries as operands, zeros behind the run's rows
// and behind dim.
template <typename T, int DIM> struct warp_rows {
    uint32_t queries[DIM / 16][4];
    int32_t row0, rows; // rows: of the run

    __device__ __forceinline__ void load(const msgl_index_blocks_call &c, const blocks_run &run,
                                         int32_t from)
    {
        const int32_t lane = threadIdx.x % 32;
        row0 = from;
        rows = (run.end - run.first) * c.heads;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int32_t row = row0 + lane / 4 + r * 8;
            const T *q = (const T *)c.q;
            if (row < rows) {
                q += (size_t)(run.first + row / c.heads) * c.ld_q +
                     (size_t)(row % c.heads) * (size_t)c.dim;
            }
#pragma unroll
            for (int i = 0; i < DIM / 8; i++) {
                const int32_t d = i * 8 + lane % 4 * 2;
                queries[i / 2][i % 2 * 2 + r] =
                    row < rows && d < c.dim ? *(const uint32_t *)(q + d) : 0u;
            }
        }
    }
};

// Raises best[r], of the lane's rows lane / 4 and 8 behind it, to their products with the warp's
// share of a tile's keys, [from, from + num) of those from position `at` on, that they see.
template <typename T, int DIM>
static __device__ __forceinline__ void
score_tile(const msgl_index_blocks_call &c, const blocks_run &run, const warp_rows<T, DIM> &w,
           uint32_t tile, int32_t at, int32_t end, int32_t from, int32_t num, float (&best)[2])
{
    const int32_t lane = threadIdx.x % 32;
    const uint32_t mine = tile + lane % 8 * msgl_index_tile<DIM>::PITCH + lane / 8 * 16;
    int32_t seen[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        seen[r] = min(end, run.keys + (w.row0 + lane / 4 + r * 8) / c.heads);
    }
    for (int32_t n = from; n < from + num && at + n < end; n += 8) {
        float s[4] = {};
        msgl__index_products<T, DIM>(w.queries, mine + n * msgl_index_tile<DIM>::PITCH, s);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t key = at + n + lane % 4 * 2 + i % 2;
            if (key < seen[i / 2]) best[i / 2] = fmaxf(best[i / 2], s[i]);
        }
    }
}

// Blocks [begin, end) of keys for the rows of a run from row0 on, ROWS for each of ROW_WARPS
// warps; warps with the same rows share a tile's keys. all: shared memory.
template <typename T, int DIM, int ROW_WARPS>
static __device__ __forceinline__ void
score_rows(const msgl_index_blocks_call &c, const blocks_run &run, int32_t row0, int32_t begin,
           int32_t end, char *keys, float (&all)[WARPS][ROWS])
{
    const int SHARES = WARPS / ROW_WARPS, SHARE = INDEX_KEYS / SHARES;
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int32_t most = run.keys + (run.end - run.first - 1);
    const uint32_t tile = msgl__shared_address(keys);
    warp_rows<T, DIM> w;
    w.load(c, run, row0 + warp % ROW_WARPS * ROWS);
    for (int32_t block = begin; block < end; block++) {
        const int32_t last = min((block + 1) * c.size, most);
        float best[2] = {-INFINITY, -INFINITY};
        for (int32_t at = block * c.size; at < last; at += INDEX_KEYS) {
            msgl__ask_index_tile<T, DIM, WARPS * 32>(c.pool, c.dim, run.table, at, last, tile);
            msgl__copy_async_wait<0>();
            __syncthreads();
            if (w.row0 < w.rows) {
                score_tile<T, DIM>(c, run, w, tile, at, last, warp / ROW_WARPS * SHARE, SHARE,
                                   best);
            }
            __syncthreads(); // before the next tile
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            for (int d = 1; d < 4; d *= 2) {
                best[r] = fmaxf(best[r], __shfl_xor_sync(~0u, best[r], d));
            }
            if (lane % 4 == 0) all[warp][lane / 4 + r * 8] = best[r];
        }
        __syncthreads();
        if (warp < ROW_WARPS && lane < ROWS && w.row0 + lane < w.rows) {
            float score = all[warp][lane];
#pragma unroll
            for (int s = 1; s < SHARES; s++) {
                score = fmaxf(score, all[warp + s * ROW_WARPS][lane]);
            }
            keep_score(c, run, w.row0 + lane, block, score);
        }
        // (Nobody writes to `all` again before the next tile's barriers.)
    }
}

// Thread block (range of blocks of keys, group of tokens).
template <typename T, int DIM, int ROW_WARPS>
static __global__ __launch_bounds__(WARPS *
                                    32) void score_kernel(const __grid_constant__ blocks_args a)
{
    __shared__ __align__(128) char keys[msgl_index_tile<DIM>::BYTES];
    __shared__ float all[WARPS][ROWS];
    const msgl_index_blocks_call &c = a.c;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    const int32_t begin = (int32_t)blockIdx.x * a.per_range;
    const int32_t first = c.first + (int32_t)blockIdx.y * a.per_group;
    const int32_t behind = min(first + a.per_group, c.first + c.tokens);
    for (int32_t token = first; token < behind;) { // mostly one request
        const blocks_run run = find_run(a, token, behind);
        const int32_t blocks = blocks_of(c, run.keys + (run.end - run.first - 1));
        const int32_t end = blocks > c.top_k ? min(begin + a.per_range, blocks) : begin;
        const int32_t rows = (run.end - run.first) * c.heads;
        for (int32_t row0 = 0; begin < end && row0 < rows; row0 += ROWS * ROW_WARPS) {
            score_rows<T, DIM, ROW_WARPS>(c, run, row0, begin, end, keys, all);
        }
        token = run.end;
    }
}

// --- scores of any dtype and dimension -----------------------------------------------------------

// Thread block (WARPS blocks of keys, token, head): a warp a block of keys, a lane a key.
template <typename T>
static __global__ __launch_bounds__(WARPS *
                                    32) void plain_kernel(const __grid_constant__ blocks_args a)
{
    const msgl_index_blocks_call &c = a.c;
    const int32_t block = (int32_t)blockIdx.x * WARPS + (int32_t)threadIdx.x / 32;
    const int32_t token = c.first + (int32_t)blockIdx.y, head = (int32_t)blockIdx.z;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    const blocks_run run = find_run(a, token, token + 1);
    const int32_t blocks = blocks_of(c, run.keys);
    if (blocks <= c.top_k || block >= blocks) return;
    const T *q = (const T *)c.q + (size_t)token * c.ld_q + (size_t)head * (size_t)c.dim;
    const int32_t end = min((block + 1) * c.size, run.keys);
    float best = -INFINITY;
    for (int32_t at = block * c.size + (int32_t)threadIdx.x % 32; at < end; at += 32) {
        const T *k = (const T *)c.pool + (size_t)run.table[at] * (size_t)c.dim;
        float dot = 0.f;
        for (int32_t d = 0; d < c.dim; d++) dot = fmaf(to_f32(q[d]), to_f32(k[d]), dot);
        best = fmaxf(best, dot);
    }
    for (int d = 16; d > 0; d /= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, d));
    if (threadIdx.x % 32 == 0) keep_score(c, run, head, block, best);
}

// --- the best of them ----------------------------------------------------------------------------

// The blocks whose numbers stand where their keys are to be become those keys: a warp a block.
// keys: the number of those that the token sees. Returns how many are chosen, in every thread.
static __device__ __forceinline__ int32_t list_keys(const msgl_index_blocks_call &c,
                                                    const msgl_page_row &table, int32_t keys,
                                                    int32_t head, int32_t *to)
{
    const int32_t last = to[(size_t)(c.top_k - 1) * c.size];
    __syncthreads();
    for (int32_t i = threadIdx.x / 32; i < c.top_k; i += PICK_WARPS) {
        int32_t *const place = to + (size_t)i * c.size;
        const int32_t first = *place * c.size, end = min(first + c.size, keys);
        __syncwarp();
        for (int32_t key = first + threadIdx.x % 32; key < end; key += 32) {
            place[key - first] = table[key] * c.heads + head;
        }
    }
    return (c.top_k - 1) * c.size + min(c.size, keys - last * c.size);
}

// Thread block (token, head).
static __global__ __launch_bounds__(PICK_WARPS *
                                    32) void pick_kernel(const __grid_constant__ blocks_args a)
{
    __shared__ __align__(16) int32_t counts[MSGL_COUNTS];
    __shared__ int2 tallies[PICK_WARPS];
    const msgl_index_blocks_call &c = a.c;
    msgl_clear_counts(counts, 1, PICK_WARPS * 32);
    __syncthreads();
    msgl__pdl_wait();
    msgl__pdl_trigger();
    const int32_t token = c.first + (int32_t)blockIdx.x, head = (int32_t)blockIdx.y;
    const msgl_index_token of = msgl__index_token(a.seqs, c.pages, c.page_stride, a.paging, token);
    const size_t list = (size_t)head * (size_t)c.tokens + blockIdx.x;
    int32_t *to = c.keys + list * (size_t)c.top_k * (size_t)c.size;
    const int32_t blocks = blocks_of(c, of.keys);
    if (blocks <= c.top_k) {
        if (threadIdx.x == 0) c.counts[list] = of.keys;
        for (int32_t i = threadIdx.x; i < of.keys; i += PICK_WARPS * 32) {
            to[i] = of.table[i] * c.heads + head;
        }
        return;
    }
    const msgl_row row = {orders_of(c, token, head), blocks, (int32_t)threadIdx.x / 32, PICK_WARPS};
    const msgl_least least = msgl_find_least(row, c.top_k, counts);
    msgl_list_largest(row, least, tallies,
                      [&](int32_t i, int32_t place) { to[(size_t)place * c.size] = i; });
    __syncthreads();
    const int32_t num = list_keys(c, of.table, of.keys, head, to);
    if (threadIdx.x == 0) c.counts[list] = num;
}

// --- launches ------------------------------------------------------------------------------------

template <typename T, int DIM, int ROW_WARPS>
static void launch_scores(msgl_exec *x, blocks_args *a, int32_t blocks)
{
    const msgl_index_blocks_call &c = a->c;
    a->per_range = c.size < RANGE ? RANGE / c.size : 1;
    const dim3 grid((unsigned)((blocks + a->per_range - 1) / a->per_range),
                    (unsigned)((c.tokens + a->per_group - 1) / a->per_group));
    MSGL_CUDA_TRY(x, msgl__launch(score_kernel<T, DIM, ROW_WARPS>, grid, dim3(WARPS * 32), 0,
                                  msgl__cuda_stream(x), *a));
}

// Answers, each with keys of its own, or chunks.
template <typename T, int DIM> static void score(msgl_exec *x, blocks_args *a, int32_t blocks)
{
    const bool answers = a->seqs.max_seqlen_q <= 1;
    a->per_group = !answers && a->c.heads < WARPS * ROWS ? WARPS * ROWS / a->c.heads : 1;
    if (answers) {
        launch_scores<T, DIM, 1>(x, a, blocks);
    } else {
        launch_scores<T, DIM, WARPS>(x, a, blocks);
    }
}

template <typename T> static void score_plain(msgl_exec *x, const blocks_args *a, int32_t blocks)
{
    const dim3 grid((unsigned)((blocks + WARPS - 1) / WARPS), (unsigned)a->c.tokens,
                    (unsigned)a->c.heads);
    MSGL_CUDA_TRY(
        x, msgl__launch(plain_kernel<T>, grid, dim3(WARPS * 32), 0, msgl__cuda_stream(x), *a));
}

extern "C" void msgl__cuda_index_choose_blocks(msgl_exec *x, const msgl_index_blocks_call *c)
{
    if (c->dtype != x->act) {
        x->status = MSGL_EUNSUPPORTED;
        return;
    }
    if (c->tokens <= 0) return;
    const int32_t all = (c->seqs->max_seqlen_k + c->size - 1) / c->size;
    const int32_t blocks = all < c->max_blocks ? all : c->max_blocks;
    blocks_args a = {*c, *c->seqs, msgl__paging_of(c->page_size), 1, 1};
    if (blocks > c->top_k) {
        if (msgl__index_takes_pieces(c->dtype, c->dim, c->pool, c->q, c->ld_q)) {
            MSGL_BY_INDEX_DIM(x->act, c->dim, score, x, &a, blocks);
        } else {
            MSGL_BY_DTYPE(x->act, score_plain, x, &a, blocks);
        }
    }
    MSGL_CUDA_TRY(x, msgl__launch(pick_kernel, dim3((unsigned)c->tokens, (unsigned)c->heads),
                                  dim3(PICK_WARPS * 32), 0, msgl__cuda_stream(x), a));
}
