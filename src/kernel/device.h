// SPDX-License-Identifier: Apache-2.0
//
// The machine that an engine computes on: its memory, copies to and from it, its queue of work,
// events that tell when work is done, and captured graphs. The engine's code is written against
// device memory and an ordered queue; on the CPU the memory is the host's and the queue is a
// thread, on a GPU the queue is a stream and a plug-in implements the same functions.
#ifndef MSGL_KERNEL_DEVICE_H
#define MSGL_KERNEL_DEVICE_H

#include <stdbool.h>

#include "core/dtype.h"
#include "core/err.h"
#include "kernel/exec.h"
#include "kernel/step_tokens.h"

// A piece of work. It runs on the device's queue: kernels and copies that it issues take effect in
// the order of submission.
typedef void (*msgl_work_fn)(void *ctx, int64_t arg);

typedef struct msgl_graph msgl_graph; // captured work of a device

typedef struct msgl_device_ops {
    // Zeroed device memory, 64-byte aligned; NULL when there is none. Freed with the same size.
    void *(*alloc)(msgl_device *d, size_t bytes);
    void (*free)(msgl_device *d, void *p, size_t bytes);
    // Of an alloc's whole memory: gives it back to the system and keeps its addresses, which
    // captured graphs have; and takes memory for them again, zeroed. restore: false: there is none.
    // May be NULL: the device cannot.
    void (*discard)(msgl_device *d, void *p, size_t bytes);
    bool (*restore)(msgl_device *d, void *p, size_t bytes);
    // Zeroed host memory that copies may read or write while the host goes on.
    void *(*host_alloc)(msgl_device *d, size_t bytes);
    void (*host_free)(msgl_device *d, void *p, size_t bytes);
    // Bytes of device memory that can still be taken. Not asked of a device on the host.
    size_t (*available)(msgl_device *d);
    // Queues fn(ctx, arg). May block when very much is queued.
    void (*submit)(msgl_device *d, msgl_work_fn fn, void *ctx, int64_t arg);

    // From within work, in its order: copies, and marking an event as reached.
    void (*copy_in)(msgl_device *d, void *dst, const void *host_src, size_t bytes);
    void (*copy_out)(msgl_device *d, void *host_dst, const void *src, size_t bytes);
    void (*copy)(msgl_device *d, void *dst, const void *src, size_t bytes); // both device memory
    void (*record)(msgl_device *d, int32_t event);
    // From here to graph_launch, work issues nothing but copy_in: these are the graph's inputs,
    // which may cross to the device while it still does what came before, and are in their places
    // when the graph's kernels want them. Their places must not overlap. NULL where there are no
    // graphs.
    void (*inputs_begin)(msgl_device *d);
    // From the host: arms an event before the work that will record it is submitted; waits for it.
    // wait returns 0, or MSGL_EDEVICE when the device has failed: msgl_device.fault says how.
    void (*arm)(msgl_device *d, int32_t event);
    int (*wait)(msgl_device *d, int32_t event);

    // out[i * stride] = pool[index[i]] for i < n. All in device memory.
    void (*gather_tokens)(msgl_device *d, const int32_t *pool, const int32_t *index, int32_t n,
                          int32_t *out, size_t stride);
    // pool[index[i]] = ids[pool[index[i]]] for i < n, where that is in [0, num_ids).
    void (*map_tokens)(msgl_device *d, int32_t *pool, const int32_t *index, int32_t n,
                       const int32_t *ids, int32_t num_ids);
    // A step's tokens: their ids to ids[count], their pages and slots to where msgl_step_tokens
    // says.
    void (*take_tokens)(msgl_device *d, const msgl_step_tokens *tokens, int32_t *ids);
    // Normal values of mean 0 that depend on seed and place only, rounded to dtype: weights of a
    // model without a checkpoint. NULL: the host makes them.
    void (*fill_normal)(msgl_device *d, void *p, msgl_dtype dtype, size_t n, uint64_t seed,
                        float deviation);

    // From within work: what is issued between begin and end is recorded instead of done; launch
    // does it, with the same pointers. All NULL where there are no graphs. end returns NULL and
    // sets *err when something in between cannot be captured.
    void (*graph_begin)(msgl_device *d);
    msgl_graph *(*graph_end)(msgl_device *d, msgl_err *err);
    void (*graph_launch)(msgl_device *d, msgl_graph *g);
    void (*graph_destroy)(msgl_device *d, msgl_graph *g);

    // For benchmarks: milliseconds of fn(ctx, arg) on the otherwise idle device, from its start to
    // the end of what it issued; negative after a failure. NULL: work computes where it runs, and
    // a clock tells.
    double (*time_ms)(msgl_device *d, msgl_work_fn fn, void *ctx, int64_t arg);

    void (*destroy)(msgl_device *d); // after all work has been waited for
} msgl_device_ops;

struct msgl_device { // first member of every device's own struct
    const msgl_device_ops *ops;
    // Its memory is the host's, the threads of msgl_exec.pool do its work before a call returns,
    // and activations are f32. Else it has memory and a queue of its own, and activations have the
    // model's dtype.
    bool on_host;
    int32_t capability; // a number of its kind: of CUDA compute capability x 10; 0 on the CPU
    msgl_err fault;     // first failure of the device (code 0: none)
};

#define MSGL_DEVICE_MAX_EVENTS 160 // all reached at first

// device_cpu.c: the queue is one thread, which the kernels' pool sees as its worker 0.
int msgl__device_cpu_create(msgl_device **out, msgl_err *err);

#endif
