// SPDX-License-Identifier: Apache-2.0
#include "index_cpu.h"

#include "kernel/kernel.h"
#include "utils/threadpool.h"

// One of the three.
static int run(const msgl_index_blocks_call *blocks, const msgl_index_blocks_call *means,
               const msgl_index_list_call *list)
{
    static msgl_kernels k;
    msgl_pool *pool;
    msgl_err err = {0};
    const int code = msgl__pool_create(1, &pool, &err);
    if (code != 0) return code;
    msgl_exec x = {.pool = pool};
    msgl__kernels_init_cpu(&k, MSGL_CPU_REF);
    if (blocks != NULL) k.index.choose_blocks(&x, blocks);
    if (means != NULL) k.index.choose_means(&x, means);
    if (list != NULL) k.index.list(&x, list);
    msgl__pool_destroy(pool);
    return x.status;
}

int blocks_on_cpu(const msgl_index_blocks_call *c)
{
    return run(c, NULL, NULL);
}

int means_on_cpu(const msgl_index_blocks_call *c)
{
    return run(NULL, c, NULL);
}

int list_on_cpu(const msgl_index_list_call *c)
{
    return run(NULL, NULL, c);
}
