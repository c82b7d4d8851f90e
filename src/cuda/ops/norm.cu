// SPDX-License-Identifier: Apache-2.0
//
// Family norm: RMS normalisation and LayerNorm, a row held in registers between its two uses;
// addition, scaling.
//
// How many threads share a row depends on dim alone, never on the number of rows: a row's bits are
// the same in a decode step and in a long prompt.
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/ops.h"
#include "cuda/ops/rms.cuh"
#include "cuda/ops/vec8.cuh"

#define NORM_WARPS 4 // rows per block where a warp has a whole row and they are many

// VECS groups of eight per thread; a warp per row, or a block. EARLY: the weights are read before
// the wait, which is worth its registers where the row's latency counts.
template <typename T, int VECS, bool WARP_ROW, bool EARLY>
static __global__ void __launch_bounds__(WARP_ROW ? NORM_WARPS * 32 : 1024)
    norm_kernel(const T *in, size_t ld_in, const float *weight, float eps, T *out, size_t ld_out,
                int rows, int dim)
{
    msgl__pdl_trigger();
    const int lane = WARP_ROW ? (int)threadIdx.x % 32 : (int)threadIdx.x;
    const int threads = WARP_ROW ? 32 : (int)blockDim.x;
    const int row = WARP_ROW ? (int)(blockIdx.x * blockDim.x + threadIdx.x) / 32 : (int)blockIdx.x;
    float v[VECS][8], w[VECS][8], sum = 0;
#pragma unroll
    for (int i = 0; EARLY && i < VECS; i++) {
        const int at = (i * threads + lane) * 8;
        if (at < dim) load8(weight + at, w[i]);
    }
    msgl__pdl_wait();
    if (WARP_ROW && row >= rows) return;
    in += (size_t)row * ld_in;
    out += (size_t)row * ld_out;
#pragma unroll
    for (int i = 0; i < VECS; i++) {
        const int at = (i * threads + lane) * 8;
        if (at < dim) load8(in + at, v[i]);
    }
#pragma unroll
    for (int i = 0; i < VECS; i++) {
        if ((i * threads + lane) * 8 >= dim) break;
#pragma unroll
        for (int j = 0; j < 8; j++) sum += v[i][j] * v[i][j];
    }
    sum = group_sum(sum, 32);
    if (!WARP_ROW) {
        __shared__ float part[32];
        if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
        __syncthreads();
        const int l = (int)threadIdx.x % 32;
        sum = group_sum(l < threads / 32 ? part[l] : 0, 32);
    }
    const float inv = 1.0f / sqrtf(sum / (float)dim + eps);
#pragma unroll
    for (int i = 0; i < VECS; i++) {
        const int at = (i * threads + lane) * 8;
        if (at >= dim) break;
        if (!EARLY) load8(weight + at, w[i]);
#pragma unroll
        for (int j = 0; j < 8; j++) v[i][j] *= inv * w[i][j];
        store8(out + at, v[i]);
    }
}

// Any dim, stride and alignment; reads the row twice.
template <typename T>
static __global__ void norm_any_kernel(const T *in, size_t ld_in, const float *weight, float eps,
                                       T *out, size_t ld_out, int dim)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    in += (size_t)blockIdx.x * ld_in;
    out += (size_t)blockIdx.x * ld_out;
    const float inv = 1.0f / root_mean_square(in, eps, dim);
    for (int i = (int)threadIdx.x; i < dim; i += (int)blockDim.x) {
        out[i] = from_f32<T>(to_f32(in[i]) * (inv * weight[i]));
    }
}

template <typename T>
static void norm(msgl_exec *x, const void *in, size_t ld_in, const float *weight, float eps,
                 void *out, size_t ld_out, int rows, int dim)
{
    const T *src = (const T *)in;
    T *dst = (T *)out;
    const size_t ld_mask = 16 / sizeof(T) - 1;
    const bool vector = dim % 8 == 0 && dim <= 32768 && ((ld_in | ld_out) & ld_mask) == 0 &&
                        aligned16(in) && aligned16(out) && aligned16(weight);
    if (!vector) {
        MSGL_CUDA_TRY(x, msgl__launch(norm_any_kernel<T>, dim3(rows), dim3(256), 0,
                                      msgl__cuda_stream(x), src, ld_in, weight, eps, dst, ld_out,
                                      dim));
        return;
    }
    const int per_warp = (dim + 255) / 256; // groups of eight per lane if a warp had the row
    const bool few = rows <= 4 * msgl__cuda_device(x)->sm_count;
    void (*fn)(const T *, size_t, const float *, float, T *, size_t, int, int);
    unsigned grid = (unsigned)rows, threads;
    if (per_warp <= 4) {
        const int warps = few ? 1 : NORM_WARPS;
        fn = per_warp == 1   ? norm_kernel<T, 1, true, true>
             : per_warp == 2 ? norm_kernel<T, 2, true, true>
             : few           ? norm_kernel<T, 4, true, true>
                             : norm_kernel<T, 4, true, false>;
        grid = (unsigned)((rows + warps - 1) / warps);
        threads = (unsigned)warps * 32;
    } else if (per_warp <= 64) {
        fn = few ? norm_kernel<T, 2, false, true> : norm_kernel<T, 2, false, false>;
        threads = (unsigned)(per_warp + 1) / 2 * 32;
    } else {
        fn = norm_kernel<T, 4, false, false>;
        threads = (unsigned)(per_warp + 3) / 4 * 32;
    }
    MSGL_CUDA_TRY(x, msgl__launch(fn, dim3(grid), dim3(threads), 0, msgl__cuda_stream(x), src,
                                  ld_in, weight, eps, dst, ld_out, rows, dim));
}

// A block per row, which stays in registers: VECS groups of eight a thread. The mean is known
// before the deviations are squared, as on the CPU.
template <typename T, int VECS>
static __global__ void __launch_bounds__(1024)
    layer_norm_kernel(const T *in, size_t ld_in, const float *weight, const float *bias, float eps,
                      T *out, size_t ld_out, int dim)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    __shared__ float sums[32], squares[32];
    const int first = (int)threadIdx.x * 8, step = (int)blockDim.x * 8;
    in += (size_t)blockIdx.x * ld_in;
    out += (size_t)blockIdx.x * ld_out;
    float v[VECS][8], sum = 0, square = 0;
#pragma unroll
    for (int i = 0; i < VECS; i++) {
        const int at = first + i * step;
        if (at >= dim) break;
        load8(in + at, v[i]);
#pragma unroll
        for (int j = 0; j < 8; j++) sum += v[i][j];
    }
    const float mean = block_sum(sum, sums) / (float)dim;
#pragma unroll
    for (int i = 0; i < VECS; i++) {
        if (first + i * step >= dim) break;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            v[i][j] -= mean;
            square += v[i][j] * v[i][j];
        }
    }
    const float inv = 1.0f / sqrtf(block_sum(square, squares) / (float)dim + eps);
#pragma unroll
    for (int i = 0; i < VECS; i++) {
        const int at = first + i * step;
        if (at >= dim) break;
        float w[8], b[8] = {0};
        load8(weight + at, w);
        if (bias != NULL) load8(bias + at, b);
#pragma unroll
        for (int j = 0; j < 8; j++) v[i][j] = v[i][j] * inv * w[j] + b[j];
        store8(out + at, v[i]);
    }
}

// Any dim, stride and alignment; reads the row three times.
template <typename T>
static __global__ void layer_norm_any_kernel(const T *in, size_t ld_in, const float *weight,
                                             const float *bias, float eps, T *out, size_t ld_out,
                                             int dim)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    __shared__ float sums[32], squares[32];
    in += (size_t)blockIdx.x * ld_in;
    out += (size_t)blockIdx.x * ld_out;
    float sum = 0, square = 0;
    for (int i = (int)threadIdx.x; i < dim; i += (int)blockDim.x) sum += to_f32(in[i]);
    const float mean = block_sum(sum, sums) / (float)dim;
    for (int i = (int)threadIdx.x; i < dim; i += (int)blockDim.x) {
        const float v = to_f32(in[i]) - mean;
        square += v * v;
    }
    const float inv = 1.0f / sqrtf(block_sum(square, squares) / (float)dim + eps);
    for (int i = (int)threadIdx.x; i < dim; i += (int)blockDim.x) {
        const float v = (to_f32(in[i]) - mean) * inv * weight[i];
        out[i] = from_f32<T>(bias != NULL ? v + bias[i] : v);
    }
}

// A warp per head of a row, in place; heads are short.
template <typename T>
static __global__ void layer_norm_heads_kernel(T *p, size_t ld, const float *weight, float eps,
                                               int rows, int heads, int dim)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const int lane = (int)threadIdx.x % 32;
    const size_t at = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (at >= (size_t)rows * heads) return;
    const size_t row = at / heads, head = at % heads;
    T *v = p + row * ld + head * dim;
    float sum = 0, square = 0;
    for (int i = lane; i < dim; i += 32) sum += to_f32(v[i]);
    const float mean = group_sum(sum, 32) / (float)dim;
    for (int i = lane; i < dim; i += 32) {
        const float d = to_f32(v[i]) - mean;
        square += d * d;
    }
    const float inv = 1.0f / sqrtf(group_sum(square, 32) / (float)dim + eps);
    for (int i = lane; i < dim; i += 32) {
        v[i] = from_f32<T>((to_f32(v[i]) - mean) * inv * weight[head * dim + i]);
    }
}

template <typename T>
static void layer_norm_heads(msgl_exec *x, void *p, size_t ld, const float *weight, float eps,
                             int rows, int heads, int dim)
{
    const size_t warps = (size_t)rows * (size_t)heads;
    MSGL_CUDA_TRY(x, msgl__launch(layer_norm_heads_kernel<T>,
                                  dim3((unsigned)((warps + NORM_WARPS - 1) / NORM_WARPS)),
                                  dim3(NORM_WARPS * 32), 0, msgl__cuda_stream(x), (T *)p, ld,
                                  weight, eps, rows, heads, dim));
}

template <typename T>
static void layer_norm(msgl_exec *x, const void *in, size_t ld_in, const float *weight,
                       const float *bias, float eps, void *out, size_t ld_out, int rows, int dim)
{
    const T *src = (const T *)in;
    T *dst = (T *)out;
    const size_t ld_mask = 16 / sizeof(T) - 1;
    const bool vector = dim % 8 == 0 && dim <= 32768 && ((ld_in | ld_out) & ld_mask) == 0 &&
                        aligned16(in) && aligned16(out) && aligned16(weight) && aligned16(bias);
    void (*fn)(const T *, size_t, const float *, const float *, float, T *, size_t, int) =
        !vector       ? layer_norm_any_kernel<T>
        : dim <= 8192 ? layer_norm_kernel<T, 1>
                      : layer_norm_kernel<T, 4>;
    const int vecs = dim <= 8192 ? 1 : 4;
    const int threads = vector ? (dim / 8 + vecs * 32 - 1) / (vecs * 32) * 32 : 256;
    MSGL_CUDA_TRY(x, msgl__launch(fn, dim3((unsigned)rows), dim3((unsigned)threads), 0,
                                  msgl__cuda_stream(x), src, ld_in, weight, bias, eps, dst, ld_out,
                                  dim));
}

// A block per row, as the two halves of a norm whose rows ranks share.
template <typename T>
static __global__ void sum_squares_kernel(const T *in, size_t ld, int dim, float *sums,
                                          size_t ld_sums)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const float sum = sum_of_squares(in + (size_t)blockIdx.x * ld, dim);
    if (threadIdx.x == 0) sums[(size_t)blockIdx.x * ld_sums] = sum;
}

template <typename T>
static __global__ void norm_by_sums_kernel(T *p, size_t ld, const float *weight, float eps,
                                           const float *sums, size_t ld_sums, int all, int dim)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    p += (size_t)blockIdx.x * ld;
    const float inv = 1.0f / sqrtf(sums[(size_t)blockIdx.x * ld_sums] / (float)all + eps);
    for (int i = (int)threadIdx.x; i < dim; i += (int)blockDim.x) {
        p[i] = from_f32<T>(to_f32(p[i]) * (inv * weight[i]));
    }
}

template <typename T>
static void sum_squares(msgl_exec *x, const void *in, size_t ld, int rows, int dim, float *sums,
                        size_t ld_sums)
{
    MSGL_CUDA_TRY(x, msgl__launch(sum_squares_kernel<T>, dim3(rows), dim3(256), 0,
                                  msgl__cuda_stream(x), (const T *)in, ld, dim, sums, ld_sums));
}

template <typename T>
static void norm_by_sums(msgl_exec *x, void *p, size_t ld, const float *weight, float eps,
                         const float *sums, size_t ld_sums, int all, int rows, int dim)
{
    MSGL_CUDA_TRY(x, msgl__launch(norm_by_sums_kernel<T>, dim3(rows), dim3(256), 0,
                                  msgl__cuda_stream(x), (T *)p, ld, weight, eps, sums, ld_sums, all,
                                  dim));
}

template <typename T> static __global__ void add_kernel(T *dst, const T *src, float scale, size_t n)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const size_t at = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (at + 8 <= n) {
        float a[8], b[8];
        load8(dst + at, a);
        load8(src + at, b);
#pragma unroll
        for (int j = 0; j < 8; j++) a[j] += scale * b[j];
        store8(dst + at, a);
    } else {
        for (size_t i = at; i < n; i++) {
            dst[i] = from_f32<T>(to_f32(dst[i]) + scale * to_f32(src[i]));
        }
    }
}

// A block per row, which it reads twice: the second time from the L1.
template <typename T>
static __global__ void add_norm_kernel(T *dst, const T *src, const float *weight, float eps,
                                       float scale, int dim)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    dst += (size_t)blockIdx.x * dim;
    src += (size_t)blockIdx.x * dim;
    const float inv = scale / root_mean_square(src, eps, dim);
    for (int i = (int)threadIdx.x; i < dim; i += (int)blockDim.x) {
        dst[i] = from_f32<T>(to_f32(dst[i]) + to_f32(src[i]) * (inv * weight[i]));
    }
}

template <typename T>
static void add_typed(msgl_exec *x, void *dst, const void *src, const float *weight, float eps,
                      float scale, int rows, int dim)
{
    cudaStream_t stream = msgl__cuda_stream(x);
    if (weight != NULL) {
        MSGL_CUDA_TRY(x, msgl__launch(add_norm_kernel<T>, dim3(rows), dim3(256), 0, stream,
                                      (T *)dst, (const T *)src, weight, eps, scale, dim));
        return;
    }
    const size_t n = (size_t)rows * (size_t)dim, groups = (n + 7) / 8;
    const unsigned threads = groups < (size_t)msgl__cuda_device(x)->sm_count * 256 ? 64 : 256;
    MSGL_CUDA_TRY(x, msgl__launch(add_kernel<T>, dim3((unsigned)((groups + threads - 1) / threads)),
                                  dim3(threads), 0, stream, (T *)dst, (const T *)src, scale, n));
}

template <typename T> static __global__ void scale_kernel(T *p, float factor, size_t n)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) p[at] = from_f32<T>(to_f32(p[at]) * factor);
}

template <typename T> static void scale_typed(msgl_exec *x, void *p, float factor, size_t n)
{
    const unsigned threads = 256;
    MSGL_CUDA_TRY(x, msgl__launch(scale_kernel<T>, dim3((unsigned)((n + threads - 1) / threads)),
                                  dim3(threads), 0, msgl__cuda_stream(x), (T *)p, factor, n));
}

extern "C" void msgl__cuda_rms_norm(msgl_exec *x, const void *in, size_t ld_in, const float *weight,
                                    float eps, void *out, size_t ld_out, int rows, int dim)
{
    if (rows > 0) MSGL_BY_DTYPE(x->act, norm, x, in, ld_in, weight, eps, out, ld_out, rows, dim);
}

extern "C" void msgl__cuda_layer_norm(msgl_exec *x, const void *in, size_t ld_in,
                                      const float *weight, const float *bias, float eps, void *out,
                                      size_t ld_out, int rows, int dim)
{
    if (rows == 0) return;
    MSGL_BY_DTYPE(x->act, layer_norm, x, in, ld_in, weight, bias, eps, out, ld_out, rows, dim);
}

extern "C" void msgl__cuda_layer_norm_heads(msgl_exec *x, void *p, size_t ld, const float *weight,
                                            float eps, int rows, int heads, int dim)
{
    if (rows > 0) MSGL_BY_DTYPE(x->act, layer_norm_heads, x, p, ld, weight, eps, rows, heads, dim);
}

extern "C" void msgl__cuda_sum_squares(msgl_exec *x, const void *in, size_t ld_in, int rows,
                                       int dim, float *sums, size_t ld_sums)
{
    if (rows > 0) MSGL_BY_DTYPE(x->act, sum_squares, x, in, ld_in, rows, dim, sums, ld_sums);
}

extern "C" void msgl__cuda_norm_by_sums(msgl_exec *x, void *p, size_t ld, const float *weight,
                                        float eps, const float *sums, size_t ld_sums, int all,
                                        int rows, int dim)
{
    if (rows > 0) {
        MSGL_BY_DTYPE(x->act, norm_by_sums, x, p, ld, weight, eps, sums, ld_sums, all, rows, dim);
    }
}

extern "C" void msgl__cuda_add(msgl_exec *x, void *dst, const void *src, const float *weight,
                               float eps, float scale, int rows, int dim)
{
    if (rows > 0) MSGL_BY_DTYPE(x->act, add_typed, x, dst, src, weight, eps, scale, rows, dim);
}

extern "C" void msgl__cuda_scale(msgl_exec *x, void *p, float factor, size_t n)
{
    if (n > 0) MSGL_BY_DTYPE(x->act, scale_typed, x, p, factor, n);
}
