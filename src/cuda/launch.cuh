// SPDX-License-Identifier: Apache-2.0
//
// Launching with programmatic dependence: a kernel may start while the one before it in the stream
// still runs, and does what needs nothing of it (loads weights, sets up) before it waits. In a
// chain of kernels of a few microseconds this hides most of the time between them.
//
// Rules for a kernel that is launched by msgl__launch:
// - Call msgl__pdl_wait() in every block, on every path that ends, before the first access to
//   memory that any earlier kernel or copy writes, and before the first write to memory that one
//   reads. It returns when all earlier kernels have ended and their writes are visible. A kernel
//   that ended without waiting would let its successor overtake its predecessor.
//   Only the second of a step's two attention calls waits at its end instead: the first one lets it
//   start behind its own wait, when all that both read is there (msgl_cuda_attn_call).
// - Only data that no kernel writes (weights, tables made at start) may be read before, and the
//   step's inputs (lengths, the page table, sampling parameters): a copy brought them, or the
//   step's first kernel, which neither starts early nor triggers and has a fence behind its writes.
//   Read what earlier kernels wrote through plain pointers, or __ldcg: the compiler may move __ldg
//   and loads through `const T *__restrict__` above the wait.
// - Call msgl__pdl_trigger() early: the successor can start once every block has called it or
//   ended. It says nothing about results, only that the successor may take free resources.
// Before sm_90 all three do nothing and the stream's order is the usual one. A predecessor that
// never triggers (a library's kernel) counts as triggering at its end.
#ifndef MSGL_CUDA_LAUNCH_CUH
#define MSGL_CUDA_LAUNCH_CUH

#include <atomic>
#include <mutex>

#include <cuda_runtime.h>

static __device__ __forceinline__ void msgl__pdl_wait(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void msgl__pdl_trigger(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

enum { MSGL_MAX_GPUS = 64 };

// What launches ask of the current device.
struct msgl_gpu {
    int ordinal, sms, major; // compute capability major.x
};

// Asks the driver once per device: each of these questions costs a launch some tenths of a
// microsecond of the host.
static inline cudaError_t msgl__current_gpu(msgl_gpu *gpu)
{
    static std::atomic<int> known[MSGL_MAX_GPUS]; // sms << 8 | major
    cudaError_t code = cudaGetDevice(&gpu->ordinal);
    if (code != cudaSuccess) return code;
    const bool keeps = gpu->ordinal < MSGL_MAX_GPUS;
    const int both = keeps ? known[gpu->ordinal].load(std::memory_order_relaxed) : 0;
    gpu->sms = both >> 8;
    gpu->major = both & 0xff;
    if (both != 0) return cudaSuccess;
    code = cudaDeviceGetAttribute(&gpu->sms, cudaDevAttrMultiProcessorCount, gpu->ordinal);
    if (code == cudaSuccess) {
        code = cudaDeviceGetAttribute(&gpu->major, cudaDevAttrComputeCapabilityMajor, gpu->ordinal);
    }
    if (code == cudaSuccess && keeps) {
        known[gpu->ordinal].store(gpu->sms << 8 | gpu->major, std::memory_order_relaxed);
    }
    return code;
}

// Whether the current device has programmatic dependence.
static inline bool msgl__pdl_available(void)
{
#ifdef MSGL_CUDA_NO_PDL // a test's and a benchmark's other half
    return false;
#else
    msgl_gpu gpu;
    return msgl__current_gpu(&gpu) == cudaSuccess && gpu.major >= 9;
#endif
}

// Lets KERNEL have `bytes` of dynamic shared memory on the current device. all_shared: its SMs
// divide their memory for as much shared memory as there is; an SM does not change that while
// anything runs there, so that two kernels overlap only if both ask for it. The driver, which costs
// the host about a microsecond, is asked only when the kernel needs more than ever before.
template <auto KERNEL>
static inline cudaError_t msgl__allow_shared(size_t bytes, bool all_shared = false)
{
    static std::atomic<size_t> allowed[MSGL_MAX_GPUS];
    static std::mutex raising;
    int device = 0;
    cudaError_t code = cudaGetDevice(&device);
    if (code != cudaSuccess) return code;
    if (device < MSGL_MAX_GPUS && bytes <= allowed[device].load(std::memory_order_acquire))
        return code;
    const std::lock_guard<std::mutex> lock(raising);
    if (device < MSGL_MAX_GPUS && bytes <= allowed[device].load(std::memory_order_relaxed))
        return code;
    code = cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (code == cudaSuccess && all_shared) {
        code = cudaFuncSetAttribute(KERNEL, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared);
    }
    if (code == cudaSuccess && device < MSGL_MAX_GPUS) {
        allowed[device].store(bytes, std::memory_order_release);
    }
    return code;
}

// Queues kernel<<<grid, block, shared, stream>>>(args...) so that it may start early. Works inside
// a capture.
template <typename... Params, typename... Args>
static inline cudaError_t msgl__launch(void (*kernel)(Params...), dim3 grid, dim3 block,
                                       size_t shared, cudaStream_t stream, Args... args)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = msgl__pdl_available() ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

// The same in the stream's order: behind all that earlier kernels do, and in front of the next one
// unless that one starts early, for which the kernel gives no sign before its end.
template <typename... Params, typename... Args>
static inline cudaError_t msgl__launch_in_order(void (*kernel)(Params...), dim3 grid, dim3 block,
                                                size_t shared, cudaStream_t stream, Args... args)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

// Early, in clusters of `cluster` blocks, of which the grid is a multiple.
template <typename... Params, typename... Args>
static inline cudaError_t msgl__launch_clusters(void (*kernel)(Params...), dim3 cluster, dim3 grid,
                                                dim3 block, size_t shared, cudaStream_t stream,
                                                Args... args)
{
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = cluster.x;
    attributes[0].val.clusterDim.y = cluster.y;
    attributes[0].val.clusterDim.z = cluster.z;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = msgl__pdl_available() ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

#endif
