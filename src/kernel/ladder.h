// SPDX-License-Identifier: Apache-2.0
//
// The ladder: the ISA levels of the architecture that is built for, lowest first. Each architecture
// brings one (x86/init.c; ref/init.c where there is plain C alone), and the build takes one of
// them.
#ifndef MSGL_KERNEL_LADDER_H
#define MSGL_KERNEL_LADDER_H

#include <stdint.h>

#include "kernel/kernel.h"

// Runs `loops` rounds of independent multiply-adds on registers; returns the operations of a round.
typedef double (*msgl_limits_fn)(long loops);

// One level. Everything but the name may be missing (0 or NULL), which means: as the level below.
typedef struct msgl_cpu_level_desc {
    const char *name; // as MINISGL_CPU has it
    uint32_t needs;   // flags that it needs besides those of the levels below; the bits are the
                      // architecture's own
    // Each puts this level's functions over what the levels below have left in the table.
    void (*gemm)(msgl_gemm_kernels *k);
    void (*attn)(msgl_attn_kernels *k);
    void (*ops)(msgl_kernels *k); // norm, rope, act, moe, sample, delta, conv, ssm
    struct {
        msgl_limits_fn f32, bf16, int8; // of kernel/limits.h
    } limits;
} msgl_cpu_level_desc;

typedef struct msgl_cpu_ladder {
    const msgl_cpu_level_desc *levels; // [count], by msgl_cpu_level: the first one is plain C
    int count;                         // 1 to MSGL_CPU_MAX_LEVELS
    uint32_t (*flags)(void);           // what this machine has; NULL: nothing that a level needs
} msgl_cpu_ladder;

extern const msgl_cpu_ladder msgl__cpu_ladder;

// Plain C, in ref/: every function that a CPU has.
void msgl__gemm_init_ref(msgl_gemm_kernels *k);
void msgl__attn_init_ref(msgl_attn_kernels *k);
void msgl__ops_init_ref(msgl_kernels *k);

// What every ladder begins with.
#define MSGL_CPU_LEVEL_REF                                                                         \
    {                                                                                              \
        .name = "ref", .gemm = msgl__gemm_init_ref, .attn = msgl__attn_init_ref,                   \
        .ops = msgl__ops_init_ref                                                                  \
    }

#endif
