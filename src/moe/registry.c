// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "core/err.h"
#include "moe/backends.h"

static const msgl_moe_desc *const BACKENDS[] = {
    &msgl__moe_grouped,
};

int msgl__moe_select(const char *name, const msgl_moe_desc **out, msgl_err *err)
{
    char known[128] = "auto";
    for (size_t i = 0; i < MSGL_COUNT(BACKENDS); i++) {
        if (name == NULL || strcmp(name, "auto") == 0 || strcmp(name, BACKENDS[i]->name) == 0) {
            *out = BACKENDS[i];
            return 0;
        }
        const size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, ", %s", BACKENDS[i]->name);
    }
    return msgl__err_set(err, MSGL_EINVAL, "--moe-backend: found \"%.40s\", allowed %s", name,
                         known);
}
