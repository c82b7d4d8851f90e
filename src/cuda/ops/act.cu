// SPDX-License-Identifier: Apache-2.0
//
// Family act: the gates of the feed-forward block and of attention, activations without one, and
// what is done to logits before anything looks at them.
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/gate.cuh"
#include "cuda/ops/ops.h"
#include "cuda/ops/vec8.cuh"
#include "cuda/owner.cuh"
#include "kernel/pointwise.h"

#define MAX_GRID_Y 65535

// N elements a thread.
template <int F, typename T, int N>
static __global__ void gate_kernel(const T *gate_up, T *out, int rows, int dim)
{
    msgl__pdl_trigger();
    const int at = (int)(blockIdx.x * blockDim.x + threadIdx.x) * N;
    msgl__pdl_wait();
    if (at >= dim) return;
    for (int r = (int)blockIdx.y; r < rows; r += (int)gridDim.y) {
        const T *gate = gate_up + (size_t)r * 2 * (size_t)dim + at;
        T *dst = out + (size_t)r * (size_t)dim + at;
        float g[N], u[N];
        load_n<N>(gate, g);
        load_n<N>(gate + dim, u);
#pragma unroll
        for (int j = 0; j < N; j++) g[j] = gated<F>(g[j], u[j]);
        store_n<N>(dst, g);
    }
}

template <typename T>
static void gate_typed(msgl_exec *x, msgl_activation f, const void *gate_up, void *out, int rows,
                       int dim)
{
    const bool vector = dim % 8 == 0 && aligned16(gate_up) && aligned16(out);
    const unsigned items = (unsigned)(vector ? dim / 8 : dim);
    const unsigned threads =
        items <= 64 || (size_t)items * (size_t)rows < (size_t)msgl__cuda_device(x)->sm_count * 256
            ? 64
            : 128;
    const dim3 grid((items + threads - 1) / threads, rows < MAX_GRID_Y ? rows : MAX_GRID_Y);
    const auto kernel =
        vector ? MSGL_OF_GATE(f, gate_kernel, T, 8) : MSGL_OF_GATE(f, gate_kernel, T, 1);
    MSGL_CUDA_TRY(x, msgl__launch(kernel, grid, dim3(threads), 0, msgl__cuda_stream(x),
                                  (const T *)gate_up, (T *)out, rows, dim));
}

extern "C" void msgl__cuda_gate(msgl_exec *x, msgl_activation f, const void *gate_up, void *out,
                                int rows, int dim)
{
    if (rows > 0) MSGL_BY_DTYPE(x->act, gate_typed, x, f, gate_up, out, rows, dim);
}

template <int F, typename T>
static __global__ void gate_by_kernel(const T *by, size_t ld_by, T *p, int rows, int dim)
{
    msgl__pdl_trigger();
    const int at = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    msgl__pdl_wait();
    if (at >= dim) return;
    for (int r = (int)blockIdx.y; r < rows; r += (int)gridDim.y) {
        T *v = p + (size_t)r * (size_t)dim + at;
        *v = from_f32<T>(gated<F>(to_f32(*v), to_f32(by[(size_t)r * ld_by + at])));
    }
}

template <typename T>
static void gate_by_typed(msgl_exec *x, msgl_activation f, const void *by, size_t ld_by, void *p,
                          int rows, int dim)
{
    enum { THREADS = 128 };
    const dim3 grid((dim + THREADS - 1) / THREADS, rows < MAX_GRID_Y ? rows : MAX_GRID_Y);
    const auto kernel = MSGL_OF_GATE(f, gate_by_kernel, T);
    MSGL_CUDA_TRY(x, msgl__launch(kernel, grid, dim3(THREADS), 0, msgl__cuda_stream(x),
                                  (const T *)by, ld_by, (T *)p, rows, dim));
}

extern "C" void msgl__cuda_gate_by(msgl_exec *x, msgl_activation f, const void *by, size_t ld_by,
                                   void *p, int rows, int dim)
{
    if (rows > 0) MSGL_BY_DTYPE(x->act, gate_by_typed, x, f, by, ld_by, p, rows, dim);
}

// erfcf and expm1f, not quicker forms: these feed-forward blocks are rare, and what they cost is
// the memory.
template <int F> static __device__ __forceinline__ float pointwise(float v, const msgl_xielu &xielu)
{
    if (F == MSGL_POINTWISE_SILU) return gated<MSGL_SILU>(v, 1);
    if (F == MSGL_POINTWISE_GELU) return gated<MSGL_GELU_ERF>(v, 1);
    if (F == MSGL_POINTWISE_GELU_TANH) return gated<MSGL_GELU_TANH>(v, 1);
    if (F == MSGL_POINTWISE_RELU2) return v < 0 ? 0 : v * v;
    if (F == MSGL_POINTWISE_TANH) return tanhf(v);
    const float bent = v > 0 ? xielu.positive * v * v
                             : xielu.negative * (expm1f(v < xielu.eps ? v : xielu.eps) - v);
    return bent + xielu.linear * v;
}

// N elements a thread.
template <typename T, int F, int N>
static __global__ void apply_kernel(const float *params, T *p, size_t n)
{
    msgl__pdl_trigger();
    msgl_xielu xielu = {};
    if (F == MSGL_POINTWISE_XIELU) xielu = msgl__xielu_of(params);
    msgl__pdl_wait();
    const size_t at = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (at >= n) return;
    float v[N];
    load_n<N>(p + at, v);
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = pointwise<F>(v[j], xielu);
    store_n<N>(p + at, v);
}

template <typename T, int N>
static void (*apply_kernel_of(msgl_pointwise f))(const float *, T *, size_t)
{
    switch (f) {
    case MSGL_POINTWISE_SILU: return apply_kernel<T, MSGL_POINTWISE_SILU, N>;
    case MSGL_POINTWISE_GELU: return apply_kernel<T, MSGL_POINTWISE_GELU, N>;
    case MSGL_POINTWISE_GELU_TANH: return apply_kernel<T, MSGL_POINTWISE_GELU_TANH, N>;
    case MSGL_POINTWISE_RELU2: return apply_kernel<T, MSGL_POINTWISE_RELU2, N>;
    case MSGL_POINTWISE_TANH: return apply_kernel<T, MSGL_POINTWISE_TANH, N>;
    case MSGL_POINTWISE_XIELU: break;
    }
    return apply_kernel<T, MSGL_POINTWISE_XIELU, N>;
}

template <typename T>
static void apply_typed(msgl_exec *x, msgl_pointwise f, const float *params, void *p, size_t n)
{
    const bool vector = n % 8 == 0 && aligned16(p);
    const size_t items = vector ? n / 8 : n;
    const unsigned threads = items < (size_t)msgl__cuda_device(x)->sm_count * 256 ? 64 : 256;
    MSGL_CUDA_TRY(x, msgl__launch(vector ? apply_kernel_of<T, 8>(f) : apply_kernel_of<T, 1>(f),
                                  dim3((unsigned)((items + threads - 1) / threads)), dim3(threads),
                                  0, msgl__cuda_stream(x), params, (T *)p, n));
}

extern "C" void msgl__cuda_apply(msgl_exec *x, msgl_pointwise f, const float *params, void *p,
                                 size_t n)
{
    if (n > 0) MSGL_BY_DTYPE(x->act, apply_typed, x, f, params, p, n);
}

// N elements a thread.
template <typename T, int N>
static __global__ void times_sigmoid_kernel(const T *gate, size_t ld_gate, T *p, int rows, int dim)
{
    msgl__pdl_trigger();
    const int at = (int)(blockIdx.x * blockDim.x + threadIdx.x) * N;
    msgl__pdl_wait();
    if (at >= dim) return;
    for (int r = (int)blockIdx.y; r < rows; r += (int)gridDim.y) {
        const T *by = gate + (size_t)r * ld_gate + at;
        T *v = p + (size_t)r * (size_t)dim + at;
        float g[N], x[N];
        load_n<N>(by, g);
        load_n<N>(v, x);
#pragma unroll
        for (int j = 0; j < N; j++) x[j] = sigmoid_of(x[j], g[j]);
        store_n<N>(v, x);
    }
}

template <typename T>
static void times_sigmoid_typed(msgl_exec *x, const void *gate, size_t ld_gate, void *p, int rows,
                                int dim)
{
    enum { THREADS = 128 };
    const bool vector = dim % 8 == 0 && ld_gate % 8 == 0 && aligned16(gate) && aligned16(p);
    const unsigned items = (unsigned)(vector ? dim / 8 : dim);
    const dim3 grid((items + THREADS - 1) / THREADS, rows < MAX_GRID_Y ? rows : MAX_GRID_Y);
    MSGL_CUDA_TRY(x, msgl__launch(vector ? times_sigmoid_kernel<T, 8> : times_sigmoid_kernel<T, 1>,
                                  grid, dim3(THREADS), 0, msgl__cuda_stream(x), (const T *)gate,
                                  ld_gate, (T *)p, rows, dim));
}

extern "C" void msgl__cuda_times_sigmoid(msgl_exec *x, const void *gate, size_t ld_gate, void *p,
                                         int rows, int dim)
{
    if (rows > 0) MSGL_BY_DTYPE(x->act, times_sigmoid_typed, x, gate, ld_gate, p, rows, dim);
}

template <typename T>
static __global__ void temper_kernel(msgl_temper how, const int32_t *positions, T *p, size_t ld,
                                     int dim)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const float steps = floorf(((float)positions[blockIdx.x] + how.first) / how.every);
    const float by = 1 + how.scale * log1pf(steps);
    T *row = p + (size_t)blockIdx.x * ld;
    for (int i = (int)threadIdx.x; i < dim; i += (int)blockDim.x) {
        row[i] = from_f32<T>(to_f32(row[i]) * by);
    }
}

template <typename T>
static void temper_typed(msgl_exec *x, const msgl_temper *how, const int32_t *positions, void *p,
                         size_t ld, int rows, int dim)
{
    MSGL_CUDA_TRY(x, msgl__launch(temper_kernel<T>, dim3((unsigned)rows), dim3(256), 0,
                                  msgl__cuda_stream(x), *how, positions, (T *)p, ld, dim));
}

extern "C" void msgl__cuda_temper(msgl_exec *x, const msgl_temper *how, const int32_t *positions,
                                  void *p, size_t ld, int rows, int dim)
{
    if (rows > 0) MSGL_BY_DTYPE(x->act, temper_typed, x, how, positions, p, ld, rows, dim);
}

// Rows of a grouped product, a block a row, in the order of the experts.
typedef struct experts_args {
    const int32_t *offsets, *to; // to: NULL, or where row j is in product and out
    const float *bias;           // [num_experts, n], or NULL
    int32_t num_experts, n;
    const void *product; // [rows, n], stride ld_product
    size_t ld_product;
    void *out; // [rows, n], or gated [rows, n / 2], stride ld_out; may be the product
    size_t ld_out;
} experts_args;

// F: the gate's function, or -1 for the bias alone.
template <int F, typename T> static __global__ void experts_kernel(const experts_args a)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const int row = (int)blockIdx.x;
    const int expert = msgl__owner_of(a.offsets, a.num_experts, row);
    const size_t at = (size_t)(a.to != NULL ? a.to[row] : row);
    const T *in = (const T *)a.product + at * a.ld_product;
    T *out = (T *)a.out + at * a.ld_out;
    const float *bias = a.bias != NULL ? a.bias + (size_t)expert * a.n : NULL;
    const int half = a.n / 2, columns = F < 0 ? a.n : half;
    for (int i = (int)threadIdx.x; i < columns; i += (int)blockDim.x) {
        float v = to_f32(in[i]) + (bias != NULL ? bias[i] : 0.f);
        if constexpr (F >= 0) {
            const float u = to_f32(in[half + i]) + (bias != NULL ? bias[half + i] : 0.f);
            v = gated<F>(v, u);
        }
        out[i] = from_f32<T>(v);
    }
}

template <typename T> static void finish_typed(msgl_exec *x, int f, const experts_args &a, int rows)
{
    const auto kernel = f < 0 ? experts_kernel<-1, T> : MSGL_OF_GATE(f, experts_kernel, T);
    MSGL_CUDA_TRY(
        x, msgl__launch(kernel, dim3((unsigned)rows), dim3(256), 0, msgl__cuda_stream(x), a));
}

extern "C" void msgl__cuda_finish_experts(msgl_exec *x, const msgl_grouped_call *c,
                                          const void *product, size_t ld_product)
{
    experts_args a = {};
    a.offsets = c->offsets;
    a.to = c->to;
    a.bias = c->bias;
    a.num_experts = c->num_experts;
    a.n = c->experts[0].n;
    a.product = product;
    a.ld_product = ld_product;
    a.out = c->out;
    a.ld_out = c->ld_out;
    MSGL_BY_DTYPE(x->act, finish_typed, x, c->gated ? (int)c->activation : -1, a, c->rows);
}

// tanhf, not a quicker form: logits are compared with the CPU's, and there are few of them.
static __global__ void cap_kernel(float *logits, size_t n, float scale, float cap)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= n) return;
    const float l = logits[at] * scale;
    logits[at] = cap > 0 ? cap * tanhf(l / cap) : l;
}

// A thread a column of a group; a column's rows in order.
template <typename T>
static __global__ void mean_kernel(const T *in, const int32_t *first, const int32_t *last, int dim,
                                   T *out)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const int column = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    const size_t group = blockIdx.y;
    if (column >= dim) return;
    const int from = first[group], to = last[group] + 1;
    float sum = 0;
    for (int r = from; r < to; r++) sum += to_f32(in[(size_t)r * (size_t)dim + column]);
    out[group * (size_t)dim + column] = from_f32<T>(sum / (float)(to - from));
}

template <typename T>
static void mean_typed(msgl_exec *x, const void *in, const int32_t *first, const int32_t *last,
                       int groups, int dim, void *out)
{
    enum { THREADS = 64 };
    for (int g = 0; g < groups; g += MAX_GRID_Y) {
        const int n = groups - g < MAX_GRID_Y ? groups - g : MAX_GRID_Y;
        const dim3 grid((unsigned)((dim + THREADS - 1) / THREADS), (unsigned)n);
        T *to = (T *)out + (size_t)g * (size_t)dim;
        MSGL_CUDA_TRY(x, msgl__launch(mean_kernel<T>, grid, dim3(THREADS), 0, msgl__cuda_stream(x),
                                      (const T *)in, first + g, last + g, dim, to));
    }
}

extern "C" void msgl__cuda_mean_rows(msgl_exec *x, const void *in, const int32_t *first,
                                     const int32_t *last, int groups, int dim, void *out)
{
    MSGL_BY_DTYPE(x->act, mean_typed, x, in, first, last, groups, dim, out);
}

// U: what a thread moves, of which shards have whole ones in each row.
template <typename U>
static __global__ void join_kernel(const U *shards, int shard_columns, int rows, int dim, U *out)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const int column = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (column >= dim) return;
    const int from = column / shard_columns * shard_columns,
              columns = min(shard_columns, dim - from);
    const U *shard = shards + (size_t)rows * (size_t)from + (column - from);
    for (int r = (int)blockIdx.y; r < rows; r += (int)gridDim.y) {
        out[(size_t)r * (size_t)dim + column] = shard[(size_t)r * columns];
    }
}

template <typename U>
static void join_units(msgl_exec *x, const void *shards, int shard_columns, int rows, int dim,
                       void *out)
{
    enum { THREADS = 256 };
    const dim3 grid((unsigned)(dim + THREADS - 1) / THREADS, rows < MAX_GRID_Y ? rows : MAX_GRID_Y);
    MSGL_CUDA_TRY(x, msgl__launch(join_kernel<U>, grid, dim3(THREADS), 0, msgl__cuda_stream(x),
                                  (const U *)shards, shard_columns, rows, dim, (U *)out));
}

extern "C" void msgl__cuda_join_columns(msgl_exec *x, msgl_dtype dtype, const void *shards,
                                        int shard_columns, int rows, int dim, void *out)
{
    const int elem = (int)msgl__dtype_size(dtype), unit = 16 / elem;
    if (rows == 0) return;
    if (shard_columns % unit == 0 && dim % unit == 0 && aligned16(shards) && aligned16(out)) {
        join_units<uint4>(x, shards, shard_columns / unit, rows, dim / unit, out);
    } else if (elem == 4) {
        join_units<uint32_t>(x, shards, shard_columns, rows, dim, out);
    } else {
        join_units<uint16_t>(x, shards, shard_columns, rows, dim, out);
    }
}

extern "C" void msgl__cuda_cap(msgl_exec *x, float *logits, size_t n, float scale, float cap)
{
    const unsigned threads = 256;
    if (n == 0) return;
    MSGL_CUDA_TRY(x, msgl__launch(cap_kernel, dim3((unsigned)((n + threads - 1) / threads)),
                                  dim3(threads), 0, msgl__cuda_stream(x), logits, n, scale, cap));
}
