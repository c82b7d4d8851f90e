// SPDX-License-Identifier: Apache-2.0
//
// A fixed team of threads for data-parallel loops. The caller is worker 0. Tasks are handed out one
// by one from a shared counter, so a core that is slow or taken away for a while does fewer of
// them; idle workers spin for some microseconds, then sleep, so a busy machine is not fought with
// spinning.
#ifndef MSGL_UTILS_THREADPOOL_H
#define MSGL_UTILS_THREADPOOL_H

#include "core/err.h"

typedef struct msgl_heartbeat msgl_heartbeat; // utils/heartbeat.h, whose atomics CUDA cannot read
typedef struct msgl_pool msgl_pool;

// num_threads >= 1, the caller included. MSGL_EINVAL, MSGL_ENOMEM, MSGL_EINTERNAL (thread
// creation).
int msgl__pool_create(int num_threads, msgl_pool **out, msgl_err *err);
void msgl__pool_destroy(msgl_pool *p);
int msgl__pool_threads(const msgl_pool *p);
// The caller's thread beats (MSGL_BEAT_COMPUTE) with every task that it takes. NULL: not at all.
void msgl__pool_set_heartbeat(msgl_pool *p, msgl_heartbeat *h);

// Runs fn(arg, task, worker) for every task in [0, num_tasks), each exactly once, and returns when
// all are done. worker is in [0, num_threads). Only one thread at a time may call this; no nesting.
// With one task or one thread everything runs in the caller. No heap, no locks on the fast path.
typedef void (*msgl_task_fn)(void *arg, int task, int worker);
void msgl__pool_run(msgl_pool *p, int num_tasks, msgl_task_fn fn, void *arg);

// Physical cores that this process may run on (hyper-threads of one core count once).
int msgl__physical_cores(void);

#endif
