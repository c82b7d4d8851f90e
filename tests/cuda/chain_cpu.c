// SPDX-License-Identifier: Apache-2.0
#include "chain_cpu.h"

#include "core/mem.h"
#include "kernel/kernel.h"

int chain_on_cpu(const msgl_sample_call *c)
{
    static msgl_kernels k;
    const size_t bytes = (size_t)c->vocab * 8 + 4096;
    msgl_arena arena;
    msgl_exec x = {.scratch = &arena};
    msgl__arena_init(&arena, msgl__pages_alloc(bytes), bytes);
    if (arena.base == NULL) return MSGL_ENOMEM;
    msgl__kernels_init_cpu(&k, msgl__cpu_level_detect());
    k.sample.chain(&x, c);
    msgl__pages_free(arena.base, bytes);
    return x.status;
}
