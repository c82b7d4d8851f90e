// SPDX-License-Identifier: Apache-2.0
//
// The adapters that --lora-paths names.
#include <string.h>

#include "cli/common.h"
#include "core/err.h"
#include "core/mem.h"

int msgl__cli_loras(const msgl_args *a, msgl_lora_path out[MSGL_MAX_LIST], char **text,
                    msgl_err *err)
{
    size_t bytes = 1;
    for (int i = 0; i < a->loras.count; i++) bytes += strlen(a->loras.items[i]) + 1;
    char *at = *text = msgl__malloc(bytes);
    if (at == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    for (int i = 0; i < a->loras.count; i++) {
        const char *item = a->loras.items[i], *equals = strchr(item, '=');
        const size_t name = equals == NULL ? 0 : (size_t)(equals - item), all = strlen(item) + 1;
        if (name == 0 || name >= MSGL_MAX_LORA_NAME || equals[1] == '\0') {
            return msgl__err_set(err, MSGL_EINVAL,
                                 "--lora-paths %.80s: allowed: NAME=PATH, with a name of up to %d "
                                 "bytes",
                                 item, MSGL_MAX_LORA_NAME - 1);
        }
        memcpy(at, item, all);
        at[name] = '\0';
        out[i] = (msgl_lora_path){.name = at, .path = at + name + 1};
        for (int j = 0; j < i; j++) {
            if (strcmp(out[j].name, out[i].name) != 0) continue;
            return msgl__err_set(err, MSGL_EINVAL, "--lora-paths: two adapters are called %.80s",
                                 out[i].name);
        }
        at += all;
    }
    return 0;
}
