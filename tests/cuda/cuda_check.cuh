// SPDX-License-Identifier: Apache-2.0
//
// What all tests and benchmarks on a GPU share: an end at the first error of CUDA, memory with
// contents, random bits.
#ifndef MSGL_TESTS_CUDA_CUDA_CHECK_CUH
#define MSGL_TESTS_CUDA_CUDA_CHECK_CUH

#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// For whatever returns a cudaError_t, also as an int.
#define CUDA_OK(call)                                                                              \
    do {                                                                                           \
        const cudaError_t code_ = (cudaError_t)(call);                                             \
        if (code_ != cudaSuccess) {                                                                \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cudaGetErrorString(code_));                                                    \
            exit(2);                                                                               \
        }                                                                                          \
    } while (0)

// Copies to the device and waits until it is there: cudaMemcpy may return earlier, and the streams
// of tests do not wait for the one that it copies in.
static inline void device_write(void *dst, const void *src, size_t bytes)
{
    CUDA_OK(cudaMemcpy(dst, src, bytes, cudaMemcpyHostToDevice));
    CUDA_OK(cudaDeviceSynchronize());
}

// bytes of device memory, to be given to cudaFree; filled from src unless that is NULL.
static inline void *device_copy(const void *src, size_t bytes)
{
    void *p;
    CUDA_OK(cudaMalloc(&p, bytes > 0 ? bytes : 16));
    if (src != NULL) device_write(p, src, bytes);
    return p;
}

// What queue() queues on the stream, as a graph to be launched; to be given to
// cudaGraphExecDestroy.
template <typename QUEUE>
static inline cudaGraphExec_t cuda_capture(cudaStream_t stream, QUEUE queue)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    queue();
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_OK(cudaGraphDestroy(graph));
    return exec;
}

static inline uint64_t splitmix64(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#endif
