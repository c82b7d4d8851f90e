// SPDX-License-Identifier: Apache-2.0
//
// Family hyper (kernel/hyper.h). `open` and `head` are two kernels: the product of a row's streams
// with a few rows of weights, in pieces of `span` elements, whose sums wait in the memory of the
// row's result, which has room for them; then what is made of these sums, and the mixture. Where a
// row has no such room, of small models, one block does it all. How a row is cut is decided by its
// length alone, so that its bits do not depend on the other rows.
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/ops.h"
#include "cuda/ops/rms.cuh"
#include "cuda/ops/vec8.cuh"
#include "kernel/hyper.h"

enum {
    TILE = 512, // elements of a row that a block has in shared memory at a time
    WARPS = 4,
    OUTPUTS = 6, // numbers that a warp makes at a time
    MANY = 8,    // rows of a block where there are more than FEW
    FEW = 4,
    OPEN_THREADS = 256,
    CLOSE_THREADS = 256,
    MAX = MSGL_MAX_HYPER_STREAMS,
    MAX_OUTPUTS = 2 * MAX + MAX * MAX,
};

struct hyper_args {
    msgl_hyper h;
    const void *in; // [rows, streams * dim]
    float *mix;     // NULL: of the head
    void *out, *result;
    int32_t rows, width, outputs; // width: streams * dim
    int32_t span, pieces;         // pieces 0: a row has no room for their sums
};

// Where the sums of piece `piece` of a row are: `outputs` of the products, then that of squares.
static __device__ __forceinline__ float *piece_sums(const hyper_args &a, size_t row_bytes, int row,
                                                    int piece)
{
    return (float *)((char *)a.result + (size_t)row * row_bytes) + piece * (a.outputs + 1);
}

// Elements [k0, k0 + TILE) of rows [row0, row0 + ROWS) as f32; zeros behind `end` and the rows.
template <typename T, int ROWS, bool VECTOR>
static __device__ __forceinline__ void load_tile(const hyper_args &a, int row0, int k0, int end,
                                                 float (*tile)[TILE])
{
    const int N = VECTOR ? 8 : 1;
    for (int i = (int)threadIdx.x * N; i < ROWS * TILE; i += WARPS * 32 * N) {
        const int r = i / TILE, k = i % TILE;
        const bool there = row0 + r < a.rows && k0 + k < end;
        const T *from = (const T *)a.in + (size_t)(row0 + (there ? r : 0)) * (size_t)a.width +
                        (there ? k0 + k : 0);
        float v[N] = {0};
        if (there) load_n<N>(from, v);
        store_n<N>(&tile[r][k], v);
    }
}

// Four weights of output `o` from element k on; zeros behind `end`.
template <bool VECTOR>
static __device__ __forceinline__ float4 load_weights(const hyper_args &a, int o, int k, int end)
{
    const float *from = a.h.fn + (size_t)o * (size_t)a.width + k;
    if (VECTOR) return k < end ? *(const float4 *)from : make_float4(0, 0, 0, 0);
    return make_float4(k < end ? from[0] : 0.f, k + 1 < end ? from[1] : 0.f,
                       k + 2 < end ? from[2] : 0.f, k + 3 < end ? from[3] : 0.f);
}

// acc[r][i] += this lane's part of a tile's products of its rows and outputs [o, o + OUTPUTS).
template <int ROWS, bool VECTOR>
static __device__ __forceinline__ void multiply_tile(const hyper_args &a, const float (*tile)[TILE],
                                                     int o, int k0, int end,
                                                     float (&acc)[ROWS][OUTPUTS])
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll 1
    for (int k = lane * 4; k < TILE && k0 + k < end; k += 128) {
        float4 w[OUTPUTS];
#pragma unroll
        for (int i = 0; i < OUTPUTS; i++) {
            w[i] = load_weights<VECTOR>(a, min(o + i, a.outputs - 1), k0 + k, end);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float4 x = *(const float4 *)&tile[r][k];
#pragma unroll
            for (int i = 0; i < OUTPUTS; i++) {
                acc[r][i] = fmaf(x.x, w[i].x, acc[r][i]);
                acc[r][i] = fmaf(x.y, w[i].y, acc[r][i]);
                acc[r][i] = fmaf(x.z, w[i].z, acc[r][i]);
                acc[r][i] = fmaf(x.w, w[i].w, acc[r][i]);
            }
        }
    }
}

// Block (ROWS rows, a piece). A warp has OUTPUTS outputs of all its rows, so that a weight is read
// once for ROWS rows: with 24 outputs of 16,384 elements the weights are 1.5 MB, which of few rows
// come from memory and of many from the L2, and limit this either way.
template <typename T, int ROWS, bool VECTOR>
static __global__ void __launch_bounds__(WARPS * 32)
    products_kernel(const __grid_constant__ hyper_args a)
{
    const int OWN = (ROWS + WARPS - 1) / WARPS; // rows whose squares a warp adds up
    __shared__ __align__(16) float tile[ROWS][TILE];
    const size_t row_bytes = (size_t)a.h.dim * sizeof(T);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int row0 = (int)blockIdx.x * ROWS, begin = (int)blockIdx.y * a.span;
    const int end = min(begin + a.span, a.width);
    msgl__pdl_trigger();
    msgl__pdl_wait();
    for (int o0 = 0; o0 < a.outputs; o0 += WARPS * OUTPUTS) {
        const int o = o0 + warp * OUTPUTS;
        float acc[ROWS][OUTPUTS] = {}, squares[OWN] = {};
        for (int k0 = begin; k0 < end; k0 += TILE) {
            __syncthreads(); // the tile is free
            load_tile<T, ROWS, VECTOR>(a, row0, k0, end, tile);
            __syncthreads();
            if (o < a.outputs) multiply_tile<ROWS, VECTOR>(a, tile, o, k0, end, acc);
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                const int r = i * WARPS + warp;
                for (int k = lane; r < ROWS && o0 == 0 && k < TILE; k += 32) {
                    squares[i] = fmaf(tile[r][k], tile[r][k], squares[i]);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float *to = piece_sums(a, row_bytes, row0 + r, (int)blockIdx.y);
#pragma unroll
            for (int i = 0; i < OUTPUTS; i++) {
                const float sum = group_sum(acc[r][i], 32);
                if (lane == 0 && row0 + r < a.rows && o + i < a.outputs) to[o + i] = sum;
            }
        }
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int r = i * WARPS + warp;
            const float sum = group_sum(squares[i], 32);
            if (lane != 0 || r >= ROWS || row0 + r >= a.rows || o0 > 0) continue;
            piece_sums(a, row_bytes, row0 + r, (int)blockIdx.y)[a.outputs] = sum;
        }
    }
}

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

// A row or a column of comb divided by its sum, `by` from element to element.
static __device__ __forceinline__ void normalise(float *p, int n, int by, float eps)
{
    float sum = eps;
    for (int j = 0; j < n; j++) sum += p[j * by];
    for (int j = 0; j < n; j++) p[j * by] /= sum;
}

enum { PITCH = MAX + 1 }; // of comb in shared memory: no two of a column are in one bank

// By a warp, of which lane i has row i and column i.
static __device__ __forceinline__ void make_comb(const msgl_hyper &h, float *comb)
{
    const int lane = (int)threadIdx.x % 32, n = h.streams;
    float *const row = comb + lane * PITCH, *const column = comb + lane;
    if (lane < n) {
        float most = row[0], sum = 0;
        for (int j = 1; j < n; j++) most = row[j] > most ? row[j] : most;
        for (int j = 0; j < n; j++) sum += row[j] = expf(row[j] - most);
        for (int j = 0; j < n; j++) row[j] = row[j] / sum + h.eps;
    }
    __syncwarp();
    if (lane < n) normalise(column, n, PITCH, h.eps);
    __syncwarp();
    for (int i = 1; i < h.iterations; i++) {
        if (lane < n) normalise(row, n, 1, h.eps);
        __syncwarp();
        if (lane < n) normalise(column, n, PITCH, h.eps);
        __syncwarp();
    }
}

// out = pre times the streams, and zeros to the result, by threads [first, OPEN_THREADS).
template <typename T, bool VECTOR>
static __device__ __forceinline__ void collapse(const hyper_args &a, const float *pre, size_t row,
                                                int first)
{
    const int N = VECTOR ? 8 : 1, dim = a.h.dim, threads = OPEN_THREADS - first;
    const T *in = (const T *)a.in + row * (size_t)a.width;
    T *out = (T *)a.out + row * (size_t)dim, *result = (T *)a.result + row * (size_t)dim;
    for (int i = ((int)threadIdx.x - first) * N; i < dim; i += threads * N) {
        float sum[N] = {0}, v[N];
        for (int s = 0; s < a.h.streams; s++) {
            load_n<N>(in + (size_t)s * (size_t)dim + i, v);
#pragma unroll
            for (int j = 0; j < N; j++) sum[j] += pre[s] * v[j];
        }
        const float zero[N] = {0};
        store_n<N>(out + i, sum);
        if (a.mix != NULL) store_n<N>(result + i, zero);
    }
}

// What is left of a row when sums [outputs + 1], shared memory, are there. Sinkhorn's iterations
// are a chain of a warp, beside which the others make the mixture.
template <typename T, bool VECTOR>
static __device__ __forceinline__ void finish_row(const hyper_args &a, const float *sums,
                                                  size_t row)
{
    __shared__ float pre[MAX], comb[MAX * PITCH];
    const msgl_hyper &h = a.h;
    const int n = h.streams, t = (int)threadIdx.x;
    const float factor = 1.0f / sqrtf(sums[a.outputs] / (float)a.width + h.norm_eps);
    if (t < n) pre[t] = sigmoid(factor * sums[t] * h.scale[0] + h.base[t]) + h.eps;
    if (a.mix == NULL) {
        __syncthreads();
        collapse<T, VECTOR>(a, pre, row, 0);
        return;
    }
    float *mix = a.mix + row * (size_t)(n + n * n);
    for (int i = t; i < n + n * n; i += OPEN_THREADS) {
        const float v = factor * sums[n + i] * h.scale[i < n ? 1 : 2] + h.base[n + i];
        if (i < n) {
            mix[i] = 2 * sigmoid(v);
        } else {
            comb[(i - n) / n * PITCH + (i - n) % n] = v;
        }
    }
    __syncthreads();
    if (t >= 32) {
        collapse<T, VECTOR>(a, pre, row, 32);
        return;
    }
    make_comb(h, comb);
    for (int i = t; i < n * n; i += 32) mix[n + i] = comb[i / n * PITCH + i % n];
}

// A block a row, whose streams it reads once more.
template <typename T, bool VECTOR>
static __global__ void __launch_bounds__(OPEN_THREADS)
    open_kernel(const __grid_constant__ hyper_args a)
{
    __shared__ float sums[MAX_OUTPUTS + 1];
    msgl__pdl_trigger();
    msgl__pdl_wait();
    for (int o = (int)threadIdx.x; o <= a.outputs; o += OPEN_THREADS) {
        const float *from = piece_sums(a, (size_t)a.h.dim * sizeof(T), (int)blockIdx.x, 0) + o;
        float sum = 0;
#pragma unroll 8
        for (int p = 0; p < a.pieces; p++) sum += from[p * (a.outputs + 1)];
        sums[o] = sum;
    }
    __syncthreads(); // behind which the result may be written
    finish_row<T, VECTOR>(a, sums, blockIdx.x);
}

// The same without the other kernel: a warp makes every eighth number. Its rows are short.
template <typename T>
static __global__ void __launch_bounds__(OPEN_THREADS)
    alone_kernel(const __grid_constant__ hyper_args a)
{
    __shared__ float sums[MAX_OUTPUTS + 1];
    const int lane = (int)threadIdx.x % 32;
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const T *in = (const T *)a.in + (size_t)blockIdx.x * (size_t)a.width;
    for (int o = (int)threadIdx.x / 32; o <= a.outputs; o += OPEN_THREADS / 32) {
        const float *w = a.h.fn + (size_t)o * (size_t)a.width; // o == outputs: not read
        float sum = 0;
        for (int k = lane; k < a.width; k += 32) {
            const float x = to_f32(in[k]);
            sum = fmaf(x, o < a.outputs ? w[k] : x, sum);
        }
        sum = group_sum(sum, 32);
        if (lane == 0) sums[o] = sum;
    }
    __syncthreads();
    finish_row<T, false>(a, sums, blockIdx.x);
}

template <typename T, int ROWS, bool VECTOR>
static void launch_products(msgl_exec *x, const hyper_args &a)
{
    const dim3 grid((unsigned)((a.rows + ROWS - 1) / ROWS), (unsigned)a.pieces);
    MSGL_CUDA_TRY(x, msgl__launch(products_kernel<T, ROWS, VECTOR>, grid, dim3(WARPS * 32), 0,
                                  msgl__cuda_stream(x), a));
}

template <typename T, bool VECTOR> static void launch_both(msgl_exec *x, const hyper_args &a)
{
    if (a.rows <= FEW) {
        launch_products<T, 1, VECTOR>(x, a);
    } else {
        launch_products<T, MANY, VECTOR>(x, a);
    }
    MSGL_CUDA_TRY(x, msgl__launch(open_kernel<T, VECTOR>, dim3((unsigned)a.rows),
                                  dim3(OPEN_THREADS), 0, msgl__cuda_stream(x), a));
}

// Cuts rows so that a row's result has room for the sums of its pieces: with 4 streams of 4,096
// 16-bit elements 32 pieces of 25 floats, 3,200 of 8,192 bytes.
template <typename T> static void cut(hyper_args *a)
{
    const size_t row_bytes = (size_t)a->h.dim * sizeof(T);
    const int tiles = (a->width + TILE - 1) / TILE;
    const int room = (int)(row_bytes / sizeof(float)) / (a->outputs + 1);
    if (room == 0 || row_bytes % sizeof(float) != 0) return;
    a->span = (tiles + room - 1) / room * TILE;
    a->pieces = (a->width + a->span - 1) / a->span;
}

template <typename T> static void run(msgl_exec *x, hyper_args *a)
{
    const bool vector = a->h.dim % 8 == 0 && aligned16(a->in) && aligned16(a->h.fn) &&
                        aligned16(a->out) && aligned16(a->result);
    cut<T>(a);
    if (a->pieces == 0) {
        MSGL_CUDA_TRY(x, msgl__launch(alone_kernel<T>, dim3((unsigned)a->rows), dim3(OPEN_THREADS),
                                      0, msgl__cuda_stream(x), *a));
    } else if (vector) {
        launch_both<T, true>(x, *a);
    } else {
        launch_both<T, false>(x, *a);
    }
}

static hyper_args args_of(const msgl_hyper *h, const void *in, int32_t rows)
{
    hyper_args a = {};
    a.h = *h;
    a.in = in;
    a.rows = rows;
    a.width = h->streams * h->dim;
    a.outputs = h->streams;
    return a;
}

extern "C" void msgl__cuda_hyper_open(msgl_exec *x, const msgl_hyper *h, const void *in,
                                      int32_t rows, float *mix, void *out, void *result)
{
    hyper_args a = args_of(h, in, rows);
    a.mix = mix;
    a.out = out;
    a.result = result;
    a.outputs += msgl__hyper_mix(h->streams);
    if (rows > 0) MSGL_BY_DTYPE(x->act, run, x, &a);
}

// The sums wait where the mixture will be.
extern "C" void msgl__cuda_hyper_head(msgl_exec *x, const msgl_hyper *h, const void *in,
                                      int32_t rows, void *out)
{
    hyper_args a = args_of(h, in, rows);
    a.out = a.result = out;
    if (rows > 0) MSGL_BY_DTYPE(x->act, run, x, &a);
}

// Block (a row, a part of its columns). A thread has N columns of all streams, at most MOST, in
// registers: they are read once and written once, which is all that this takes.
template <typename T, int N, int MOST>
static __global__ void __launch_bounds__(CLOSE_THREADS)
    close_kernel(const float *mix, const T *block, T *streams, int n, int dim)
{
    __shared__ float weights[MOST + MOST * MOST];
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const size_t row = blockIdx.x;
    for (int i = (int)threadIdx.x; i < n + n * n; i += CLOSE_THREADS) {
        weights[i] = mix[row * (size_t)(n + n * n) + i];
    }
    __syncthreads();
    const int at = (int)(blockIdx.y * CLOSE_THREADS + threadIdx.x) * N;
    if (at >= dim) return;
    const T *result = block + row * (size_t)dim + at;
    streams += row * (size_t)n * (size_t)dim + at;
    float y[N], old[MOST][N];
    load_n<N>(result, y);
#pragma unroll
    for (int s = 0; s < MOST; s++) {
        if (s >= n) break;
        load_n<N>(streams + (size_t)s * (size_t)dim, old[s]);
    }
#pragma unroll
    for (int s = 0; s < MOST; s++) {
        if (s >= n) break;
        float sum[N];
#pragma unroll
        for (int j = 0; j < N; j++) sum[j] = weights[s] * y[j];
#pragma unroll
        for (int from = 0; from < MOST; from++) {
            if (from >= n) break;
            const float by = weights[n + from * n + s];
#pragma unroll
            for (int j = 0; j < N; j++) sum[j] += by * old[from][j];
        }
        store_n<N>(streams + (size_t)s * (size_t)dim, sum);
    }
}

template <typename T>
static void close_rows(msgl_exec *x, const msgl_hyper *h, const float *mix, const void *block,
                       int32_t rows, void *streams)
{
    const bool vector =
        h->streams <= 4 && h->dim % 8 == 0 && aligned16(block) && aligned16(streams);
    const int items = vector ? h->dim / 8 : h->dim;
    const dim3 grid((unsigned)rows, (unsigned)((items + CLOSE_THREADS - 1) / CLOSE_THREADS));
    MSGL_CUDA_TRY(x, msgl__launch(vector ? close_kernel<T, 8, 4> : close_kernel<T, 1, MAX>, grid,
                                  dim3(CLOSE_THREADS), 0, msgl__cuda_stream(x), mix,
                                  (const T *)block, (T *)streams, h->streams, h->dim));
}

extern "C" void msgl__cuda_hyper_close(msgl_exec *x, const msgl_hyper *h, const float *mix,
                                       const void *block, int32_t rows, void *streams)
{
    if (rows > 0) MSGL_BY_DTYPE(x->act, close_rows, x, h, mix, block, rows, streams);
}
