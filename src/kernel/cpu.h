// SPDX-License-Identifier: Apache-2.0
//
// ISA levels of the CPU kernels and the question which of them this machine can run.
#ifndef MSGL_KERNEL_CPU_H
#define MSGL_KERNEL_CPU_H

#include "core/err.h"

// A level's place in the ladder of the architecture that is built for (kernel/ladder.h): 0 is plain
// C everywhere, and each level includes those before it. On x86 4 is avx512bf16.
typedef int msgl_cpu_level;
enum {
    MSGL_CPU_REF = 0,
    MSGL_CPU_MAX_LEVELS = 8, // most levels of any architecture
};

int msgl__cpu_levels(void); // how many the ladder has, whatever the machine has
// As MINISGL_CPU and reports have it: "ref" for 0. `level` is below msgl__cpu_levels().
const char *msgl__cpu_level_name(msgl_cpu_level level);
msgl_cpu_level msgl__cpu_level_detect(void); // the highest that this machine can run
// The level to use: `name` (from MINISGL_CPU; NULL or "" means detect) capped by what the machine
// has. MSGL_EINVAL lists the names; MSGL_EUNSUPPORTED when the machine lacks the level.
int msgl__cpu_level_select(const char *name, msgl_cpu_level *out, msgl_err *err);

#endif
