// SPDX-License-Identifier: Apache-2.0
#include "compress_cpu.h"

#include "kernel/kernel.h"
#include "utils/threadpool.h"

typedef struct cpu {
    msgl_kernels k;
    msgl_exec x;
} cpu;

// False: there is no pool of threads.
static bool cpu_open(cpu *c)
{
    msgl_err err = {0};
    *c = (cpu){0};
    msgl__kernels_init_cpu(&c->k, MSGL_CPU_REF);
    return msgl__pool_create(1, &c->x.pool, &err) == 0;
}

static int cpu_close(cpu *c)
{
    msgl__pool_destroy(c->x.pool);
    return c->x.status;
}

int rotate_on_cpu(const msgl_pair_rope_call *c)
{
    static cpu u;
    if (!cpu_open(&u)) return MSGL_ENOMEM;
    u.k.compress.rotate(&u.x, c);
    return cpu_close(&u);
}

int store_rows_on_cpu(const msgl_store_rows_call *c)
{
    static cpu u;
    if (!cpu_open(&u)) return MSGL_ENOMEM;
    u.k.compress.store(&u.x, c);
    return cpu_close(&u);
}

int compress_on_cpu(const msgl_compress_call *c)
{
    static cpu u;
    if (!cpu_open(&u)) return MSGL_ENOMEM;
    u.k.compress.make(&u.x, c);
    return cpu_close(&u);
}

int hyper_on_cpu(const msgl_hyper *h, const float *in, int32_t rows, float *mix, float *out,
                 float *result)
{
    static cpu u;
    if (!cpu_open(&u)) return MSGL_ENOMEM;
    if (mix != NULL) {
        u.k.hyper.open(&u.x, h, in, rows, mix, out, result);
    } else {
        u.k.hyper.head(&u.x, h, in, rows, out);
    }
    return cpu_close(&u);
}

int hyper_close_on_cpu(const msgl_hyper *h, const float *mix, const float *block, int32_t rows,
                       float *streams)
{
    static cpu u;
    if (!cpu_open(&u)) return MSGL_ENOMEM;
    u.k.hyper.close(&u.x, h, mix, block, rows, streams);
    return cpu_close(&u);
}
