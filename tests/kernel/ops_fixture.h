// SPDX-License-Identifier: Apache-2.0
//
// What tests of the CPU's row kernels share: a table of kernels for every level of this machine,
// two threads, scratch, and random input.
#ifndef MSGL_TESTS_KERNEL_OPS_FIXTURE_H
#define MSGL_TESTS_KERNEL_OPS_FIXTURE_H

#include <stdlib.h>

#include "core/attributes.h"
#include "kernel/kernel.h"
#include "utils/random.h"

struct fixture {
    msgl_cpu_level top;
    msgl_kernels kernels[MSGL_CPU_MAX_LEVELS];
    msgl_pool *pool;
    msgl_arena arena;
    msgl_exec exec;
    uint64_t rng;
};

static inline float rnd(struct fixture *f, float scale) // uniform in [-scale, scale]
{
    return (2 * msgl__random_unit(&f->rng) - 1) * scale;
}

static inline int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->top = msgl__cpu_level_detect();
    for (int level = 0; level <= f->top; level++) {
        msgl__kernels_init_cpu(&f->kernels[level], level);
    }
    msgl_err err;
    if (msgl__pool_create(2, &f->pool, &err) != 0) return -1;
    const size_t bytes = 64 << 20;
    msgl__arena_init(&f->arena, msgl__pages_alloc(bytes), bytes);
    f->exec = (msgl_exec){.pool = f->pool, .scratch = &f->arena};
    f->rng = 7;
    *state = f;
    return 0;
}

static inline int teardown(void **state)
{
    struct fixture *f = *state;
    msgl__pool_destroy(f->pool);
    msgl__pages_free(f->arena.base, f->arena.size);
    free(f);
    return 0;
}

// Runs what follows for each level; the caller compares with its oracle and with the first level's
// bits.
#define FOR_LEVELS(fix, k)                                                                         \
    for (const msgl_kernels *k = (fix)->kernels; k <= &(fix)->kernels[(fix)->top]; k++)

static inline void fill(struct fixture *f, float *p, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) p[i] = rnd(f, scale);
}

#endif
