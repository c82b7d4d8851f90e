// SPDX-License-Identifier: Apache-2.0
//
// As much of CUDA's runtime as tests of kernels use: memory is the host's, what is queued runs at
// once, and a capture keeps it.
#ifndef MSGL_TESTS_EMULATOR_CUDA_RUNTIME_H
#define MSGL_TESTS_EMULATOR_CUDA_RUNTIME_H

#include <vector>

#include "emulator.h"

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorNotSupported = 801 };
typedef struct emulator_graph {
    std::vector<std::function<void()>> work;
} * cudaGraph_t, *cudaGraphExec_t;
typedef void *cudaStream_t;
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum { cudaStreamCaptureModeThreadLocal };

extern emulator_graph *emulator_capture; // NULL: work runs

static inline void emulator_queue(const std::function<void()> &work)
{
    if (emulator_capture == NULL) {
        work();
    } else {
        emulator_capture->work.push_back(work);
    }
}

static inline const char *cudaGetErrorString(cudaError_t)
{
    return "an error";
}
static inline cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}
static inline cudaError_t cudaDeviceSynchronize()
{
    return cudaSuccess;
}
static inline cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return cudaSuccess;
}

// A GPU that is none of Hopper's, unless a program says so for what is tested.
extern int emulator_major;
struct cudaDeviceProp {
    int major, minor, multiProcessorCount, l2CacheSize;
};
static inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int)
{
    *p = {emulator_major, 0, 8, 1 << 20};
    return cudaSuccess;
}

// Times here say nothing.
typedef void *cudaEvent_t;
static inline cudaError_t cudaEventCreate(cudaEvent_t *)
{
    return cudaSuccess;
}
static inline cudaError_t cudaEventRecord(cudaEvent_t)
{
    return cudaSuccess;
}
static inline cudaError_t cudaEventDestroy(cudaEvent_t)
{
    return cudaSuccess;
}
static inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t)
{
    *ms = 0;
    return cudaSuccess;
}

// Aligned as CUDA's, and filled with what is NaN in every dtype.
template <typename T> static inline cudaError_t cudaMalloc(T **p, size_t bytes)
{
    const size_t n = (bytes + 255) / 256 * 256;
    *p = (T *)aligned_alloc(256, n);
    memset((void *)*p, 0xff, n);
    return cudaSuccess;
}
static inline cudaError_t cudaFree(void *p)
{
    free(p);
    return cudaSuccess;
}
static inline cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, cudaMemcpyKind)
{
    memcpy(dst, src, bytes);
    return cudaSuccess;
}
static inline cudaError_t cudaMemset(void *dst, int v, size_t bytes)
{
    memset(dst, v, bytes);
    return cudaSuccess;
}
static inline cudaError_t cudaMemsetAsync(void *dst, int v, size_t bytes, cudaStream_t)
{
    emulator_queue([=] { memset(dst, v, bytes); });
    return cudaSuccess;
}

static inline cudaError_t cudaStreamCreate(cudaStream_t *s)
{
    *s = NULL;
    return cudaSuccess;
}
static inline cudaError_t cudaStreamDestroy(cudaStream_t)
{
    return cudaSuccess;
}
static inline cudaError_t cudaStreamBeginCapture(cudaStream_t, int)
{
    emulator_capture = new emulator_graph;
    return cudaSuccess;
}
static inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *graph)
{
    *graph = emulator_capture;
    emulator_capture = NULL;
    return cudaSuccess;
}
static inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, int)
{
    *exec = new emulator_graph(*graph);
    return cudaSuccess;
}
static inline cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}
static inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}
static inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t)
{
    for (const auto &work : exec->work) work();
    return cudaSuccess;
}

#endif
