// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_UTILS_THREAD_H
#define MSGL_UTILS_THREAD_H

#include <pthread.h>
#include <stdint.h>

// Starts a thread that takes no signals: they are the business of the program's own threads. 0, or
// an errno.
int msgl__thread_start(pthread_t *out, void *(*run)(void *arg), void *arg);

// A condition whose timed waits go by msgl__now_ns.
void msgl__cond_init(pthread_cond_t *c);
// Waits for a signal until then (UINT64_MAX: as long as it takes). 0, or ETIMEDOUT.
int msgl__cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, uint64_t ns);

#endif
