// SPDX-License-Identifier: Apache-2.0
#include "utils/thread.h"

#include <signal.h>
#include <time.h>

int msgl__thread_start(pthread_t *out, void *(*run)(void *arg), void *arg)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); // which the thread inherits
    const int rc = pthread_create(out, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

void msgl__cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

int msgl__cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, uint64_t ns)
{
    if (ns == UINT64_MAX) return pthread_cond_wait(c, lock);
    const struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u),
                               .tv_nsec = (long)(ns % 1000000000u)};
    return pthread_cond_timedwait(c, lock, &t);
}
