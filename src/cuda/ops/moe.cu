// SPDX-License-Identifier: Apache-2.0
//
// Family moe: routing, sorting the assignments by expert, and combining, all on the device: the
// host never learns which experts were chosen.
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/copy_row.cuh"
#include "cuda/ops/ops.h"
#include "cuda/ops/route.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/shared.cuh"

#define ROUTE_WARPS 4 // rows per block
#define SORT_ROUNDS 8 // of 32 consecutive assignments per warp
#define SORT_TILE (SORT_WARPS * SORT_ROUNDS * 32)

template <int PER, bool PLAIN>
static __global__ void __launch_bounds__(ROUTE_WARPS * 32)
    route_kernel(const msgl_router how, const float *logits, int rows, int experts, int32_t *ids,
                 float *weights)
{
    msgl__pdl_trigger();
    const int lane = (int)threadIdx.x % 32;
    const int row = (int)blockIdx.x * ROUTE_WARPS + (int)threadIdx.x / 32;
    float added[PER];
    if constexpr (!PLAIN) load_corrections(how, experts, added);
    msgl__pdl_wait();
    if (row >= rows) return;
    logits += (size_t)row * (size_t)experts;
    ids += (size_t)row * (size_t)how.top_k;
    weights += (size_t)row * (size_t)how.top_k;
    uint32_t keys[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int e = lane * PER + i;
        keys[i] = e < experts ? ordered(logits[e]) : 0;
    }
    const float total = route_row<PER, PLAIN>(how, experts, added, keys, ids, weights);
    for (int c = lane; c < how.top_k; c += 32) weights[c] = weights[c] / total * how.scale;
}

// counts[tile, e]: how often tile `blockIdx.x` of the assignments has expert e.
static __global__ void __launch_bounds__(SORT_THREADS)
    count_kernel(const int32_t *ids, int n, int experts, int32_t *counts)
{
    extern __shared__ int32_t count[];
    msgl__pdl_trigger();
    for (int e = (int)threadIdx.x; e < experts; e += SORT_THREADS) count[e] = 0;
    __syncthreads();
    msgl__pdl_wait();
    const int begin = (int)blockIdx.x * SORT_TILE;
    const int end = begin + SORT_TILE < n ? begin + SORT_TILE : n;
    for (int i = begin + (int)threadIdx.x; i < end; i += SORT_THREADS) atomicAdd(&count[ids[i]], 1);
    __syncthreads();
    for (int e = (int)threadIdx.x; e < experts; e += SORT_THREADS) {
        counts[(size_t)blockIdx.x * (size_t)experts + (size_t)e] = count[e];
    }
}

// Walks a warp's assignments [begin, end) in order; at[e] counts those of expert e up. With source,
// each goes to place at[e]. Few instructions: a step of few rows runs them once, from memory.
static __device__ __forceinline__ void sort_walk(const int32_t *ids, int begin, int end,
                                                 int32_t *at, int32_t *source)
{
    const int lane = (int)threadIdx.x % 32;
    int next = begin + lane < end ? __ldcg(ids + begin + lane) : -1;
#pragma unroll 1
    for (; begin < end; begin += 32) {
        const int e = next; // -1: none
        next = begin + 32 + lane < end ? __ldcg(ids + begin + 32 + lane) : -1;
        const unsigned same = __match_any_sync(MSGL_FULL_MASK, e);
        const int before = __popc(same & ((1u << lane) - 1));
        const int32_t base = e < 0 ? 0 : at[e];
        if (source != NULL && e >= 0) source[base + before] = begin + lane;
        __syncwarp();
        if (before == 0 && e >= 0) at[e] = base + __popc(same);
        __syncwarp();
    }
}

// Places tile `tile` of `tiles`; counts is NULL when it is the only one. A warp has `rounds` times
// 32 assignments. Thread t looks after experts [t per, t per + per). at: zeros [SORT_WARPS,
// experts].
static __device__ __forceinline__ void sort_tile(const int32_t *ids, int n, int tile, int tiles,
                                                 int rounds, int experts, int per,
                                                 const int32_t *counts, int32_t *at,
                                                 int32_t *offsets, int32_t *source)
{
    const int warp = (int)threadIdx.x / 32;
    const int begin = tile * SORT_TILE + warp * rounds * 32;
    const int end = begin + rounds * 32 < n ? begin + rounds * 32 : n;
    sort_walk(ids, begin, end, at + warp * experts, NULL);
    __syncthreads();
    const int first = (int)threadIdx.x * per;
    const int last = first + per < experts ? first + per : experts;
    int total = 0;
#pragma unroll 1
    for (int e = first; e < last; e++) {
        if (counts == NULL) {
#pragma unroll 1
            for (int w = 0; w < SORT_WARPS; w++) total += at[w * experts + e];
        } else {
#pragma unroll 1
            for (int t = 0; t < tiles; t++) total += counts[(size_t)t * experts + e];
        }
    }
    int place = scan_before(total);
#pragma unroll 1
    for (int e = first; e < last; e++) {
        if (tile == 0) offsets[e] = place;
        int start = place, all = 0;
#pragma unroll 1
        for (int t = 0; counts != NULL && t < tiles; t++) {
            const int c = counts[(size_t)t * experts + e];
            if (t < tile) start += c;
            all += c;
        }
#pragma unroll 1
        for (int w = 0; w < SORT_WARPS; w++) {
            const int c = at[w * experts + e];
            at[w * experts + e] = start;
            start += c;
        }
        place = counts == NULL ? start : place + all;
    }
    if (tile == 0 && threadIdx.x == 0) offsets[experts] = n;
    __syncthreads();
    sort_walk(ids, begin, end, at + warp * experts, source);
}

static __global__ void __launch_bounds__(SORT_THREADS)
    sort_kernel(const int32_t *ids, int n, int rounds, int experts, int per, const int32_t *counts,
                int32_t *offsets, int32_t *source)
{
    extern __shared__ int32_t at[];
    msgl__pdl_trigger();
    for (int i = (int)threadIdx.x; i < SORT_WARPS * experts; i += SORT_THREADS) at[i] = 0;
    __syncthreads();
    msgl__pdl_wait();
    sort_tile(ids, n, (int)blockIdx.x, (int)gridDim.x, rounds, experts, per, counts, at, offsets,
              source);
}

// Copies rows in pieces of Unit, a warp a row of out.
template <typename Unit>
static __global__ void __launch_bounds__(MSGL_COPYING_WARPS * 32)
    gather_kernel(const Unit *in, const int32_t *source, int rows, int top_k, int units, Unit *out)
{
    const int j = (int)blockIdx.x * MSGL_COPYING_WARPS + (int)threadIdx.x / 32;
    msgl__pdl_trigger();
    msgl__pdl_wait();
    if (j >= rows) return;
    const Unit *const src = in + (size_t)(__ldcg(source + j) / top_k) * (size_t)units;
    msgl__copy_row(src, out + (size_t)j * (size_t)units, units);
}

static __global__ void invert_kernel(const int32_t *source, int n, int32_t *place)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const int j = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (j < n) place[source[j]] = j;
}

#define COMBINE_THREADS 128
#define COMBINE_FEW_ROWS 64 // where combine_few_kernel was measured to be faster
#define COMBINED 8          // rows of it on their way at once

// N: 8 elements per thread, or 1 for any dim; blockIdx.x: row, blockIdx.y: part of it. place NULL:
// rows lie in the order of the choices.
template <typename T, int N>
static __global__ void __launch_bounds__(COMBINE_THREADS)
    combine_kernel(const T *in, const int32_t *place, const float *weights, int top_k, int dim,
                   bool accumulate, T *out)
{
    msgl__pdl_trigger();
    const int at = (int)(blockIdx.y * COMBINE_THREADS + threadIdx.x) * N;
    const size_t first = (size_t)blockIdx.x * (size_t)top_k;
    msgl__pdl_wait();
    if (at >= dim) return;
    float sum[N] = {0}, v[N];
#pragma unroll 4
    for (int c = 0; c < top_k; c++) {
        const size_t from = place != NULL ? (size_t)place[first + c] : first + (size_t)c;
        const T *src = in + from * (size_t)dim + at;
        const float w = weights[first + c];
        load_n<N>(src, v);
        if (w == 0) continue; // another rank's expert: nobody wrote the row
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] += w * v[i];
    }
    T *dst = out + (size_t)blockIdx.x * (size_t)dim + at;
    if (accumulate) {
        load_n<N>(dst, v);
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] += v[i];
    }
    store_n<N>(dst, sum);
}

template <typename T> static __device__ __forceinline__ void copy8(T *shared, const T *from)
{
    const uint32_t to = msgl__shared_address(shared);
#pragma unroll
    for (uint32_t i = 0; i < sizeof(T) / 2; i++) {
        msgl__copy_async_16(to + i * 16, (const uint4 *)from + i, true);
    }
}

// combine_kernel<T, 8> to the bit, for few rows: there a thread's loads are what takes the time,
// and of ordinary ones the compiler saves registers, so that a thread waits four times in a row.
// Here all come through shared memory, in a place of its own for each thread. Many rows are slower
// that way (docs/internals/gemm.md).
template <typename T>
static __global__ void __launch_bounds__(COMBINE_THREADS)
    combine_few_kernel(const T *in, const int32_t *place, const float *weights, int top_k, int dim,
                       bool accumulate, T *out)
{
    __shared__ __align__(16) T rows[COMBINED + 1][COMBINE_THREADS][8];
    __shared__ float kept[COMBINED][COMBINE_THREADS];
    msgl__pdl_trigger();
    const int t = (int)threadIdx.x, at = (int)(blockIdx.y * COMBINE_THREADS + threadIdx.x) * 8;
    const size_t first = (size_t)blockIdx.x * (size_t)top_k;
    T *dst = out + (size_t)blockIdx.x * (size_t)dim + at;
    float sum[8] = {0}, v[8];
    msgl__pdl_wait();
    if (at >= dim) return;
    if (accumulate) copy8(rows[COMBINED][t], dst);
#pragma unroll 1
    for (int c0 = 0; c0 < top_k; c0 += COMBINED) {
        const int num = top_k - c0 < COMBINED ? top_k - c0 : COMBINED;
#pragma unroll 4
        for (int u = 0; u < num; u++) {
            const size_t c = first + (size_t)(c0 + u);
            const size_t from = place != NULL ? (size_t)place[c] : c;
            copy8(rows[u][t], in + from * (size_t)dim + at);
            msgl__copy_async_4(msgl__shared_address(&kept[u][t]), weights + c);
        }
        msgl__copy_async_commit();
        msgl__copy_async_wait<0>();
#pragma unroll 4
        for (int u = 0; u < num; u++) {
            load8(rows[u][t], v);
            if (kept[u][t] == 0) continue; // as above
#pragma unroll
            for (int i = 0; i < 8; i++) sum[i] += kept[u][t] * v[i];
        }
    }
    if (accumulate) {
        load8(rows[COMBINED][t], v);
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] += v[i];
    }
    store8(dst, sum);
}

template <bool PLAIN>
static void route(msgl_exec *x, const msgl_router &how, const float *logits, int rows, int experts,
                  int32_t *ids, float *weights)
{
    void (*const kernel)(const msgl_router, const float *, int, int, int32_t *, float *) =
        experts <= 128   ? route_kernel<4, PLAIN>
        : experts <= 256 ? route_kernel<8, PLAIN>
        : experts <= 512 ? route_kernel<16, PLAIN>
                         : route_kernel<32, PLAIN>;
    MSGL_CUDA_TRY(x, msgl__launch(kernel, dim3((unsigned)(rows + ROUTE_WARPS - 1) / ROUTE_WARPS),
                                  dim3(ROUTE_WARPS * 32), 0, msgl__cuda_stream(x), how, logits,
                                  rows, experts, ids, weights));
}

// The better of two experts: the larger logit, of equal ones the lower index; -1 is none.
static __device__ __forceinline__ void keep_better(int &e, float &l, int other, float logit)
{
    if (other >= 0 && (e < 0 || logit > l || (logit == l && other < e))) e = other, l = logit;
}

// MSGL_SCORE_SPARSEMIXER, a warp per row.
static __global__ void mix_kernel(const msgl_router how, const float *logits, int rows, int experts,
                                  int32_t *ids, float *weights)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const int row = (int)(blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const int lane = (int)threadIdx.x % 32;
    if (row >= rows) return;
    const float *of = logits + (size_t)row * experts;
    int32_t *id = ids + (size_t)row * how.top_k;
    for (int c = 0; c < how.top_k; c++) {
        int best = -1;
        float most = 0, sum = 0;
        for (int pass = 0; pass < 2; pass++) { // the best one, then the sum of those near it
            for (int e = lane; e < experts; e += 32) {
                bool taken = false;
                for (int i = 0; i < c; i++) taken = taken || id[i] == e;
                if (taken) continue;
                if (pass == 0) {
                    keep_better(best, most, e, of[e]);
                    continue;
                }
                const float away = (most - of[e]) / fmaxf(fabsf(of[e]), most);
                if (!(away > how.spread)) sum += expf(of[e] - most);
            }
            for (int step = 16; step > 0 && pass == 0; step /= 2) {
                const int other = __shfl_xor_sync(MSGL_FULL_MASK, best, step);
                keep_better(best, most, other, __shfl_xor_sync(MSGL_FULL_MASK, most, step));
            }
        }
        sum = group_sum(sum, 32);
        if (lane == 0) {
            id[c] = best;
            weights[(size_t)row * how.top_k + c] = 1.0f / sum;
        }
        __syncwarp();
    }
}

// A row's choices from the table, a warp per row, whose lanes share the choices.
static __global__ void __launch_bounds__(ROUTE_WARPS * 32)
    look_up_kernel(const msgl_router how, const float *logits, const int32_t *tokens, int rows,
                   int experts, int32_t *ids, float *weights)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const int row = (int)blockIdx.x * ROUTE_WARPS + (int)threadIdx.x / 32;
    const int lane = (int)threadIdx.x % 32;
    if (row >= rows) return;
    const int token = min(max(tokens[row], 0), how.table_ids - 1);
    const float *chosen = how.table + (size_t)token * (size_t)how.top_k;
    const bool softmax = how.scoring == MSGL_SCORE_SOFTMAX;
    float most = -INFINITY, all = 0, kept = 0;
    logits += (size_t)row * (size_t)experts;
    ids += (size_t)row * (size_t)how.top_k;
    weights += (size_t)row * (size_t)how.top_k;
    for (int e = lane; softmax && e < experts; e += 32) most = fmaxf(most, logits[e]);
    for (int step = 16; step > 0; step /= 2) {
        most = fmaxf(most, __shfl_xor_sync(MSGL_FULL_MASK, most, step));
    }
    for (int e = lane; softmax && e < experts; e += 32) all += expf(logits[e] - most);
    all = group_sum(all, 32);
    for (int c = lane; c < how.top_k; c += 32) {
        const int id = (int)chosen[c];
        const float score = softmax ? expf(logits[id] - most) / all : own_score(how, logits[id]);
        ids[c] = id;
        weights[c] = score;
        kept += score;
    }
    kept = group_sum(kept, 32);
    const float total = how.norm_topk ? fmaxf(kept + 1e-20f, how.least_sum) : 1.0f;
    for (int c = lane; c < how.top_k; c += 32) weights[c] = weights[c] / total * how.scale;
}

extern "C" void msgl__cuda_moe_look_up(msgl_exec *x, const msgl_router *how, const float *logits,
                                       const int32_t *tokens, int rows, int experts, int32_t *ids,
                                       float *weights)
{
    if (rows <= 0) return;
    const unsigned blocks = (unsigned)(rows + ROUTE_WARPS - 1) / ROUTE_WARPS;
    MSGL_CUDA_TRY(x, msgl__launch(look_up_kernel, dim3(blocks), dim3(ROUTE_WARPS * 32), 0,
                                  msgl__cuda_stream(x), *how, logits, tokens, rows, experts, ids,
                                  weights));
}

extern "C" void msgl__cuda_moe_route(msgl_exec *x, const msgl_router *how, const float *logits,
                                     int rows, int experts, int32_t *ids, float *weights)
{
    if (rows <= 0) return;
    if (how->scoring == MSGL_SCORE_SPARSEMIXER) {
        const unsigned blocks = (unsigned)(rows + ROUTE_WARPS - 1) / ROUTE_WARPS;
        MSGL_CUDA_TRY(x, msgl__launch(mix_kernel, dim3(blocks), dim3(ROUTE_WARPS * 32), 0,
                                      msgl__cuda_stream(x), *how, logits, rows, experts, ids,
                                      weights));
    } else if (is_plain(how)) {
        route<true>(x, *how, logits, rows, experts, ids, weights);
    } else {
        route<false>(x, *how, logits, rows, experts, ids, weights);
    }
}

extern "C" void msgl__cuda_moe_sort(msgl_exec *x, const int32_t *ids, int rows, int top_k,
                                    int experts, int32_t *offsets, int32_t *source)
{
    const cudaStream_t stream = msgl__cuda_stream(x);
    const int n = rows * top_k, tiles = n <= SORT_TILE ? 1 : (n + SORT_TILE - 1) / SORT_TILE;
    const size_t row_bytes = (size_t)experts * sizeof(int32_t), used = x->scratch->used;
    int32_t *counts = NULL;
    if (tiles > 1) {
        counts = (int32_t *)msgl__arena_alloc(x->scratch, (size_t)tiles * row_bytes);
        if (counts == NULL) {
            x->status = MSGL_EINTERNAL;
            return;
        }
        MSGL_CUDA_TRY(x, msgl__launch(count_kernel, dim3((unsigned)tiles), dim3(SORT_THREADS),
                                      row_bytes, stream, ids, n, experts, counts));
    }
    const int per = (experts + SORT_THREADS - 1) / SORT_THREADS;
    const int rounds = tiles > 1 ? SORT_ROUNDS : (n + SORT_THREADS - 1) / SORT_THREADS;
    MSGL_CUDA_TRY(x, msgl__launch(sort_kernel, dim3((unsigned)tiles), dim3(SORT_THREADS),
                                  SORT_WARPS * row_bytes, stream, ids, n, rounds, experts, per,
                                  (const int32_t *)counts, offsets, source));
    x->scratch->used = used; // free for later work: that runs after this
}

extern "C" void msgl__cuda_moe_gather(msgl_exec *x, const void *in, const int32_t *source, int rows,
                                      int top_k, int dim, void *out)
{
    const cudaStream_t stream = msgl__cuda_stream(x);
    const size_t bytes = (size_t)dim * msgl__dtype_size(x->act);
    const int all = rows * top_k;
    const dim3 grid((unsigned)((all + MSGL_COPYING_WARPS - 1) / MSGL_COPYING_WARPS));
    const dim3 threads(MSGL_COPYING_WARPS * 32);
    if (rows <= 0) return;
    if (bytes % 16 == 0 && aligned16(in) && aligned16(out)) {
        const int units = (int)(bytes / 16);
        MSGL_CUDA_TRY(x, msgl__launch(gather_kernel<uint4>, grid, threads, 0, stream,
                                      (const uint4 *)in, source, all, top_k, units, (uint4 *)out));
    } else {
        MSGL_CUDA_TRY(x, msgl__launch(gather_kernel<uint16_t>, grid, threads, 0, stream,
                                      (const uint16_t *)in, source, all, top_k, (int)(bytes / 2),
                                      (uint16_t *)out));
    }
}

template <typename T>
static void combine(msgl_exec *x, const void *in, const int32_t *place, const float *weights,
                    int rows, int top_k, int dim, bool accumulate, void *out)
{
    const bool vector = dim % 8 == 0 && aligned16(in) && aligned16(out);
    const unsigned items = (unsigned)(vector ? dim / 8 : dim);
    const dim3 grid((unsigned)rows, (items + COMBINE_THREADS - 1) / COMBINE_THREADS);
    void (*const kernel)(const T *, const int32_t *, const float *, int, int, bool, T *) =
        !vector                    ? combine_kernel<T, 1>
        : rows <= COMBINE_FEW_ROWS ? combine_few_kernel<T>
                                   : combine_kernel<T, 8>;
    MSGL_CUDA_TRY(x, msgl__launch(kernel, grid, dim3(COMBINE_THREADS), 0, msgl__cuda_stream(x),
                                  (const T *)in, place, weights, top_k, dim, accumulate, (T *)out));
}

static __global__ void keep_own_kernel(const int32_t *ids, int n, int first, int own,
                                       float *weights)
{
    msgl__pdl_trigger();
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    msgl__pdl_wait();
    if (i < n && (unsigned)(ids[i] - first) >= (unsigned)own) weights[i] = 0;
}

extern "C" void msgl__cuda_moe_keep_own(msgl_exec *x, const int32_t *ids, int n, int first, int own,
                                        float *weights)
{
    if (n <= 0) return;
    MSGL_CUDA_TRY(x, msgl__launch(keep_own_kernel, dim3((unsigned)(n + 255) / 256), dim3(256), 0,
                                  msgl__cuda_stream(x), ids, n, first, own, weights));
}

static __global__ void scale_choices_kernel(const int32_t *ids, int n, const float *by,
                                            float *weights)
{
    msgl__pdl_trigger();
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    msgl__pdl_wait();
    if (i < n) weights[i] *= by[ids[i]];
}

extern "C" void msgl__cuda_moe_scale_choices(msgl_exec *x, const int32_t *ids, int n,
                                             const float *by, float *weights)
{
    if (n <= 0) return;
    MSGL_CUDA_TRY(x, msgl__launch(scale_choices_kernel, dim3((unsigned)(n + 255) / 256), dim3(256),
                                  0, msgl__cuda_stream(x), ids, n, by, weights));
}

extern "C" void msgl__cuda_moe_combine(msgl_exec *x, const void *in, const int32_t *source,
                                       const float *weights, int rows, int top_k, int dim,
                                       bool accumulate, void *out)
{
    if (rows <= 0) return;
    const int n = rows * top_k;
    const size_t used = x->scratch->used;
    int32_t *place = NULL;
    if (source != NULL) {
        place = (int32_t *)msgl__arena_alloc(x->scratch, (size_t)n * sizeof *place);
        if (place == NULL) {
            x->status = MSGL_EINTERNAL;
            return;
        }
        MSGL_CUDA_TRY(x, msgl__launch(invert_kernel, dim3((unsigned)(n + 255) / 256), dim3(256), 0,
                                      msgl__cuda_stream(x), source, n, place));
    }
    MSGL_BY_DTYPE(x->act, combine, x, in, (const int32_t *)place, weights, rows, top_k, dim,
                  accumulate, out);
    x->scratch->used = used;
}

template <typename T> static __global__ void weigh_input_kernel(T *p, float *weights, int dim)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    T *row = p + (size_t)blockIdx.x * (size_t)dim;
    const float by = weights[blockIdx.x];
    for (int i = (int)threadIdx.x; i < dim; i += (int)blockDim.x) {
        row[i] = from_f32<T>(to_f32(row[i]) * by);
    }
    __syncthreads(); // all have read the weight
    if (threadIdx.x == 0) weights[blockIdx.x] = 1;
}

template <typename T>
static void weigh_input(msgl_exec *x, void *p, float *weights, int rows, int dim)
{
    MSGL_CUDA_TRY(x, msgl__launch(weigh_input_kernel<T>, dim3((unsigned)rows), dim3(256), 0,
                                  msgl__cuda_stream(x), (T *)p, weights, dim));
}

extern "C" void msgl__cuda_moe_weigh_input(msgl_exec *x, void *p, float *weights, int rows, int dim)
{
    if (rows > 0) MSGL_BY_DTYPE(x->act, weigh_input, x, p, weights, rows, dim);
}

template <typename T>
static __global__ void add_shared_kernel(const T *in, const float *gate, int dim, T *out)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const size_t row = (size_t)blockIdx.x * (size_t)dim;
    const float by = gate != NULL ? 1.0f / (1.0f + __expf(-gate[blockIdx.x])) : 1.0f;
    for (int i = (int)threadIdx.x; i < dim; i += (int)blockDim.x) {
        out[row + i] = from_f32<T>(to_f32(out[row + i]) + by * to_f32(in[row + i]));
    }
}

template <typename T>
static void add_shared(msgl_exec *x, const void *in, const float *gate, int rows, int dim,
                       void *out)
{
    MSGL_CUDA_TRY(x, msgl__launch(add_shared_kernel<T>, dim3((unsigned)rows), dim3(256), 0,
                                  msgl__cuda_stream(x), (const T *)in, gate, dim, (T *)out));
}

extern "C" void msgl__cuda_moe_add_shared(msgl_exec *x, const void *in, const float *gate, int rows,
                                          int dim, void *out)
{
    if (rows > 0) MSGL_BY_DTYPE(x->act, add_shared, x, in, gate, rows, dim, out);
}
