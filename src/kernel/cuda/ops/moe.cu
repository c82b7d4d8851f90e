// SPDX-License-Identifier: Apache-2.0
//
// Family moe: routing, sorting the assignments by expert, and combining, all on the device: the
// host never learns which experts were chosen.
#include "kernel/cuda/device.cuh"
#include "kernel/cuda/gemm/lt.cuh"
#include "kernel/cuda/launch.cuh"
#include "kernel/cuda/ops/ops.h"
#include "kernel/cuda/ops/ordered.cuh"
#include "kernel/cuda/ops/vec8.cuh"
#include "kernel/cuda/ptx.cuh"

#define ROUTE_WARPS 4 // rows per block
#define SORT_WARPS 8
#define SORT_ROUNDS 8 // of 32 consecutive assignments per warp
#define SORT_TILE (SORT_WARPS * SORT_ROUNDS * 32)
#define SORT_THREADS (SORT_WARPS * 32)

// One row by a warp, PER experts per lane: lane l holds experts l, l + 32, ...
template <int PER>
static __device__ __forceinline__ void route_row(const float *logits, int row, int experts,
                                                 int top_k, int norm_topk, int32_t *ids,
                                                 float *weights)
{
    const int lane = (int)threadIdx.x % 32;
    logits += (size_t)row * (size_t)experts;
    ids += (size_t)row * (size_t)top_k;
    weights += (size_t)row * (size_t)top_k;
    uint32_t keys[PER], most = 0; // 0: no expert, or already chosen
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int e = i * 32 + lane;
        keys[i] = e < experts ? ordered(__ldcg(logits + e)) : 0;
        most = keys[i] > most ? keys[i] : most;
    }
    const float max = from_ordered(__reduce_max_sync(MSGL_FULL_MASK, most));
    float sum = 0, kept = 0;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        if (keys[i] != 0) sum += expf(from_ordered(keys[i]) - max);
    }
    sum = group_sum(sum, 32);
#pragma unroll 1
    for (int c = 0; c < top_k; c++) {
        most = 0;
#pragma unroll
        for (int i = 0; i < PER; i++) most = keys[i] > most ? keys[i] : most;
        const uint32_t key = __reduce_max_sync(MSGL_FULL_MASK, most);
        uint32_t first = 0xffffffffu; // lowest expert with this logit
#pragma unroll
        for (int i = PER - 1; i >= 0; i--) {
            if (keys[i] == key) first = (uint32_t)(i * 32 + lane);
        }
        const uint32_t e = __reduce_min_sync(MSGL_FULL_MASK, first);
#pragma unroll
        for (int i = 0; i < PER; i++) {
            if ((uint32_t)(i * 32 + lane) == e) keys[i] = 0;
        }
        const float w = expf(from_ordered(key) - max) / sum;
        kept += w;
        if (lane == 0) {
            ids[c] = (int32_t)e;
            weights[c] = w;
        }
    }
    __syncwarp();
    for (int c = lane; norm_topk && c < top_k; c += 32) weights[c] /= kept;
}

template <int PER>
static __global__ void __launch_bounds__(ROUTE_WARPS * 32)
    route_kernel(const float *logits, int rows, int experts, int top_k, int norm_topk, int32_t *ids,
                 float *weights)
{
    msgl__pdl_trigger();
    const int row = (int)blockIdx.x * ROUTE_WARPS + (int)threadIdx.x / 32;
    msgl__pdl_wait();
    if (row < rows) route_row<PER>(logits, row, experts, top_k, norm_topk, ids, weights);
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

// Sums of v over the threads before this one.
static __device__ __forceinline__ int scan_before(int v)
{
    __shared__ int warps[SORT_WARPS];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int sum = v;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(MSGL_FULL_MASK, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    int base = 0;
#pragma unroll 1
    for (int w = 0; w < warp; w++) base += warps[w];
    return base + sum - v;
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

// --- a step of few rows: norm, router, choice and sort in one kernel ----------------------------
//
// A block multiplies 16 rows by 8 experts, its warps the eighths of k by tensor cores. The last
// block of 16 rows chooses their experts, the last of all sorts.

enum {
    CHOOSE_ROWS = 16,
    CHOOSE_EXPERTS = 8, // of a block
    CHOOSE_WARPS = SORT_WARPS,
    CHOOSE_MAX_ROWS = 256,
    CHOOSE_MAX_EXPERTS = 512,
    CHOOSE_MAX_DIM = 4096,
};

typedef struct choose_args {
    const __nv_bfloat16 *in, *router;
    const float *norm;
    float eps;
    int rows, dim, experts, top_k, norm_topk;
    __nv_bfloat16 *normed;
    float *logits, *weights;
    int32_t *ids, *offsets, *source;
    int32_t *arrived; // zeros, and again behind the kernel: [0] of all, [1 + i] of 16 rows
} choose_args;

// Bytes from one row of weights or of in to the next one in shared memory: eight lanes that read 64
// bytes of two of them meet all banks.
static __host__ __device__ __forceinline__ int choose_pitch(int dim)
{
    return dim * 2 + 64;
}

static __host__ __device__ __forceinline__ int choose_shared(int dim, int experts)
{
    const int product = (CHOOSE_EXPERTS + CHOOSE_ROWS) * choose_pitch(dim) + dim * 4;
    const int sort = SORT_WARPS * experts * 4; // in their place
    return product > sort ? product : sort;
}

// Rows [first, first + rows) of a matrix to shared memory; those from `end` on are zeros.
static __device__ __forceinline__ void choose_load(const __nv_bfloat16 *from, int first, int rows,
                                                   int end, int dim, unsigned char *to)
{
    const int pieces = dim / 8;
#pragma unroll 1
    for (int r = 0; r < rows; r++) {
        const bool there = first + r < end;
        const __nv_bfloat16 *row = from + (there ? (size_t)(first + r) * (size_t)dim : 0);
        const uint32_t dst = msgl__shared_address(to + r * choose_pitch(dim));
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < pieces; i += SORT_THREADS) {
            msgl__copy_async_16(dst + (uint32_t)i * 16, row + i * 8, there);
        }
    }
    msgl__copy_async_commit();
}

// sums (of the products, then of squares) of this warp's part of k: rows lane / 4 and the eighth
// one behind. Loops are rolled, as a step runs this once and instructions come from memory.
static __device__ __forceinline__ void choose_multiply(int dim, const unsigned char *in,
                                                       const unsigned char *w, const float *norm,
                                                       float sums[4], float squares[2])
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int part = dim / CHOOSE_WARPS, pitch = choose_pitch(dim);
    in += lane / 4 * pitch;
    w += lane / 4 * pitch;
#pragma unroll 1
    for (int k = warp * part + lane % 4 * 8; k < (warp + 1) * part; k += 32) {
        float x[8], y[8], scale[8];
        load8(norm + k, scale);
        load8((const __nv_bfloat16 *)in + k, x);
        load8((const __nv_bfloat16 *)(in + 8 * pitch) + k, y);
        const uint4 packed = *(const uint4 *)(w + k * 2);
        const uint32_t v[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            squares[0] += x[i] * x[i];
            squares[1] += y[i] * y[i];
            x[i] *= scale[i];
            y[i] *= scale[i];
        }
        // Which k an element has does not matter, only that both operands agree.
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float *p = x + 4 * h, *q = y + 4 * h;
            const uint32_t m[4] = {msgl__pack_two(p[0], p[1], __nv_bfloat16()),
                                   msgl__pack_two(q[0], q[1], __nv_bfloat16()),
                                   msgl__pack_two(p[2], p[3], __nv_bfloat16()),
                                   msgl__pack_two(q[2], q[3], __nv_bfloat16())};
            msgl__mma(sums, m, v[2 * h], v[2 * h + 1], __nv_bfloat16());
        }
    }
}

// Whether this block is the last of `blocks` to come here; what the others wrote is visible.
static __device__ __forceinline__ bool choose_last(int32_t *arrived, int blocks)
{
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        last = msgl__count(arrived) == blocks - 1;
        if (last) *arrived = 0;
    }
    __syncthreads();
    return last;
}

template <int PER>
static __global__ void __launch_bounds__(SORT_THREADS) choose_kernel(const choose_args g)
{
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ float sums[CHOOSE_WARPS][CHOOSE_ROWS][CHOOSE_EXPERTS];
    __shared__ float squares[CHOOSE_WARPS][CHOOSE_ROWS], scale[CHOOSE_ROWS];
    const int t = (int)threadIdx.x, lane = t % 32, warp = t / 32;
    const int expert0 = (int)blockIdx.x * CHOOSE_EXPERTS, row0 = (int)blockIdx.y * CHOOSE_ROWS;
    const int pieces = g.dim / 8, pitch = choose_pitch(g.dim);
    unsigned char *in = shared + CHOOSE_EXPERTS * pitch;
    float *norm = (float *)(in + CHOOSE_ROWS * pitch);
    choose_load(g.router, expert0, CHOOSE_EXPERTS, g.experts, g.dim, shared);
#pragma unroll 1
    for (int i = t; i < g.dim / 4; i += SORT_THREADS) {
        msgl__copy_async_16(msgl__shared_address(norm + i * 4), g.norm + i * 4, true);
    }
    msgl__copy_async_commit();
    msgl__pdl_wait();
    msgl__pdl_trigger(); // the grouped product behind reads only what it waits for
    choose_load(g.in, row0, CHOOSE_ROWS, g.rows, g.dim, in);
    msgl__copy_async_wait<0>();
    __syncthreads();
    float c[4] = {0}, q[2] = {0};
    choose_multiply(g.dim, in, shared, norm, c, q);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sums[warp][lane / 4 + 8 * h][lane % 4 * 2] = c[2 * h];
        sums[warp][lane / 4 + 8 * h][lane % 4 * 2 + 1] = c[2 * h + 1];
        const float sum = group_sum(q[h], 4);
        if (lane % 4 == 0) squares[warp][lane / 4 + 8 * h] = sum;
    }
    __syncthreads();
    if (t < CHOOSE_ROWS) {
        float sum = 0;
#pragma unroll 1
        for (int w = 0; w < CHOOSE_WARPS; w++) sum += squares[w][t];
        scale[t] = rsqrtf(sum / (float)g.dim + g.eps);
    }
    __syncthreads();
    if (t < CHOOSE_ROWS * CHOOSE_EXPERTS) {
        const int r = t / CHOOSE_EXPERTS, e = t % CHOOSE_EXPERTS;
        float sum = 0;
        for (int w = 0; w < CHOOSE_WARPS; w++) sum += sums[w][r][e];
        if (row0 + r < g.rows && expert0 + e < g.experts) {
            g.logits[(size_t)(row0 + r) * g.experts + expert0 + e] = sum * scale[r];
        }
    }
    // The normed rows, each block of these rows a part.
    const int end = (g.rows - row0 < CHOOSE_ROWS ? g.rows - row0 : CHOOSE_ROWS) * pieces;
#pragma unroll 1
    for (int i = (int)blockIdx.x * SORT_THREADS + t; i < end; i += (int)gridDim.x * SORT_THREADS) {
        const int r = i / pieces, k = (i - r * pieces) * 8;
        float v[8], weight[8];
        load8((const __nv_bfloat16 *)(in + r * pitch) + k, v);
        load8(norm + k, weight);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = v[j] * scale[r] * weight[j];
        store8(g.normed + (size_t)(row0 + r) * g.dim + k, v);
    }
    if (!choose_last(g.arrived + 1 + blockIdx.y, (int)gridDim.x)) return;
#pragma unroll 1
    for (int r = row0 + warp; r < row0 + CHOOSE_ROWS && r < g.rows; r += CHOOSE_WARPS) {
        route_row<PER>(g.logits, r, g.experts, g.top_k, g.norm_topk, g.ids, g.weights);
    }
    __syncthreads();
    if (gridDim.y > 1 && !choose_last(g.arrived, (int)gridDim.y)) return;
    int32_t *at = (int32_t *)shared;
#pragma unroll 1
    for (int i = t; i < SORT_WARPS * g.experts; i += SORT_THREADS) at[i] = 0;
    __syncthreads();
    const int n = g.rows * g.top_k;
    sort_tile(g.ids, n, 0, 1, (n + SORT_THREADS - 1) / SORT_THREADS, g.experts,
              (g.experts + SORT_THREADS - 1) / SORT_THREADS, NULL, at, g.offsets, g.source);
}

// Copies rows in pieces of Unit; blockIdx.x: row of out.
template <typename Unit>
static __global__ void gather_kernel(const Unit *in, const int32_t *source, int top_k, int units,
                                     Unit *out)
{
    msgl__pdl_trigger();
    const size_t j = blockIdx.x;
    msgl__pdl_wait();
    const Unit *src = in + (size_t)(source[j] / top_k) * (size_t)units;
    Unit *dst = out + j * (size_t)units;
    for (int i = (int)threadIdx.x; i < units; i += (int)blockDim.x) dst[i] = src[i];
}

static __global__ void invert_kernel(const int32_t *source, int n, int32_t *place)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const int j = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (j < n) place[source[j]] = j;
}

// N: 8 elements per thread, or 1 for any dim; blockIdx.x: row, blockIdx.y: part of it. place NULL:
// rows lie in the order of the choices.
template <typename T, int N>
static __global__ void combine_kernel(const T *in, const int32_t *place, const float *weights,
                                      int top_k, int dim, bool accumulate, T *out)
{
    msgl__pdl_trigger();
    const int at = (int)(blockIdx.y * blockDim.x + threadIdx.x) * N;
    const size_t first = (size_t)blockIdx.x * (size_t)top_k;
    msgl__pdl_wait();
    if (at >= dim) return;
    float sum[N] = {0}, v[N];
#pragma unroll 4
    for (int c = 0; c < top_k; c++) {
        const size_t from = place != NULL ? (size_t)place[first + c] : first + (size_t)c;
        const T *src = in + from * (size_t)dim + at;
        const float w = weights[first + c];
        if constexpr (N == 8) {
            load8(src, v);
        } else {
            v[0] = to_f32(*src);
        }
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] += w * v[i];
    }
    T *dst = out + (size_t)blockIdx.x * (size_t)dim + at;
    if constexpr (N == 8) {
        if (accumulate) {
            load8(dst, v);
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] += v[i];
        }
        store8(dst, sum);
    } else {
        *dst = from_f32<T>(accumulate ? to_f32(*dst) + sum[0] : sum[0]);
    }
}

extern "C" void msgl__cuda_moe_route(msgl_exec *x, const float *logits, int rows, int experts,
                                     int top_k, int norm_topk, int32_t *ids, float *weights)
{
    if (rows <= 0) return;
    void (*const kernel)(const float *, int, int, int, int, int32_t *, float *) =
        experts <= 128   ? route_kernel<4>
        : experts <= 256 ? route_kernel<8>
        : experts <= 512 ? route_kernel<16>
                         : route_kernel<32>;
    MSGL_CUDA_TRY(x, msgl__launch(kernel, dim3((unsigned)(rows + ROUTE_WARPS - 1) / ROUTE_WARPS),
                                  dim3(ROUTE_WARPS * 32), 0, msgl__cuda_stream(x), logits, rows,
                                  experts, top_k, norm_topk, ids, weights));
}

// Sums in another order than norm, linear and route have: not for a deterministic device.
extern "C" bool msgl__cuda_moe_choose(msgl_exec *x, const msgl_choose_call *c)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    const msgl_weight *w = c->router;
    const int dim = w->k, experts = w->n;
    if (d->deterministic || c->rows <= 0 || c->rows > CHOOSE_MAX_ROWS || x->act != MSGL_BF16 ||
        w->dtype != MSGL_BF16 || dim % (CHOOSE_WARPS * 32) != 0 || dim > CHOOSE_MAX_DIM ||
        experts > CHOOSE_MAX_EXPERTS || c->rows * c->top_k > SORT_TILE || !aligned16(c->in) ||
        !aligned16(c->norm) || !aligned16(w->data)) {
        return false;
    }
    const choose_args g = {(const __nv_bfloat16 *)c->in,
                           (const __nv_bfloat16 *)w->data,
                           c->norm,
                           c->norm_eps,
                           c->rows,
                           dim,
                           experts,
                           c->top_k,
                           c->norm_topk,
                           (__nv_bfloat16 *)c->normed,
                           c->logits,
                           c->weights,
                           c->ids,
                           c->offsets,
                           c->source,
                           d->blas->flags};
    const dim3 grid((unsigned)(experts + CHOOSE_EXPERTS - 1) / CHOOSE_EXPERTS,
                    (unsigned)(c->rows + CHOOSE_ROWS - 1) / CHOOSE_ROWS);
    const size_t bytes = (size_t)choose_shared(dim, experts);
    if (experts <= 128) {
        MSGL_CUDA_TRY(x, msgl__allow_shared<choose_kernel<4>>(bytes, true));
        MSGL_CUDA_TRY(
            x, msgl__launch(choose_kernel<4>, grid, dim3(SORT_THREADS), bytes, d->stream, g));
    } else {
        MSGL_CUDA_TRY(x, msgl__allow_shared<choose_kernel<16>>(bytes, true));
        MSGL_CUDA_TRY(
            x, msgl__launch(choose_kernel<16>, grid, dim3(SORT_THREADS), bytes, d->stream, g));
    }
    return true;
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
    const dim3 grid((unsigned)(rows * top_k));
    if (rows <= 0) return;
    if (bytes % 16 == 0 && aligned16(in) && aligned16(out)) {
        const int units = (int)(bytes / 16);
        MSGL_CUDA_TRY(x,
                      msgl__launch(gather_kernel<uint4>, grid, dim3(units <= 128 ? 128 : 256), 0,
                                   stream, (const uint4 *)in, source, top_k, units, (uint4 *)out));
    } else {
        MSGL_CUDA_TRY(x, msgl__launch(gather_kernel<uint16_t>, grid, dim3(256), 0, stream,
                                      (const uint16_t *)in, source, top_k, (int)(bytes / 2),
                                      (uint16_t *)out));
    }
}

template <typename T>
static void combine(msgl_exec *x, const void *in, const int32_t *place, const float *weights,
                    int rows, int top_k, int dim, bool accumulate, void *out)
{
    const bool vector = dim % 8 == 0 && aligned16(in) && aligned16(out);
    const unsigned items = (unsigned)(vector ? dim / 8 : dim);
    MSGL_CUDA_TRY(x, msgl__launch(vector ? combine_kernel<T, 8> : combine_kernel<T, 1>,
                                  dim3((unsigned)rows, (items + 127) / 128), dim3(128), 0,
                                  msgl__cuda_stream(x), (const T *)in, place, weights, top_k, dim,
                                  accumulate, (T *)out));
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
