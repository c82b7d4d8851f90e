// SPDX-License-Identifier: Apache-2.0
#include "kernel/cpu.h"

#include <stdio.h>
#include <string.h>

#include "kernel/ladder.h"

int msgl__cpu_levels(void)
{
    return msgl__cpu_ladder.count;
}

const char *msgl__cpu_level_name(msgl_cpu_level level)
{
    return msgl__cpu_ladder.levels[level].name;
}

msgl_cpu_level msgl__cpu_level_detect(void)
{
    const msgl_cpu_ladder *ladder = &msgl__cpu_ladder;
    const uint32_t have = ladder->flags != NULL ? ladder->flags() : 0;
    msgl_cpu_level top = MSGL_CPU_REF;
    while (top + 1 < ladder->count && (ladder->levels[top + 1].needs & ~have) == 0) top++;
    return top;
}

// All names, lowest level first: "ref, avx2, avx512".
static void list_names(char *out, size_t size)
{
    size_t at = 0;
    for (int l = 0; l < msgl__cpu_ladder.count && at < size; l++) {
        at += (size_t)snprintf(out + at, size - at, "%s%s", l > 0 ? ", " : "",
                               msgl__cpu_level_name(l));
    }
}

int msgl__cpu_level_select(const char *name, msgl_cpu_level *out, msgl_err *err)
{
    const msgl_cpu_level have = msgl__cpu_level_detect();
    if (name == NULL || name[0] == '\0') {
        *out = have;
        return 0;
    }
    for (int l = 0; l < msgl__cpu_ladder.count; l++) {
        if (strcmp(name, msgl__cpu_level_name(l)) != 0) continue;
        if (l > have) {
            return msgl__err_set(err, MSGL_EUNSUPPORTED,
                                 "CPU level %s is not available here; this machine has up to %s",
                                 name, msgl__cpu_level_name(have));
        }
        *out = l;
        return 0;
    }
    char names[MSGL_CPU_MAX_LEVELS * 16];
    list_names(names, sizeof names);
    return msgl__err_set(err, MSGL_EINVAL, "unknown CPU level %s; allowed: %s (or empty)", name,
                         names);
}
