// SPDX-License-Identifier: Apache-2.0
//
// Dual chunk attention. A CTA of the prefill kernel has 64 query tokens of one chunk and one head:
// it walks the keys of the earlier chunks, of the one before and of its own, each with the query
// for them, in one online softmax. Tiles lie at absolute positions, so a row's bits do not depend
// on the step's tokens that it came with.
//
// Of an answer the keys are spread over the GPU by the decode kernel, to which each range of them
// is a request. Its results are merged here.
#include "cuda/attn/dual.h"

#include "cuda/attn/rows16.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/vec8.cuh"
#include "cuda/ptx/shared.cuh"

enum { ROWS = 64, WARPS = 4, THREADS = WARPS * 32 };

template <typename T, int HD> struct shape {
    static const int KEYS = HD > 128 ? 32 : 64; // of a tile
    static const int BYTES = 2 * 2 * KEYS * msgl_rows16_pitch<T, HD>::BYTES;
};

struct place { // of a CTA: query rows [row, row + rows), the first at position pos
    int32_t req, row, rows, pos;
};

static __device__ __forceinline__ int32_t tiles_of(int32_t rows)
{
    return (rows + ROWS - 1) / ROWS;
}

// CTA i of the tiles of all requests, in order; a tile ends with its chunk. False: there are fewer.
static __device__ bool find_place(const msgl_cuda_attn_call &c, int32_t dual_len, int32_t i,
                                  place *p)
{
    const int32_t per_chunk = tiles_of(dual_len);
    for (int32_t req = 0; req < c.batch; req++) {
        const int32_t from = c.cu_seqlens_q[req], n = c.cu_seqlens_q[req + 1] - from;
        const int32_t pos = c.seqlens_k[req] - n;
        const int32_t head = min(n, dual_len - pos % dual_len); // rows of the first chunk
        const int32_t head_tiles = tiles_of(head), tail = n - head;
        const int32_t tiles = head_tiles + tail / dual_len * per_chunk + tiles_of(tail % dual_len);
        if (i >= tiles) {
            i -= tiles;
            continue;
        }
        const bool in_head = i < head_tiles;
        const int32_t chunk = (i - head_tiles) / per_chunk; // behind the first
        const int32_t first = in_head ? 0 : head + chunk * dual_len;
        const int32_t end = in_head ? head : min(first + dual_len, n);
        const int32_t row = first + (in_head ? i : (i - head_tiles) % per_chunk) * ROWS;
        p->req = req;
        p->row = from + row;
        p->rows = min(end - row, ROWS);
        p->pos = pos + row;
        return true;
    }
    return false;
}

template <typename T, int HD>
static __global__
__launch_bounds__(THREADS) void dual_prefill(const __grid_constant__ msgl_cuda_attn_call c,
                                             int32_t dual_len, msgl_dual_sparse sparse)
{
    typedef shape<T, HD> S;
    extern __shared__ __align__(128) char smem[];
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int32_t head = blockIdx.x, kv_head = head / (c.num_q_heads / c.num_kv_heads);
    msgl__pdl_wait();
    msgl__pdl_trigger();
    place p;
    if (!find_place(c, dual_len, gridDim.y - 1 - blockIdx.y, &p)) return; // the last rows first
    if (c.cu_seqlens_q[p.req + 1] - c.cu_seqlens_q[p.req] > sparse.rows &&
        c.seqlens_k[p.req] > sparse.keys) {
        return;
    }
    const auto keys = msgl_rows16_keys_of<T>(c, kv_head, msgl__page_row(c, c.table_rows[p.req]));
    const msgl_score score = {c.scale, c.softcap};
    const int32_t row = warp * 16 + lane / 4; // and row + 8
    const int32_t own = p.pos / dual_len * dual_len, before = max(own - dual_len, 0);
    msgl_rows16<HD> w;
    msgl_rows16_start(&w);
#pragma unroll 1
    for (int32_t query = MSGL_DUAL_QUERIES - 1; query >= 0; query--) {
        const int32_t from = query == 2 ? 0 : query == 1 ? before : own;
        const int32_t to = query == 2 ? before : query == 1 ? own : p.pos + p.rows;
        if (from >= to) continue;
        const T *q[2];
        int32_t last[2]; // key that each of the lane's rows sees
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const size_t at = (size_t)(p.row + row + r * 8) * c.ld_q +
                              (size_t)(query * c.num_q_heads + head) * c.head_dim;
            q[r] = row + r * 8 < p.rows ? (const T *)c.q + at : NULL;
            last[r] = query > 0 ? to - 1 : p.pos + row + r * 8;
        }
        msgl_rows16_query<T>(q, c.head_dim, lane, &w);
        const auto sees = [&](int r, int32_t key) { return key >= from && key <= last[r]; };
        msgl_rows16_walk<T, HD, S::KEYS, THREADS>(keys, from, to, from, query > 0 ? to : p.pos + 1,
                                                  score, sees, msgl__shared_address(smem), lane,
                                                  &w);
    }
    msgl_rows16_sum(&w);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row + r * 8 >= p.rows) continue;
        const size_t token = (size_t)(p.row + row + r * 8);
        msgl_rows16_store<T>(w, r, c.out_scale / w.l[r], c.head_dim, lane,
                             (T *)c.out + token * c.ld_out + (size_t)head * c.head_dim);
        if (c.lse != NULL && lane % 4 == 0) {
            c.lse[token * c.num_q_heads + head] = msgl_rows16_lse(w, r);
        }
    }
}

template <typename T, int HD>
static cudaError_t launch(const msgl_cuda_attn_call &c, int32_t dual_len, msgl_dual_sparse sparse,
                          cudaStream_t stream)
{
    // Every chunk that ends inside of a request makes one more tile.
    const int32_t tiles = c.total_q / ROWS + c.total_q / dual_len + 2 * c.batch;
    constexpr auto kernel = dual_prefill<T, HD>;
    const cudaError_t e = msgl__allow_shared<kernel>(shape<T, HD>::BYTES);
    if (e != cudaSuccess) return e;
    const dim3 grid((unsigned)c.num_q_heads, (unsigned)tiles);
    return msgl__launch(kernel, grid, THREADS, shape<T, HD>::BYTES, stream, c, dual_len, sparse);
}

template <typename T>
static cudaError_t launch_dim(const msgl_cuda_attn_call &c, int32_t dual_len,
                              msgl_dual_sparse sparse, cudaStream_t s)
{
    return c.head_dim <= 64    ? launch<T, 64>(c, dual_len, sparse, s)
           : c.head_dim <= 128 ? launch<T, 128>(c, dual_len, sparse, s)
                               : launch<T, 256>(c, dual_len, sparse, s);
}

extern "C" int msgl__cuda_dual_prefill(const msgl_cuda_attn_call *c, int32_t dual_len,
                                       msgl_dual_sparse sparse, void *stream)
{
    const bool fits = c->head_dim >= 8 && c->head_dim <= 256 && c->head_dim % 8 == 0;
    if (!fits || c->e4m3 || c->window >= 0 || c->sinks != NULL) return cudaErrorNotSupported;
    if (c->total_q == 0) return cudaSuccess;
    switch (c->dtype) {
    case MSGL_BF16: return launch_dim<__nv_bfloat16>(*c, dual_len, sparse, (cudaStream_t)stream);
    case MSGL_F16: return launch_dim<__half>(*c, dual_len, sparse, (cudaStream_t)stream);
    default: return cudaErrorNotSupported;
    }
}

// Chunks before that of a request's last token.
static __device__ __forceinline__ int32_t chunks_before(int32_t seqlen_k, int32_t dual_len)
{
    return (seqlen_k - 1) / dual_len;
}

// The decode kernel reads what this writes before its wait: nothing may start before it has ended.
static __global__ void dual_ranges(const int32_t *seqlens_k, const int32_t *table_rows,
                                   int32_t batch, int32_t table_stride, int32_t dual_len,
                                   msgl_dual_ranges to)
{
    msgl__pdl_wait();
    const int32_t req = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    if (req >= batch) return;
    const int32_t n = seqlens_k[req], before = chunks_before(n, dual_len), own = before * dual_len;
    const int32_t lens[] = {n - own, before > 0 ? dual_len : 1, before > 1 ? own - dual_len : 1};
    const int32_t firsts[] = {own, before > 0 ? own - dual_len : 0, 0};
#pragma unroll
    for (int i = 0; i < MSGL_DUAL_QUERIES; i++) {
        to.seqlens_k[req * MSGL_DUAL_QUERIES + i] = lens[i];
        to.firsts[req * MSGL_DUAL_QUERIES + i] = table_rows[req] * table_stride + firsts[i];
    }
    __threadfence();
}

extern "C" int msgl__cuda_dual_ranges(const msgl_cuda_attn_call *c, int32_t dual_len,
                                      const msgl_dual_ranges *to, void *stream)
{
    enum { BLOCK = 128 };
    if (c->batch == 0) return cudaSuccess;
    return msgl__launch(dual_ranges, dim3((unsigned)((c->batch + BLOCK - 1) / BLOCK)), BLOCK, 0,
                        (cudaStream_t)stream, c->seqlens_k, c->table_rows, c->batch,
                        (int32_t)c->table_stride, dual_len, *to);
}

enum { MERGE_THREADS = 256 };

// blockIdx.x: request; its threads share heads * head_dim / 8 groups of elements.
template <typename T>
static __global__
__launch_bounds__(MERGE_THREADS) void dual_merge(const __grid_constant__ msgl_cuda_attn_call c,
                                                 int32_t dual_len, const T *results)
{
    const size_t req = blockIdx.x, width = (size_t)c.num_q_heads * c.head_dim;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    const int32_t ranges = min(chunks_before(c.seqlens_k[req], dual_len) + 1, MSGL_DUAL_QUERIES);
    for (size_t at = threadIdx.x * 8; at < width; at += MERGE_THREADS * 8) {
        const float *lse =
            c.lse + req * MSGL_DUAL_QUERIES * c.num_q_heads + at / (size_t)c.head_dim;
        float top = -INFINITY, sum = 0, out[8] = {};
        for (int32_t i = 0; i < ranges; i++) top = fmaxf(top, lse[i * c.num_q_heads]);
        for (int32_t i = 0; i < ranges; i++) {
            const float weight = expf(lse[i * c.num_q_heads] - top);
            float partial[8];
            load8(results + (req * MSGL_DUAL_QUERIES + i) * width + at, partial);
            sum += weight;
#pragma unroll
            for (int d = 0; d < 8; d++) out[d] += weight * partial[d];
        }
#pragma unroll
        for (int d = 0; d < 8; d++) out[d] /= sum;
        store8((T *)c.out + req * c.ld_out + at, out);
    }
}

extern "C" int msgl__cuda_dual_merge(const msgl_cuda_attn_call *c, int32_t dual_len,
                                     const void *results, void *stream)
{
    if (c->batch == 0) return cudaSuccess;
    const dim3 grid((unsigned)c->batch);
    const cudaStream_t s = (cudaStream_t)stream;
    switch (c->dtype) {
    case MSGL_BF16:
        return msgl__launch(dual_merge<__nv_bfloat16>, grid, MERGE_THREADS, 0, s, *c, dual_len,
                            (const __nv_bfloat16 *)results);
    case MSGL_F16:
        return msgl__launch(dual_merge<__half>, grid, MERGE_THREADS, 0, s, *c, dual_len,
                            (const __half *)results);
    default: return cudaErrorNotSupported;
    }
}
