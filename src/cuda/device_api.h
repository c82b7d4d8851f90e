// SPDX-License-Identifier: Apache-2.0
//
// Functions inside minisgl-cuda.so that its files need of each other, outside the kernel table.
#ifndef MSGL_CUDA_DEVICE_API_H
#define MSGL_CUDA_DEVICE_API_H

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "cuda/host.h"

struct msgl_cuda_device;

// gemm: the library's handle and workspace, and the algorithms chosen by measurement on a GPU of
// this name, kept in cache_dir (NULL: nowhere). destroy takes a device without them.
int msgl__cuda_blas_create(struct msgl_cuda_device *d, const char *gpu, const char *cache_dir,
                           msgl_err *err);
void msgl__cuda_blas_destroy(struct msgl_cuda_device *d);

// copies.cu: inputs of graphs. destroy takes a device without them.
int msgl__cuda_copies_create(struct msgl_cuda_device *d, msgl_err *err);
void msgl__cuda_copies_destroy(struct msgl_cuda_device *d);
void msgl__cuda_copies_begin(struct msgl_cuda_device *d);
// Notes a copy behind begin; src may change at once. False: the caller copies.
bool msgl__cuda_copies_add(struct msgl_cuda_device *d, void *dst, const void *src, size_t bytes);
// Ahead of a graph's launch: what was noted, to be moved by the graph itself or by a kernel here.
void msgl__cuda_copies_send(struct msgl_cuda_device *d, bool by_graph);
// An event was recorded on the device's stream, or the host has seen it reached.
void msgl__cuda_copies_recorded(struct msgl_cuda_device *d, int32_t event);
void msgl__cuda_copies_reached(struct msgl_cuda_device *d, int32_t event);
// A capture begins; whether one of its kernels has taken over the moving (copies.cuh).
void msgl__cuda_copies_capture(struct msgl_cuda_device *d);
bool msgl__cuda_copies_captured(const struct msgl_cuda_device *d);

// ops/tokens.cu
void msgl__cuda_gather_tokens(cudaStream_t stream, const int32_t *pool, const int32_t *index,
                              int32_t n, int32_t *out, size_t stride);
void msgl__cuda_map_tokens(cudaStream_t stream, int32_t *pool, const int32_t *index, int32_t n,
                           const int32_t *ids, int32_t num_ids);
void msgl__cuda_take_tokens(cudaStream_t stream, const msgl_step_tokens *tokens, int32_t *ids);
void msgl__cuda_fill_normal(cudaStream_t stream, void *p, msgl_dtype dtype, size_t n, uint64_t seed,
                            float deviation);

#ifdef __cplusplus
}
#endif

#endif
