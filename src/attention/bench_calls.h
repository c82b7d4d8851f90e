// SPDX-License-Identifier: Apache-2.0
//
// What benchmarks of single calls share: memory where the calls run, random content for it, and
// the time of a call, launched or inside a captured graph.
#ifndef MSGL_ATTENTION_BENCH_CALLS_H
#define MSGL_ATTENTION_BENCH_CALLS_H

#include "core/err.h"
#include "kernel/device.h"
#include "kernel/exec.h"

// So many bytes are gone through by successive calls, so that the caches do not help.
#define MSGL_BENCH_BYTES ((size_t)512 << 20)

// Memory of the device, NULL: of the host. take returns NULL if there is none; give takes NULL.
void *msgl__bench_take(msgl_device *d, size_t bytes);
void msgl__bench_give(msgl_device *d, void *p, size_t bytes);
// n random elements of deviation about 1, all finite. Returns 0, MSGL_ENOMEM or MSGL_EDEVICE.
int msgl__bench_fill(msgl_device *d, void *p, msgl_dtype dtype, size_t n, uint64_t seed,
                     msgl_err *err);
// Waits for what was copied to the device. MSGL_EDEVICE: it failed.
int msgl__bench_wait(msgl_device *d, msgl_err *err);

// Sets *err to what a call left in the exec's status, or to the device's fault; returns rc.
int msgl__bench_failed(const msgl_exec *x, int rc, msgl_err *err);

// run(ctx, i) issues call i, i = 0, 1 ...
typedef struct msgl_bench_calls {
    msgl_exec *exec; // its status is looked at behind every call
    msgl_work_fn run;
    void *ctx;
} msgl_bench_calls;

// Median milliseconds of a call, for about `seconds`.
int msgl__bench_time(const msgl_bench_calls *c, double seconds, double *ms, msgl_err *err);
// The same of one of `count` calls that are captured as a graph: what it costs where launching is
// free. Only of a device with graphs.
int msgl__bench_graph(const msgl_bench_calls *c, int count, double seconds, double *ms,
                      msgl_err *err);

#endif
