// SPDX-License-Identifier: Apache-2.0
//
// A captured step's inputs on their way to the device. Its kernels read them at fixed addresses,
// which the step before still uses; a plain copy therefore waits until that one has ended, and then
// the GPU waits for the copy. Here the bytes cross the bus early, as one copy on a stream of their
// own, into one of a few buffers, and the graph's first kernel moves them to their places.
#include "cuda/copies.cuh"

#include <string.h>

#include "cuda/device.cuh"
#include "cuda/device_api.h"

extern "C" {
#include "core/mem.h"
}

enum { HEADER_BYTES = MSGL_INPUT_MOVES * sizeof(msgl_input_move), MOVE_THREADS = 256 };

struct msgl_cuda_copies {
    cudaStream_t stream;
    cudaEvent_t arrived; // the newest buffer's bytes
    char *host, *memory; // the buffers, here and on the device
    unsigned long long *next;
    // Graphs launched with inputs; and so many of them are known to have ended.
    uint32_t sent, done;
    uint32_t at_event[MSGL_DEVICE_MAX_EVENTS]; // sent, when the event was recorded
    bool open;                                 // since begin:
    int count;
    size_t used;
    bool taken; // a kernel of this capture moves them
};

// For graphs without a kernel that does it on the way.
static __global__ void move_kernel(const msgl_inputs in)
{
    __shared__ uint32_t step;
    msgl__inputs_move(msgl__inputs_open(in, &step), (int)blockIdx.x);
}

static cudaError_t create(msgl_cuda_copies *c)
{
    const size_t bytes = (size_t)MSGL_INPUT_BUFFERS * MSGL_INPUT_BYTES;
    cudaError_t code = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
    if (code == cudaSuccess) code = cudaEventCreateWithFlags(&c->arrived, cudaEventDisableTiming);
    if (code == cudaSuccess) code = cudaHostAlloc((void **)&c->host, bytes, cudaHostAllocDefault);
    if (code == cudaSuccess) code = cudaMalloc((void **)&c->memory, bytes);
    if (code == cudaSuccess) code = cudaMalloc((void **)&c->next, sizeof *c->next);
    // The kernels read moves of buffers that were never filled, though they do not follow them.
    if (code == cudaSuccess) code = cudaMemsetAsync(c->memory, 0, bytes, c->stream);
    if (code == cudaSuccess) code = cudaMemsetAsync(c->next, 0, sizeof *c->next, c->stream);
    return code == cudaSuccess ? cudaStreamSynchronize(c->stream) : code;
}

int msgl__cuda_copies_create(msgl_cuda_device *d, msgl_err *err)
{
    d->copies = (msgl_cuda_copies *)msgl__calloc(1, sizeof *d->copies);
    const cudaError_t code = d->copies == NULL ? cudaErrorMemoryAllocation : create(d->copies);
    if (code == cudaSuccess) return 0;
    (void)cudaGetLastError();
    return msgl__err_set(err, code == cudaErrorMemoryAllocation ? MSGL_ENOMEM : MSGL_EDEVICE,
                         "cuda:%d: buffers for copies: %s", d->ordinal, cudaGetErrorString(code));
}

void msgl__cuda_copies_destroy(msgl_cuda_device *d)
{
    msgl_cuda_copies *c = d->copies;
    if (c == NULL) return;
    if (c->arrived != NULL) (void)cudaEventDestroy(c->arrived);
    (void)cudaFree(c->next);
    (void)cudaFree(c->memory);
    (void)cudaFreeHost(c->host);
    if (c->stream != NULL) (void)cudaStreamDestroy(c->stream);
    msgl__free(c);
    d->copies = NULL;
}

// The buffer of the next launch, as an offset.
static size_t buffer_at(const msgl_cuda_copies *c)
{
    return (size_t)(c->sent % MSGL_INPUT_BUFFERS) * MSGL_INPUT_BYTES;
}

// Keeps a failure.
static void try_call(msgl_cuda_device *d, cudaError_t code)
{
    if (code != cudaSuccess)
        msgl__cuda_fault(&d->base, code, "inputs of a graph", __FILE__, __LINE__);
}

void msgl__cuda_copies_begin(msgl_cuda_device *d)
{
    msgl_cuda_copies *c = d->copies;
    // Who waits for the results of his steps is never so far ahead.
    if (c->sent - c->done >= MSGL_INPUT_BUFFERS) {
        try_call(d, cudaStreamSynchronize(d->stream));
        c->done = c->sent;
    }
    c->open = true;
    c->count = 0;
    c->used = HEADER_BYTES;
    memset(c->host + buffer_at(c), 0, HEADER_BYTES);
}

bool msgl__cuda_copies_add(msgl_cuda_device *d, void *dst, const void *src, size_t bytes)
{
    msgl_cuda_copies *c = d->copies;
    const size_t vector = sizeof(uint4);
    if (!c->open || c->count == MSGL_INPUT_MOVES || bytes > MSGL_INPUT_BYTES - c->used ||
        bytes % vector != 0 || (uintptr_t)dst % vector != 0) {
        return false;
    }
    char *buffer = c->host + buffer_at(c);
    ((msgl_input_move *)buffer)[c->count++] =
        msgl_input_move{(char *)dst, (uint32_t)c->used, (uint32_t)(bytes / vector)};
    memcpy(buffer + c->used, src, bytes);
    c->used += bytes;
    return true;
}

void msgl__cuda_copies_send(msgl_cuda_device *d, bool by_graph)
{
    msgl_cuda_copies *c = d->copies;
    if (!c->open && by_graph) msgl__cuda_copies_begin(d); // it takes a buffer in any case
    if (!c->open) return;
    c->open = false;
    const size_t at = buffer_at(c);
    try_call(d, cudaMemcpyAsync(c->memory + at, c->host + at, c->used, cudaMemcpyHostToDevice,
                                c->stream));
    try_call(d, cudaEventRecord(c->arrived, c->stream));
    try_call(d, cudaStreamWaitEvent(d->stream, c->arrived, 0));
    c->sent++;
    if (by_graph) return;
    move_kernel<<<MSGL_INPUT_BLOCKS, MOVE_THREADS, 0, d->stream>>>(msgl_inputs{c->memory, c->next});
    try_call(d, cudaGetLastError());
}

void msgl__cuda_copies_recorded(msgl_cuda_device *d, int32_t event)
{
    d->copies->at_event[event] = d->copies->sent;
}

void msgl__cuda_copies_reached(msgl_cuda_device *d, int32_t event)
{
    msgl_cuda_copies *c = d->copies;
    if ((int32_t)(c->at_event[event] - c->done) > 0) c->done = c->at_event[event];
}

void msgl__cuda_copies_capture(msgl_cuda_device *d)
{
    d->copies->taken = false;
}

bool msgl__cuda_copies_captured(const msgl_cuda_device *d)
{
    return d->copies->taken;
}

msgl_inputs msgl__cuda_copies_take(msgl_cuda_device *d)
{
    msgl_cuda_copies *c = d->copies;
    if (!d->capturing || c->taken) return msgl_inputs{};
    c->taken = true;
    return msgl_inputs{c->memory, c->next};
}
