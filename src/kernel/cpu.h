// SPDX-License-Identifier: Apache-2.0
//
// ISA levels of the CPU kernels and the question which of them this machine can run.
#ifndef MSGL_KERNEL_CPU_H
#define MSGL_KERNEL_CPU_H

#include "core/err.h"

// Usable bundles, not CPUID bits: each includes those before it and the operating system's support
// for its registers.
typedef enum msgl_cpu_level {
    MSGL_CPU_REF,        // plain C
    MSGL_CPU_AVX2,       // AVX2, FMA, F16C
    MSGL_CPU_AVX512,     // AVX-512 F, BW, DQ, VL, CD
    MSGL_CPU_AVX512VNNI, // + AVX512_VNNI
    MSGL_CPU_AVX512BF16, // + AVX512_BF16
    MSGL_CPU_AMX,        // + AVX512_FP16, AMX-TILE, AMX-BF16, permission granted by the kernel
    MSGL_CPU_LEVELS,
} msgl_cpu_level;

// "ref", "avx2", "avx512", "avx512vnni", "avx512bf16", "amx"
const char *msgl__cpu_level_name(msgl_cpu_level level);
msgl_cpu_level msgl__cpu_level_detect(void); // what this machine can run
// The level to use: `name` (from MINISGL_CPU; NULL or "" means detect) capped by what the machine
// has. MSGL_EINVAL lists the names; MSGL_EUNSUPPORTED when the machine lacks the level.
int msgl__cpu_level_select(const char *name, msgl_cpu_level *out, msgl_err *err);

#endif
