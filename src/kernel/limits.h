// SPDX-License-Identifier: Apache-2.0
//
// What this machine can do at most, measured: the figures that kernels are judged by.
#ifndef MSGL_KERNEL_LIMITS_H
#define MSGL_KERNEL_LIMITS_H

#include "kernel/cpu.h"
#include "utils/threadpool.h"

struct msgl_limits {
    double read_gb_s; // sequential reads of more memory than caches hold, huge pages, all threads
    // Multiply-adds on registers, all threads, 2 operations each; 0: not measured. bf16: the
    // level's best instruction for bf16 products (below AVX-512-BF16 that is the f32 one). int8:
    // the ones that products of int8 weights use.
    double f32_gflop_s[MSGL_CPU_MAX_LEVELS], bf16_gflop_s[MSGL_CPU_MAX_LEVELS];
    double int8_gop_s[MSGL_CPU_MAX_LEVELS];
};

// Measures for about `seconds` in total, levels up to `level`. Returns MSGL_ENOMEM when there is
// no memory to read from; the rest is filled in then too.
int msgl__measure_limits(msgl_pool *pool, msgl_cpu_level level, struct msgl_limits *out,
                         double seconds);

#endif
