// SPDX-License-Identifier: Apache-2.0
#include "means_cpu.h"

#include "kernel/kernel.h"
#include "utils/threadpool.h"

int means_on_cpu(const msgl_index_blocks_call *c)
{
    static msgl_kernels k;
    msgl_pool *pool;
    msgl_err err = {0};
    const int code = msgl__pool_create(1, &pool, &err);
    if (code != 0) return code;
    msgl_exec x = {.pool = pool};
    msgl__kernels_init_cpu(&k, MSGL_CPU_REF);
    k.index.choose_means(&x, c);
    msgl__pool_destroy(pool);
    return x.status;
}
