// SPDX-License-Identifier: Apache-2.0
//
// The kernel table: one struct of function pointers per family, filled once at start. The plain C
// reference of every family goes in first; each ISA level that the machine has overrides upward.
#ifndef MSGL_KERNEL_KERNEL_H
#define MSGL_KERNEL_KERNEL_H

#include "kernel/attn.h"
#include "kernel/gemm.h"
#include "kernel/ops.h"

// Usable bundles, not CPUID bits: each includes those before it and the operating system's support
// for its registers.
typedef enum msgl_cpu_level {
    MSGL_CPU_REF,        // plain C
    MSGL_CPU_AVX2,       // AVX2, FMA, F16C
    MSGL_CPU_AVX512,     // AVX-512 F, BW, DQ, VL, CD
    MSGL_CPU_AVX512BF16, // + AVX512_BF16, AVX512_VNNI
    MSGL_CPU_AMX,        // + AMX-TILE, AMX-BF16, permission granted by the kernel
    MSGL_CPU_LEVELS,
} msgl_cpu_level;

const char *
msgl__cpu_level_name(msgl_cpu_level level);  // "ref", "avx2", "avx512", "avx512bf16", "amx"
msgl_cpu_level msgl__cpu_level_detect(void); // what this machine can run
// The level to use: `name` (from MINISGL_CPU; NULL or "" means detect) capped by what the machine
// has. MSGL_EINVAL lists the names; MSGL_EUNSUPPORTED when the machine lacks the level.
int msgl__cpu_level_select(const char *name, msgl_cpu_level *out, msgl_err *err);

typedef struct msgl_kernels {
    msgl_cpu_level level;
    msgl_gemm_kernels gemm;
    msgl_attn_kernels attn;
    msgl_norm_kernels norm;
    msgl_rope_kernels rope;
    msgl_act_kernels act;
    msgl_moe_kernels moe;
    msgl_sample_kernels sample;
} msgl_kernels;

// Fills the table for the CPU at `level`, which the machine must have.
void msgl__kernels_init_cpu(msgl_kernels *k, msgl_cpu_level level);

// Family initialisers, called by the above: reference first, then upward to `level`.
void msgl__gemm_init(msgl_gemm_kernels *k, msgl_cpu_level level);
void msgl__attn_init(msgl_attn_kernels *k, msgl_cpu_level level);
void msgl__ops_init(msgl_kernels *k, msgl_cpu_level level);

#endif
