// SPDX-License-Identifier: Apache-2.0
#include "utils/threadpool.h"

#include <pthread.h>
#include <sched.h>

#include "core/mem.h"

struct msgl_pool {
    int num_threads;
};

int msgl__pool_create(int num_threads, msgl_pool **out, msgl_err *err)
{
    if (num_threads < 1) return msgl__err_set(err, MSGL_EINVAL, "thread count must be 1 or more");
    msgl_pool *p = msgl__calloc(1, sizeof *p);
    if (p == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    p->num_threads = 1;
    *out = p;
    return 0;
}

void msgl__pool_destroy(msgl_pool *p)
{
    msgl__free(p);
}

int msgl__pool_threads(const msgl_pool *p)
{
    return p->num_threads;
}

void msgl__pool_run(msgl_pool *p, int num_tasks, msgl_task_fn fn, void *arg)
{
    (void)p;
    for (int i = 0; i < num_tasks; i++) fn(arg, i, 0);
}

int msgl__physical_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}
