// SPDX-License-Identifier: Apache-2.0
//
// A GPU as a device: its stream, and how kernels and library calls report failure. Every launcher
// gets here through exec->device. Host code that reads a failed CUDA call keeps the first failure
// in msgl_device.fault and never ends the process: the step's wait returns it.
#ifndef MSGL_CUDA_DEVICE_CUH
#define MSGL_CUDA_DEVICE_CUH

#include <cuda_runtime.h>

extern "C" {
#include "kernel/device.h"
}

struct msgl_cuda_blas;   // gemm/lt.cuh: the library's handle, workspace and chosen algorithms
struct msgl_cuda_copies; // copies.cu: a step's inputs on their way
struct msgl_cuda_mapped; // memory.cuh: blocks at addresses that stay

struct msgl_cuda_device {
    msgl_device base;
    int ordinal;
    int sm_count;
    size_t l2_bytes;
    bool deterministic; // fixed algorithms, whatever the number of rows
    bool capturing;     // between graph_begin and graph_end: nothing may allocate or synchronise
    cudaStream_t stream;
    msgl_cuda_blas *blas;
    msgl_cuda_copies *copies;
    msgl_cuda_mapped *mapped;
    cudaEvent_t events[MSGL_DEVICE_MAX_EVENTS];
};

static inline msgl_cuda_device *msgl__cuda_device(const msgl_exec *x)
{
    return (msgl_cuda_device *)x->device;
}

static inline cudaStream_t msgl__cuda_stream(const msgl_exec *x)
{
    return msgl__cuda_device(x)->stream;
}

// Keeps the first failure: fault gets "WHAT (FILE:LINE): CUDA's text".
void msgl__cuda_fault(msgl_device *d, cudaError_t code, const char *what, const char *file,
                      int line);

// Evaluates a CUDA runtime call; on failure records it and sets x->status.
#define MSGL_CUDA_TRY(x, call)                                                                     \
    do {                                                                                           \
        const cudaError_t msgl_code = (call);                                                      \
        if (msgl_code != cudaSuccess) {                                                            \
            msgl__cuda_fault((x)->device, msgl_code, #call, __FILE__, __LINE__);                   \
            (x)->status = MSGL_EDEVICE;                                                            \
        }                                                                                          \
    } while (0)

// Behind every kernel launch.
#define MSGL_CUDA_LAUNCHED(x) MSGL_CUDA_TRY(x, cudaGetLastError())

#endif
