// SPDX-License-Identifier: Apache-2.0
//
// Signs of life of one process, in memory that another one looks at: counters that go on as long as
// the work does. Each has one writer, so that a beat is one store without a lock, cheap enough for
// every task of a long computation.
#ifndef MSGL_UTILS_HEARTBEAT_H
#define MSGL_UTILS_HEARTBEAT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include "core/err.h"

typedef enum msgl_beater { MSGL_BEAT_SCHEDULER, MSGL_BEAT_COMPUTE, MSGL_NUM_BEATERS } msgl_beater;

typedef struct msgl_heartbeat {
    _Atomic uint64_t beats[MSGL_NUM_BEATERS];
    // Of an engine of several ranks: its watch counts, whatever the engine does; 0: there is none.
    _Atomic uint64_t alive;
    // Steps that the scheduler has begun and ended, and what the one under way is expected to take;
    // 0: nobody knows.
    _Atomic uint64_t begun, ended, expected_ns;
    // Counts while the scheduler waits for the front to take what it sends: no time of a step's.
    _Atomic uint64_t waits;
} msgl_heartbeat;

// Shared with the processes that are forked from here on.
static inline int msgl__heartbeat_create(msgl_heartbeat **out, msgl_err *err)
{
    void *p = mmap(NULL, sizeof **out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return msgl__err_set(err, MSGL_ENOMEM, "no memory to share");
    *out = p; // zero
    return 0;
}

static inline void msgl__heartbeat_destroy(msgl_heartbeat *h)
{
    if (h != NULL) munmap(h, sizeof *h);
}

// h NULL: nobody looks. Only one thread may beat as `who`.
static inline void msgl__beat(msgl_heartbeat *h, msgl_beater who)
{
    if (h == NULL) return;
    const uint64_t n = atomic_load_explicit(&h->beats[who], memory_order_relaxed);
    atomic_store_explicit(&h->beats[who], n + 1, memory_order_relaxed);
}

static inline void msgl__heartbeat_begin(msgl_heartbeat *h, uint64_t expected_ns)
{
    if (h == NULL) return;
    atomic_store_explicit(&h->expected_ns, expected_ns, memory_order_relaxed);
    const uint64_t n = atomic_load_explicit(&h->begun, memory_order_relaxed);
    atomic_store_explicit(&h->begun, n + 1, memory_order_release);
}

// Whatever has begun.
static inline void msgl__heartbeat_end(msgl_heartbeat *h)
{
    if (h == NULL) return;
    const uint64_t n = atomic_load_explicit(&h->begun, memory_order_relaxed);
    atomic_store_explicit(&h->ended, n, memory_order_release);
}

// Whether a step is under way.
static inline bool msgl__heartbeat_in_step(const msgl_heartbeat *h)
{
    // `ended` first: with `begun` first, a step that begins and ends between would look like one.
    const uint64_t ended = atomic_load_explicit(&h->ended, memory_order_acquire);
    return atomic_load_explicit(&h->begun, memory_order_acquire) != ended;
}

// It waits for the front, and lives.
static inline void msgl__heartbeat_wait(msgl_heartbeat *h)
{
    if (h == NULL) return;
    const uint64_t n = atomic_load_explicit(&h->waits, memory_order_relaxed);
    atomic_store_explicit(&h->waits, n + 1, memory_order_relaxed);
    msgl__beat(h, MSGL_BEAT_SCHEDULER);
}

// For another engine: no process beats any more.
static inline void msgl__heartbeat_reset(msgl_heartbeat *h)
{
    atomic_store(&h->alive, 0);
    atomic_store(&h->ended, atomic_load(&h->begun));
}

// Differs from an earlier result when there was a beat between.
static inline uint64_t msgl__beats(const msgl_heartbeat *h)
{
    uint64_t sum = 0;
    for (int i = 0; i < MSGL_NUM_BEATERS; i++) {
        sum += atomic_load_explicit(&h->beats[i], memory_order_relaxed);
    }
    return sum;
}

#endif
