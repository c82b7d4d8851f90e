// SPDX-License-Identifier: Apache-2.0
//
// The ladder of an architecture for which there is nothing but plain C.
#include "kernel/ladder.h"

static const msgl_cpu_level_desc LEVELS[] = {MSGL_CPU_LEVEL_REF};

const msgl_cpu_ladder msgl__cpu_ladder = {.levels = LEVELS, .count = 1};
