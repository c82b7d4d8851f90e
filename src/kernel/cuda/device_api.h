// SPDX-License-Identifier: Apache-2.0
//
// Functions inside minisgl-cuda.so that its files need of each other, outside the kernel table.
#ifndef MSGL_KERNEL_CUDA_DEVICE_API_H
#define MSGL_KERNEL_CUDA_DEVICE_API_H

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernel/cuda/plugin.h"

struct msgl_cuda_device;

// device.cu
int msgl__cuda_device_count(msgl_err *reason);
int msgl__cuda_props(int ordinal, msgl_cuda_props *out, msgl_err *err);
int msgl__cuda_device_open(int ordinal, bool deterministic, const char *cache_dir,
                           msgl_device **out, msgl_cuda_props *props, msgl_err *err);
void *msgl__cuda_device_stream(msgl_device *d);
size_t msgl__cuda_device_l2_bytes(const msgl_device *d);

// gemm: the library's handle and workspace, and the algorithms chosen by measurement on a GPU of
// this name, kept in cache_dir (NULL: nowhere). destroy takes a device without them.
int msgl__cuda_blas_create(struct msgl_cuda_device *d, const char *gpu, const char *cache_dir,
                           msgl_err *err);
void msgl__cuda_blas_destroy(struct msgl_cuda_device *d);

// copies.cu: copies that cross the bus early. destroy takes a device without them.
int msgl__cuda_copies_create(struct msgl_cuda_device *d, msgl_err *err);
void msgl__cuda_copies_destroy(struct msgl_cuda_device *d);
void msgl__cuda_copies_begin(msgl_device *d);
void msgl__cuda_copies_end(msgl_device *d);
// Notes a copy between begin and end. False: the caller copies, now.
bool msgl__cuda_copies_add(struct msgl_cuda_device *d, void *dst, const void *src, size_t bytes);

// ops/tokens.cu
void msgl__cuda_gather_tokens(cudaStream_t stream, const int32_t *pool, const int32_t *index,
                              int32_t n, int32_t *out, size_t stride);
void msgl__cuda_take_tokens(cudaStream_t stream, const int32_t *pool, const int32_t *index,
                            int32_t n, int32_t *ids, int32_t *table, const int32_t *slots);
void msgl__cuda_fill_normal(cudaStream_t stream, void *p, msgl_dtype dtype, size_t n, uint64_t seed,
                            float deviation);

#ifdef __cplusplus
}
#endif

#endif
