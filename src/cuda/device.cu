// SPDX-License-Identifier: Apache-2.0
//
// One GPU and one stream on it. Work is issued on the thread that submits it and runs in the
// stream's order; events tell the host when. A failed call is kept in msgl_device.fault, after
// which every wait fails: an asynchronous fault leaves a CUDA context unusable, so the engine ends.
#include "cuda/device.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device_api.h"
#include "cuda/memory.cuh"

struct msgl_graph {
    cudaGraphExec_t exec;
    bool moves; // its inputs to their places
};

void msgl__cuda_fault(msgl_device *d, cudaError_t code, const char *what, const char *file,
                      int line)
{
    if (d->fault.code != 0) return;
    const char *base = strrchr(file, '/');
    snprintf(d->fault.text, sizeof d->fault.text, "CUDA: %.120s (%s:%d): %s", what,
             base != NULL ? base + 1 : file, line, cudaGetErrorString(code));
    d->fault.code = MSGL_EDEVICE;
}

// Keeps a failure of a call made for the device itself rather than for a step.
#define TRY(d, call)                                                                               \
    do {                                                                                           \
        const cudaError_t msgl_code = (call);                                                      \
        if (msgl_code != cudaSuccess) {                                                            \
            msgl__cuda_fault(&(d)->base, msgl_code, #call, __FILE__, __LINE__);                    \
        }                                                                                          \
    } while (0)

static msgl_cuda_device *of(msgl_device *base)
{
    msgl_cuda_device *d = (msgl_cuda_device *)base;
    // The current device belongs to the calling thread, and any thread may come here.
    TRY(d, cudaSetDevice(d->ordinal));
    return d;
}

// From so many bytes on memory can be given back without its addresses: weights and caches.
static const size_t MAPPED_FROM = (size_t)32 << 20;

static void *cuda_alloc(msgl_device *base, size_t bytes)
{
    msgl_cuda_device *d = of(base);
    void *p = bytes >= MAPPED_FROM ? msgl__cuda_mapped_alloc(d->mapped, d->ordinal, bytes) : NULL;
    if (p == NULL && cudaMalloc(&p, bytes > 0 ? bytes : 1) != cudaSuccess) {
        (void)cudaGetLastError(); // out of memory is the caller's to report, not a fault
        return NULL;
    }
    TRY(d, cudaMemsetAsync(p, 0, bytes, d->stream));
    TRY(d, cudaStreamSynchronize(d->stream));
    return p;
}

static void cuda_free(msgl_device *base, void *p, size_t bytes)
{
    msgl_cuda_device *d = of(base);
    (void)bytes;
    TRY(d, cudaStreamSynchronize(d->stream)); // as cudaFree does
    if (!msgl__cuda_mapped_free(d->mapped, p)) (void)cudaFree(p);
}

static void cuda_discard(msgl_device *base, void *p, size_t bytes)
{
    msgl_cuda_device *d = of(base);
    (void)bytes;
    TRY(d, cudaStreamSynchronize(d->stream));
    msgl__cuda_mapped_discard(d->mapped, p);
}

static bool cuda_restore(msgl_device *base, void *p, size_t bytes)
{
    msgl_cuda_device *d = of(base);
    if (!msgl__cuda_mapped_restore(d->mapped, d->ordinal, p)) return false;
    TRY(d, cudaMemsetAsync(p, 0, bytes, d->stream));
    TRY(d, cudaStreamSynchronize(d->stream));
    return d->base.fault.code == 0;
}

static void *cuda_host_alloc(msgl_device *base, size_t bytes)
{
    (void)of(base);
    void *p = NULL;
    if (cudaHostAlloc(&p, bytes > 0 ? bytes : 1, cudaHostAllocDefault) != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    memset(p, 0, bytes);
    return p;
}

static void cuda_host_free(msgl_device *base, void *p, size_t bytes)
{
    (void)bytes;
    (void)of(base);
    (void)cudaFreeHost(p);
}

static size_t cuda_available(msgl_device *base)
{
    msgl_cuda_device *d = of(base);
    size_t free_bytes = 0, total = 0;
    TRY(d, cudaMemGetInfo(&free_bytes, &total));
    return free_bytes;
}

static void cuda_submit(msgl_device *base, msgl_work_fn fn, void *ctx, int64_t arg)
{
    (void)of(base);
    fn(ctx, arg);
}

static void cuda_copy_in(msgl_device *base, void *dst, const void *host_src, size_t bytes)
{
    msgl_cuda_device *d = (msgl_cuda_device *)base;
    if (bytes == 0 || msgl__cuda_copies_add(d, dst, host_src, bytes)) return;
    TRY(d, cudaMemcpyAsync(dst, host_src, bytes, cudaMemcpyHostToDevice, d->stream));
}

static void cuda_copy_out(msgl_device *base, void *host_dst, const void *src, size_t bytes)
{
    msgl_cuda_device *d = (msgl_cuda_device *)base;
    if (bytes == 0) return;
    TRY(d, cudaMemcpyAsync(host_dst, src, bytes, cudaMemcpyDeviceToHost, d->stream));
}

static void cuda_copy(msgl_device *base, void *dst, const void *src, size_t bytes)
{
    msgl_cuda_device *d = (msgl_cuda_device *)base;
    if (bytes == 0) return;
    TRY(d, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, d->stream));
}

static void cuda_inputs_begin(msgl_device *base)
{
    msgl__cuda_copies_begin((msgl_cuda_device *)base);
}

static void cuda_record(msgl_device *base, int32_t event)
{
    msgl_cuda_device *d = (msgl_cuda_device *)base;
    TRY(d, cudaEventRecord(d->events[event], d->stream));
    msgl__cuda_copies_recorded(d, event);
}

static void cuda_arm(msgl_device *base, int32_t event)
{
    (void)base;
    (void)event; // record re-arms; one never recorded counts as reached
}

static int cuda_wait(msgl_device *base, int32_t event)
{
    msgl_cuda_device *d = of(base);
    TRY(d, cudaEventSynchronize(d->events[event]));
    msgl__cuda_copies_reached(d, event);
    return d->base.fault.code;
}

static void cuda_gather(msgl_device *base, const int32_t *pool, const int32_t *index, int32_t n,
                        int32_t *out, size_t stride)
{
    msgl_cuda_device *d = (msgl_cuda_device *)base;
    msgl__cuda_gather_tokens(d->stream, pool, index, n, out, stride);
    TRY(d, cudaGetLastError());
}

static void cuda_map_tokens(msgl_device *base, int32_t *pool, const int32_t *index, int32_t n,
                            const int32_t *ids, int32_t num_ids)
{
    msgl_cuda_device *d = (msgl_cuda_device *)base;
    msgl__cuda_map_tokens(d->stream, pool, index, n, ids, num_ids);
    TRY(d, cudaGetLastError());
}

static void cuda_take_tokens(msgl_device *base, const msgl_step_tokens *tokens, int32_t *ids)
{
    msgl_cuda_device *d = (msgl_cuda_device *)base;
    msgl__cuda_take_tokens(d->stream, tokens, ids);
    TRY(d, cudaGetLastError());
}

static void cuda_fill_normal(msgl_device *base, void *p, msgl_dtype dtype, size_t n, uint64_t seed,
                             float deviation)
{
    msgl_cuda_device *d = of(base);
    msgl__cuda_fill_normal(d->stream, p, dtype, n, seed, deviation);
    TRY(d, cudaGetLastError());
}

static void cuda_graph_begin(msgl_device *base)
{
    msgl_cuda_device *d = (msgl_cuda_device *)base;
    d->capturing = true;
    msgl__cuda_copies_capture(d);
    TRY(d, cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal));
}

static msgl_graph *cuda_graph_end(msgl_device *base, msgl_err *err)
{
    msgl_cuda_device *d = (msgl_cuda_device *)base;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaError_t code = cudaStreamEndCapture(d->stream, &graph);
    d->capturing = false;
    if (code == cudaSuccess) code = cudaGraphInstantiate(&exec, graph, 0);
    if (graph != NULL) (void)cudaGraphDestroy(graph);
    if (code == cudaSuccess) code = cudaGraphUpload(exec, d->stream);
    msgl_graph *g = code == cudaSuccess ? (msgl_graph *)msgl__calloc(1, sizeof *g) : NULL;
    if (g != NULL) {
        g->exec = exec;
        g->moves = msgl__cuda_copies_captured(d);
        return g;
    }
    if (exec != NULL) (void)cudaGraphExecDestroy(exec);
    if (code == cudaSuccess) code = cudaErrorMemoryAllocation; // of the host
    msgl__err_set(err, MSGL_EDEVICE, "CUDA graph: %s", cudaGetErrorString(code));
    return NULL;
}

static void cuda_graph_launch(msgl_device *base, msgl_graph *g)
{
    msgl_cuda_device *d = (msgl_cuda_device *)base;
    msgl__cuda_copies_send(d, g->moves);
    TRY(d, cudaGraphLaunch(g->exec, d->stream));
}

static void cuda_graph_destroy(msgl_device *base, msgl_graph *g)
{
    (void)of(base);
    if (g == NULL) return;
    (void)cudaGraphExecDestroy(g->exec);
    msgl__free(g);
}

static double cuda_time_ms(msgl_device *base, msgl_work_fn fn, void *ctx, int64_t arg)
{
    msgl_cuda_device *d = of(base);
    cudaEvent_t events[2] = {NULL, NULL};
    float ms = -1;
    for (int i = 0; i < 2; i++) TRY(d, cudaEventCreate(&events[i]));
    TRY(d, cudaStreamSynchronize(d->stream));
    TRY(d, cudaEventRecord(events[0], d->stream));
    fn(ctx, arg);
    TRY(d, cudaEventRecord(events[1], d->stream));
    TRY(d, cudaEventSynchronize(events[1]));
    TRY(d, cudaEventElapsedTime(&ms, events[0], events[1]));
    for (int i = 0; i < 2; i++) TRY(d, cudaEventDestroy(events[i]));
    return d->base.fault.code == 0 ? (double)ms : -1;
}

static void cuda_destroy(msgl_device *base)
{
    msgl_cuda_device *d = of(base);
    msgl__cuda_blas_destroy(d);
    msgl__cuda_copies_destroy(d);
    for (int i = 0; i < MSGL_DEVICE_MAX_EVENTS; i++) {
        if (d->events[i] != NULL) (void)cudaEventDestroy(d->events[i]);
    }
    if (d->stream != NULL) (void)cudaStreamDestroy(d->stream);
    msgl__free(d->mapped);
    msgl__free(d);
}

static const msgl_device_ops CUDA_OPS = {
    cuda_alloc,     cuda_free,         cuda_discard,       cuda_restore,     cuda_host_alloc,
    cuda_host_free, cuda_available,    cuda_submit,        cuda_copy_in,     cuda_copy_out,
    cuda_copy,      cuda_record,       cuda_inputs_begin,  cuda_arm,         cuda_wait,
    cuda_gather,    cuda_map_tokens,   cuda_take_tokens,   cuda_fill_normal, cuda_graph_begin,
    cuda_graph_end, cuda_graph_launch, cuda_graph_destroy, cuda_time_ms,     cuda_destroy,
};

int msgl__cuda_device_count(msgl_err *reason)
{
    int n = 0;
    const cudaError_t code = cudaGetDeviceCount(&n);
    if (code == cudaSuccess && n > 0) return n;
    (void)cudaGetLastError();
    int driver = 0;
    const bool installed = cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
    msgl__err_set(reason, MSGL_ENOENT, "no usable NVIDIA GPU: %s",
                  !installed            ? "no driver is installed"
                  : code == cudaSuccess ? "the driver shows none"
                                        : cudaGetErrorString(code));
    return 0;
}

// Sets *err and the code for a call about GPU `ordinal` that failed.
static int fail(int ordinal, cudaError_t code, const char *what, msgl_err *err)
{
    (void)cudaGetLastError();
    return msgl__err_set(err, MSGL_EDEVICE, "cuda:%d: %s: %s", ordinal, what,
                         cudaGetErrorString(code));
}

int msgl__cuda_props(int ordinal, msgl_cuda_props *out, msgl_err *err)
{
    cudaDeviceProp p;
    cudaError_t code = cudaSetDevice(ordinal);
    if (code == cudaSuccess) code = cudaGetDeviceProperties(&p, ordinal);
    if (code != cudaSuccess) return fail(ordinal, code, "cannot be used", err);
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1, p.name);
    out->capability = p.major * 10 + p.minor;
    out->sm_count = p.multiProcessorCount;
    out->l2_bytes = (size_t)p.l2CacheSize;
    code = cudaMemGetInfo(&out->free_bytes, &out->total_bytes);
    if (code != cudaSuccess) return fail(ordinal, code, "memory", err);
    int driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    out->driver = driver;
    out->runtime = runtime;
    return 0;
}

static int open_stream(msgl_cuda_device *d, msgl_err *err)
{
    cudaError_t code = cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking);
    for (int i = 0; i < MSGL_DEVICE_MAX_EVENTS && code == cudaSuccess; i++) {
        code = cudaEventCreateWithFlags(&d->events[i], cudaEventDisableTiming);
    }
    return code == cudaSuccess ? 0 : fail(d->ordinal, code, "stream", err);
}

int msgl__cuda_device_open(int ordinal, bool deterministic, const char *cache_dir,
                           msgl_device **out, msgl_cuda_props *props, msgl_err *err)
{
    msgl_cuda_props p;
    int code = msgl__cuda_props(ordinal, &p, err);
    if (code != 0) return code;
    if (props != NULL) *props = p;
    if (p.capability < 80) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "cuda:%d is a %s of compute capability %d.%d; 8.0 or newer is needed",
                             ordinal, p.name, p.capability / 10, p.capability % 10);
    }
    msgl_cuda_device *d = (msgl_cuda_device *)msgl__calloc(1, sizeof *d);
    if (d != NULL) d->mapped = (msgl_cuda_mapped *)msgl__calloc(1, sizeof *d->mapped);
    if (d == NULL || d->mapped == NULL) {
        msgl__free(d);
        return msgl__err_set(err, MSGL_ENOMEM, "cuda:%d: out of memory", ordinal);
    }
    d->base.ops = &CUDA_OPS;
    d->base.capability = p.capability;
    d->ordinal = ordinal;
    d->sm_count = p.sm_count;
    d->l2_bytes = p.l2_bytes;
    d->deterministic = deterministic;
    code = open_stream(d, err);
    if (code == 0) code = msgl__cuda_copies_create(d, err);
    if (code == 0) code = msgl__cuda_blas_create(d, p.name, cache_dir, err);
    if (code != 0) {
        cuda_destroy(&d->base);
        return code;
    }
    *out = &d->base;
    return 0;
}

void *msgl__cuda_device_stream(msgl_device *d)
{
    return ((msgl_cuda_device *)d)->stream;
}

size_t msgl__cuda_device_l2_bytes(const msgl_device *d)
{
    return ((const msgl_cuda_device *)d)->l2_bytes;
}
