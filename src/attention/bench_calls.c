// SPDX-License-Identifier: Apache-2.0
#include "attention/bench_calls.h"

#include <stdbool.h>
#include <string.h>

#include "core/mem.h"
#include "utils/clock.h"
#include "utils/random.h"
#include "utils/stats.h"

enum { MAX_SAMPLES = 4096, MIN_SAMPLES = 5, MIN_SAMPLES_GPU = 20, STRETCH = 1 << 20 };

static const double WARM_SECONDS_GPU = 0.02; // until its clocks are up

void *msgl__bench_take(msgl_device *d, size_t bytes)
{
    return d != NULL ? d->ops->alloc(d, bytes) : msgl__pages_alloc(bytes);
}

void msgl__bench_give(msgl_device *d, void *p, size_t bytes)
{
    if (p == NULL) return;
    if (d != NULL) {
        d->ops->free(d, p, bytes);
    } else {
        msgl__pages_free(p, bytes);
    }
}

int msgl__bench_wait(msgl_device *d, msgl_err *err)
{
    if (d == NULL) return 0;
    d->ops->record(d, 0);
    if (d->ops->wait(d, 0) == 0) return 0;
    return msgl__err_set(err, MSGL_EDEVICE, "%s", d->fault.text);
}

int msgl__bench_failed(const msgl_exec *x, int rc, msgl_err *err)
{
    const bool fault = x->device != NULL && x->device->fault.code != 0;
    return msgl__err_set(err, rc, "bench attn: %s",
                         fault ? x->device->fault.text : msgl__status_text(rc));
}

static void draw(void *p, msgl_dtype dtype, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        msgl__store_f32(p, dtype, i, 2 * msgl__random_unit(&seed) - 1);
    }
}

// A device draws no E4M3, and not every byte is a number there.
static int fill_from_host(msgl_device *d, void *p, msgl_dtype dtype, size_t n, uint64_t seed,
                          msgl_err *err)
{
    const size_t size = msgl__dtype_size(dtype), stretch = n < STRETCH ? n : STRETCH;
    void *drawn = msgl__reallocarray(NULL, stretch, size);
    if (drawn == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    draw(drawn, dtype, stretch, seed);
    for (size_t at = 0; at < n; at += stretch) {
        const size_t m = n - at < stretch ? n - at : stretch;
        d->ops->copy_in(d, (char *)p + at * size, drawn, m * size);
    }
    const int rc = msgl__bench_wait(d, err);
    msgl__free(drawn);
    return rc;
}

int msgl__bench_fill(msgl_device *d, void *p, msgl_dtype dtype, size_t n, uint64_t seed,
                     msgl_err *err)
{
    if (d != NULL && dtype == MSGL_E4M3) return fill_from_host(d, p, dtype, n, seed, err);
    if (d != NULL) {
        d->ops->fill_normal(d, p, dtype, n, seed, 1);
        return 0;
    }
    // A random stretch, repeated: drawing every element would take longer than the measurement.
    const size_t size = msgl__dtype_size(dtype), stretch = n < 65536 ? n : 65536;
    draw(p, dtype, stretch, seed);
    for (size_t at = stretch; at < n; at += stretch) {
        const size_t m = n - at < stretch ? n - at : stretch;
        memcpy((char *)p + at * size, p, m * size);
    }
    return 0;
}

static double time_ms(const msgl_bench_calls *c, int64_t call)
{
    msgl_device *d = c->exec->device;
    if (d != NULL) return d->ops->time_ms(d, c->run, c->ctx, call);
    const uint64_t t = msgl__now_ns();
    c->run(c->ctx, call);
    return (double)(msgl__now_ns() - t) * 1e-6;
}

static int sample(const msgl_bench_calls *c, double seconds, double *samples, double *ms)
{
    const bool gpu = c->exec->device != NULL;
    const int at_least = gpu ? MIN_SAMPLES_GPU : MIN_SAMPLES;
    const double warm = gpu ? WARM_SECONDS_GPU : 0;
    const uint64_t start = msgl__now_ns();
    int n = 0;
    for (int64_t call = 0; n < MAX_SAMPLES; call++) { // the first call warms up
        const double took = time_ms(c, call);
        const double so_far = (double)(msgl__now_ns() - start) * 1e-9;
        if (c->exec->status != 0) return c->exec->status;
        if (took < 0) return MSGL_EDEVICE;
        if (call > 0 && so_far > warm) samples[n++] = took;
        if (n >= at_least && so_far > warm + seconds) break;
        if (n >= 3 && so_far > warm + 5 * seconds)
            break; // far slower than what it is compared with
    }
    *ms = msgl__median(samples, (size_t)n);
    return 0;
}

int msgl__bench_time(const msgl_bench_calls *c, double seconds, double *ms, msgl_err *err)
{
    double *samples = msgl__calloc(MAX_SAMPLES, sizeof *samples);
    if (samples == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    const int rc = sample(c, seconds, samples, ms);
    msgl__free(samples);
    return rc == 0 ? 0 : msgl__bench_failed(c->exec, rc, err);
}

typedef struct captured {
    msgl_device *device;
    msgl_graph *graph;
} captured;

static void launch(void *ctx, int64_t arg)
{
    (void)arg;
    const captured *c = ctx;
    c->device->ops->graph_launch(c->device, c->graph);
}

int msgl__bench_graph(const msgl_bench_calls *c, int count, double seconds, double *ms,
                      msgl_err *err)
{
    captured g = {.device = c->exec->device};
    const msgl_device_ops *ops = g.device->ops;
    ops->graph_begin(g.device);
    for (int i = 0; i < count; i++) c->run(c->ctx, i);
    g.graph = ops->graph_end(g.device, err);
    if (g.graph == NULL) return MSGL_EDEVICE;
    const msgl_bench_calls launches = {.exec = c->exec, .run = launch, .ctx = &g};
    const int rc = msgl__bench_time(&launches, seconds, ms, err);
    *ms /= count;
    ops->graph_destroy(g.device, g.graph);
    return rc;
}
