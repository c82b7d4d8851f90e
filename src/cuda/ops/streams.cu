// SPDX-License-Identifier: Apache-2.0
//
// Family streams (kernel/streams.h). All of it is bound by memory: every element is read once and
// written once, 16 bytes at a time where rows are made of such, and the n streams of a row by one
// thread, which reads what they share once. A result is made of its own row's elements alone.
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/gate.cuh"
#include "cuda/ops/ops.h"
#include "cuda/ops/vec8.cuh"

enum {
    THREADS = 128,
    AT_ONCE = 4, // streams that a thread has on their way at a time
    MAX_GRID_Y = 65535,
};

// Block (columns, row), and the rows gridDim.y behind that; `items` of a row, a thread each.
static dim3 grid_of(int items, int rows)
{
    return dim3((unsigned)((items + THREADS - 1) / THREADS),
                (unsigned)(rows < MAX_GRID_Y ? rows : MAX_GRID_Y));
}

// U: what a thread moves, of which a row has whole ones.
template <typename U>
static __global__ void __launch_bounds__(THREADS)
    spread_kernel(const U *in, int rows, int n, int units, U *out)
{
    msgl__pdl_trigger();
    const int at = (int)(blockIdx.x * THREADS + threadIdx.x);
    msgl__pdl_wait();
    if (at >= units) return;
    for (int r = (int)blockIdx.y; r < rows; r += (int)gridDim.y) {
        const U v = in[(size_t)r * units + at];
        U *to = out + (size_t)r * n * units + at;
        for (int s = 0; s < n; s++) to[(size_t)s * units] = v;
    }
}

template <typename U>
static void spread_units(msgl_exec *x, const void *in, int rows, int n, int units, void *out)
{
    MSGL_CUDA_TRY(x, msgl__launch(spread_kernel<U>, grid_of(units, rows), dim3(THREADS), 0,
                                  msgl__cuda_stream(x), (const U *)in, rows, n, units, (U *)out));
}

extern "C" void msgl__cuda_streams_spread(msgl_exec *x, const void *in, int rows, int n, int dim,
                                          void *out)
{
    const int elem = (int)msgl__dtype_size(x->act), unit = 16 / elem;
    if (rows <= 0) return;
    if (dim % unit == 0 && aligned16(in) && aligned16(out)) {
        spread_units<uint4>(x, in, rows, n, dim / unit, out);
    } else if (elem == 4) {
        spread_units<uint32_t>(x, in, rows, n, dim, out);
    } else {
        spread_units<uint16_t>(x, in, rows, n, dim, out);
    }
}

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    squash_kernel(T *p, size_t ld, int rows, float by, int dim)
{
    msgl__pdl_trigger();
    const int at = (int)(blockIdx.x * THREADS + threadIdx.x) * N;
    msgl__pdl_wait();
    if (at >= dim) return;
    for (int r = (int)blockIdx.y; r < rows; r += (int)gridDim.y) {
        float v[N];
        load_n<N>(p + (size_t)r * ld + at, v);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = gated<MSGL_SILU>(v[j] * by, 1);
        store_n<N>(p + (size_t)r * ld + at, v);
    }
}

template <typename T> static void squash(msgl_exec *x, void *p, size_t ld, int rows, int n, int dim)
{
    const bool vector = dim % 8 == 0 && ld % 8 == 0 && aligned16(p);
    MSGL_CUDA_TRY(x, msgl__launch(vector ? squash_kernel<T, 8> : squash_kernel<T, 1>,
                                  grid_of(vector ? dim / 8 : dim, rows), dim3(THREADS), 0,
                                  msgl__cuda_stream(x), (T *)p, ld, rows, 1.0f / (float)n, dim));
}

extern "C" void msgl__cuda_streams_squash(msgl_exec *x, void *p, size_t ld, int rows, int n,
                                          int dim)
{
    if (rows > 0) MSGL_BY_DTYPE(x->act, squash, x, p, ld, rows, n, dim);
}

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    mix_kernel(const T *gates, const T *in, int rows, int n, int dim, T *out)
{
    msgl__pdl_trigger();
    const int at = (int)(blockIdx.x * THREADS + threadIdx.x) * N;
    msgl__pdl_wait();
    if (at >= dim) return;
    const float by = 1.0f / (float)n;
    for (int r = (int)blockIdx.y; r < rows; r += (int)gridDim.y) {
        const size_t row = (size_t)r * (size_t)n * (size_t)dim + at;
        float sum[N] = {};
#pragma unroll 4
        for (int s = 0; s < n; s++) {
            float g[N], v[N];
            load_n<N>(gates + row + (size_t)s * (size_t)dim, g);
            load_n<N>(in + row + (size_t)s * (size_t)dim, v);
#pragma unroll
            for (int j = 0; j < N; j++) sum[j] += sigmoid_of(v[j], g[j]);
        }
#pragma unroll
        for (int j = 0; j < N; j++) sum[j] *= by;
        store_n<N>(out + (size_t)r * (size_t)dim + at, sum);
    }
}

template <typename T>
static void mix(msgl_exec *x, const void *gates, const void *in, int rows, int n, int dim,
                void *out)
{
    const bool vector = dim % 8 == 0 && aligned16(gates) && aligned16(in) && aligned16(out);
    MSGL_CUDA_TRY(x, msgl__launch(vector ? mix_kernel<T, 8> : mix_kernel<T, 1>,
                                  grid_of(vector ? dim / 8 : dim, rows), dim3(THREADS), 0,
                                  msgl__cuda_stream(x), (const T *)gates, (const T *)in, rows, n,
                                  dim, (T *)out));
}

extern "C" void msgl__cuda_streams_mix(msgl_exec *x, const void *gates, const void *in, int rows,
                                       int n, int dim, void *out)
{
    if (rows > 0) MSGL_BY_DTYPE(x->act, mix, x, gates, in, rows, n, dim, out);
}

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    inject_kernel(const T *weights, size_t ld, const T *block, int rows, int n, int dim, T *streams)
{
    msgl__pdl_trigger();
    const int at = (int)(blockIdx.x * THREADS + threadIdx.x) * N;
    msgl__pdl_wait();
    if (at >= dim) return;
    for (int r = (int)blockIdx.y; r < rows; r += (int)gridDim.y) {
        float add[N], by[AT_ONCE], v[AT_ONCE][N];
        load_n<N>(block + (size_t)r * (size_t)dim + at, add);
        for (int s0 = 0; s0 < n; s0 += AT_ONCE) {
            T *to = streams + ((size_t)r * (size_t)n + (size_t)s0) * (size_t)dim + at;
#pragma unroll
            for (int s = 0; s < AT_ONCE; s++) {
                if (s0 + s >= n) break;
                load_n<N>(to + (size_t)s * (size_t)dim, v[s]);
                by[s] = sigmoid_of(2, to_f32(weights[(size_t)r * ld + s0 + s]) / (float)n);
            }
#pragma unroll
            for (int s = 0; s < AT_ONCE; s++) {
                if (s0 + s >= n) break;
#pragma unroll
                for (int j = 0; j < N; j++) v[s][j] += by[s] * add[j];
                store_n<N>(to + (size_t)s * (size_t)dim, v[s]);
            }
        }
    }
}

template <typename T>
static void inject(msgl_exec *x, const void *weights, size_t ld, const void *block, int rows, int n,
                   int dim, void *streams)
{
    const bool vector = dim % 8 == 0 && aligned16(block) && aligned16(streams);
    MSGL_CUDA_TRY(x, msgl__launch(vector ? inject_kernel<T, 8> : inject_kernel<T, 1>,
                                  grid_of(vector ? dim / 8 : dim, rows), dim3(THREADS), 0,
                                  msgl__cuda_stream(x), (const T *)weights, ld, (const T *)block,
                                  rows, n, dim, (T *)streams));
}

extern "C" void msgl__cuda_streams_inject(msgl_exec *x, const void *weights, size_t ld,
                                          const void *block, int rows, int n, int dim,
                                          void *streams)
{
    if (rows > 0) MSGL_BY_DTYPE(x->act, inject, x, weights, ld, block, rows, n, dim, streams);
}

template <typename U>
static __global__ void __launch_bounds__(THREADS) clear_kernel(U *p, size_t units)
{
    msgl__pdl_trigger();
    const size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    msgl__pdl_wait();
    if (at < units) p[at] = U();
}

template <typename U> static void clear_units(msgl_exec *x, void *p, size_t units)
{
    MSGL_CUDA_TRY(x,
                  msgl__launch(clear_kernel<U>, dim3((unsigned)((units + THREADS - 1) / THREADS)),
                               dim3(THREADS), 0, msgl__cuda_stream(x), (U *)p, units));
}

extern "C" void msgl__cuda_streams_clear(msgl_exec *x, void *p, int rows, int dim)
{
    const size_t bytes = (size_t)rows * (size_t)dim * msgl__dtype_size(x->act);
    if (rows <= 0) return;
    if (bytes % sizeof(uint4) == 0 && aligned16(p)) {
        clear_units<uint4>(x, p, bytes / sizeof(uint4));
    } else {
        clear_units<uint16_t>(x, p, bytes / sizeof(uint16_t));
    }
}
