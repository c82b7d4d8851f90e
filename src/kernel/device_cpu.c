// SPDX-License-Identifier: Apache-2.0
//
// The CPU as a device: a thread takes work from a ring, in order. Both sides look at an atomic for
// a moment before they sleep, so that back-to-back steps cost no system call, and an idle engine
// costs no CPU.
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "kernel/device.h"
#include "utils/clock.h"

enum { RING = 256 }; // pieces of work; more than a scheduler submits per step

typedef struct work {
    msgl_work_fn fn; // NULL: end of the thread
    void *ctx;
    int64_t arg;
} work;

typedef struct cpu_device {
    msgl_device base;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t queued, taken, reached;
    work ring[RING];
    atomic_uint head, tail; // taken, queued: head == tail when empty
    atomic_int done[MSGL_DEVICE_MAX_EVENTS];
} cpu_device;

// How long a look at an atomic may take before sleeping: about what waking up costs.
static const uint64_t SPIN_NS = 20000;

static bool queue_empty(cpu_device *d)
{
    return atomic_load_explicit(&d->head, memory_order_relaxed) ==
           atomic_load_explicit(&d->tail, memory_order_acquire);
}

static void *run_thread(void *arg)
{
    cpu_device *d = arg;
    pthread_setname_np(pthread_self(), "msgl-engine"); // any other's is a file to write
    for (;;) {
        for (const uint64_t end = msgl__now_ns() + SPIN_NS;
             queue_empty(d) && msgl__now_ns() < end;) {
            for (int i = 0; i < 16; i++) MSGL_CPU_RELAX();
        }
        pthread_mutex_lock(&d->lock);
        while (queue_empty(d)) pthread_cond_wait(&d->queued, &d->lock);
        const unsigned head = atomic_load_explicit(&d->head, memory_order_relaxed);
        const work w = d->ring[head % RING];
        atomic_store_explicit(&d->head, head + 1, memory_order_release);
        pthread_cond_signal(&d->taken);
        pthread_mutex_unlock(&d->lock);
        if (w.fn == NULL) return NULL;
        w.fn(w.ctx, w.arg);
    }
}

static void cpu_submit(msgl_device *base, msgl_work_fn fn, void *ctx, int64_t arg)
{
    cpu_device *d = (cpu_device *)base;
    pthread_mutex_lock(&d->lock);
    unsigned tail = atomic_load_explicit(&d->tail, memory_order_relaxed);
    while (tail - atomic_load_explicit(&d->head, memory_order_acquire) == RING) {
        pthread_cond_wait(&d->taken, &d->lock);
    }
    d->ring[tail % RING] = (work){.fn = fn, .ctx = ctx, .arg = arg};
    atomic_store_explicit(&d->tail, tail + 1, memory_order_release);
    pthread_cond_signal(&d->queued);
    pthread_mutex_unlock(&d->lock);
}

static void *cpu_alloc(msgl_device *d, size_t bytes)
{
    (void)d;
    return msgl__pages_alloc(bytes);
}

static void cpu_free(msgl_device *d, void *p, size_t bytes)
{
    (void)d;
    msgl__pages_free(p, bytes);
}

static void cpu_discard(msgl_device *d, void *p, size_t bytes)
{
    (void)d;
    (void)madvise(p, bytes, MADV_DONTNEED); // pages that are used again are zeroed
}

static void cpu_copy(msgl_device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    if (bytes > 0) memcpy(dst, src, bytes);
}

static void cpu_arm(msgl_device *base, int32_t event)
{
    atomic_store_explicit(&((cpu_device *)base)->done[event], 0, memory_order_relaxed);
}

static void cpu_record(msgl_device *base, int32_t event)
{
    cpu_device *d = (cpu_device *)base;
    pthread_mutex_lock(&d->lock);
    atomic_store_explicit(&d->done[event], 1, memory_order_release);
    pthread_cond_broadcast(&d->reached);
    pthread_mutex_unlock(&d->lock);
}

static int cpu_wait(msgl_device *base, int32_t event)
{
    // No spinning: the cores belong to the workers while a step runs.
    cpu_device *d = (cpu_device *)base;
    if (atomic_load_explicit(&d->done[event], memory_order_acquire)) return 0;
    pthread_mutex_lock(&d->lock);
    while (!atomic_load_explicit(&d->done[event], memory_order_acquire)) {
        pthread_cond_wait(&d->reached, &d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    return 0;
}

static void cpu_gather_tokens(msgl_device *d, const int32_t *pool, const int32_t *index, int32_t n,
                              int32_t *out, size_t stride)
{
    (void)d;
    for (int32_t i = 0; i < n; i++) out[(size_t)i * stride] = pool[index[i]];
}

static void cpu_map_tokens(msgl_device *d, int32_t *pool, const int32_t *index, int32_t n,
                           const int32_t *ids, int32_t num_ids)
{
    (void)d;
    for (int32_t i = 0; i < n; i++) {
        int32_t *token = &pool[index[i]];
        if (*token >= 0 && *token < num_ids) *token = ids[*token];
    }
}

static void cpu_take_tokens(msgl_device *d, const msgl_step_tokens *s, int32_t *ids)
{
    (void)d;
    for (int32_t t = 0; t < s->count; t++) {
        ids[t] = s->pool[s->index[t] + s->shift];
        msgl__step_put(s, t, s->index[t]);
    }
}

static void cpu_destroy(msgl_device *base)
{
    cpu_device *d = (cpu_device *)base;
    cpu_submit(base, NULL, NULL, 0);
    pthread_join(d->thread, NULL);
    pthread_cond_destroy(&d->reached);
    pthread_cond_destroy(&d->taken);
    pthread_cond_destroy(&d->queued);
    pthread_mutex_destroy(&d->lock);
    msgl__free(d);
}

static const msgl_device_ops CPU_OPS = {
    .alloc = cpu_alloc,
    .free = cpu_free,
    .discard = cpu_discard,
    .host_alloc = cpu_alloc,
    .host_free = cpu_free,
    .submit = cpu_submit,
    .copy_in = cpu_copy,
    .copy_out = cpu_copy,
    .copy = cpu_copy,
    .record = cpu_record,
    .arm = cpu_arm,
    .wait = cpu_wait,
    .gather_tokens = cpu_gather_tokens,
    .map_tokens = cpu_map_tokens,
    .take_tokens = cpu_take_tokens,
    .destroy = cpu_destroy,
};

int msgl__device_cpu_create(msgl_device **out, msgl_err *err)
{
    cpu_device *d = msgl__calloc(1, sizeof *d);
    if (d == NULL) return msgl__err_set(err, MSGL_ENOMEM, "engine: out of memory");
    d->base = (msgl_device){.ops = &CPU_OPS, .on_host = true};
    for (int i = 0; i < MSGL_DEVICE_MAX_EVENTS; i++) atomic_init(&d->done[i], 1);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->queued, NULL);
    pthread_cond_init(&d->taken, NULL);
    pthread_cond_init(&d->reached, NULL);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); // signals belong to the program's own threads
    const int rc = pthread_create(&d->thread, NULL, run_thread, d);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0) {
        msgl__free(d);
        return msgl__err_set(err, MSGL_EINTERNAL, "engine: cannot start its thread");
    }
    *out = &d->base;
    return 0;
}
