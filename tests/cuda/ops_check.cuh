// SPDX-License-Identifier: Apache-2.0
//
// What the tests and benchmarks of the GPU's small kernels share: a device to run on, buffers with
// poisoned contents, random inputs, and comparison with an f64 oracle.
#ifndef MSGL_TESTS_CUDA_OPS_CHECK_CUH
#define MSGL_TESTS_CUDA_OPS_CHECK_CUH

#include <math.h>
#include <string.h>

#include "cuda/device.cuh"
#include "cuda/ops/ops.h"
#include "tests/cuda/cuda_check.cuh"
#include "tests/cuda/family.cuh"

extern "C" {
#include "core/dtype.h"
}

struct bench_exec {
    msgl_cuda_device device;
    msgl_arena scratch;
    msgl_exec x;
};

static inline void exec_open(bench_exec *e, size_t scratch_bytes)
{
    memset(e, 0, sizeof *e);
    cudaDeviceProp props;
    CUDA_OK(cudaGetDeviceProperties(&props, 0));
    e->device.base.capability = props.major * 10 + props.minor;
    e->device.sm_count = props.multiProcessorCount;
    e->device.l2_bytes = (size_t)props.l2CacheSize;
    CUDA_OK(cudaStreamCreate(&e->device.stream));
    void *p;
    CUDA_OK(cudaMalloc(&p, scratch_bytes));
    e->scratch.base = (char *)p;
    e->scratch.size = scratch_bytes;
    e->x.device = &e->device.base;
    e->x.scratch = &e->scratch;
}

static inline void exec_sync(bench_exec *e)
{
    CUDA_OK(cudaStreamSynchronize(e->device.stream));
    CUDA_OK(cudaGetLastError());
    if (e->x.status != 0) {
        printf("exec status %d: %s\n", e->x.status, e->device.base.fault.text);
        exit(1);
    }
}

static inline uint64_t rng_next(uint64_t *s)
{
    return splitmix64(s);
}
static inline double rng_uniform(uint64_t *s)
{
    return (double)(rng_next(s) >> 11) * 0x1p-53;
}
static inline float rng_normal(uint64_t *s)
{
    const double u = 1 - rng_uniform(s), v = rng_uniform(s);
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

// Host copy of a device array of dtype, as f32 values that the dtype can hold.
struct array {
    msgl_dtype dtype;
    size_t n;
    float *host;
    void *dev;
};

static inline void array_upload(array *a)
{
    const size_t bytes = a->n * msgl__dtype_size(a->dtype);
    void *raw = malloc(bytes + 1);
    for (size_t i = 0; i < a->n; i++) msgl__store_f32(raw, a->dtype, i, a->host[i]);
    device_write(a->dev, raw, bytes);
    free(raw);
}

static inline void array_download(array *a)
{
    const size_t bytes = a->n * msgl__dtype_size(a->dtype);
    void *raw = malloc(bytes + 1);
    CUDA_OK(cudaMemcpy(raw, a->dev, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < a->n; i++) a->host[i] = msgl__load_f32(raw, a->dtype, i);
    free(raw);
}

// scale * normal values; scale 0: NaN everywhere, for outputs and what must not be read.
static inline array array_new(msgl_dtype dtype, size_t n, float scale, uint64_t *seed)
{
    array a = {dtype, n, (float *)malloc((n + 1) * sizeof(float)), NULL};
    CUDA_OK(cudaMalloc(&a.dev, n * msgl__dtype_size(dtype) + 16));
    for (size_t i = 0; i < n; i++) a.host[i] = scale == 0 ? NAN : scale * rng_normal(seed);
    array_upload(&a);
    array_download(&a);
    return a;
}

static inline void array_free(array *a)
{
    CUDA_OK(cudaFree(a->dev));
    free(a->host);
}

// Rows [m, cols] of an output, ld apart, are numbers, and nothing was written between them.
static inline void expect_rows(family *f, const array *out, const float *before, int m, int cols,
                               size_t ld, const char *what)
{
    bool kept = true, written = true;
    for (int i = 0; i < m; i++) {
        for (size_t j = 0; j < ld; j++) {
            const size_t at = (size_t)i * ld + j;
            if (j < (size_t)cols) {
                written = written && isfinite(out->host[at]);
            } else {
                kept = kept && memcmp(&out->host[at], &before[at], sizeof(float)) == 0;
            }
        }
    }
    expect(f, written, what);
    expect(f, kept, "nothing beyond the rows is written");
}

static inline int32_t *ints_upload(const int32_t *host, size_t n)
{
    return (int32_t *)device_copy(host, n * sizeof *host);
}

// Half a unit in the last place of the dtype plus some f32 rounding, relative to `size`.
static inline double dtype_error(msgl_dtype dtype)
{
    return dtype == MSGL_E4M3   ? 0x1p-4
           : dtype == MSGL_BF16 ? 0x1p-8
           : dtype == MSGL_F16  ? 0x1p-11
                                : 0x1p-20;
}

// What is allowed beside that: of E4M3, half of its smallest number.
static inline double dtype_floor(msgl_dtype dtype)
{
    return dtype == MSGL_E4M3 ? 0x1p-10 * 1.01 : 4e-6;
}

#endif
