// SPDX-License-Identifier: Apache-2.0
#include "apps/hub/choose.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/attributes.h"
#include "utils/gguf_split.h"

// Types that are taken where none is asked for, the best first: llama.cpp's, then those that cost
// no quality, the smallest first. A file of another type is taken where there is none of these.
static const char *const PREFERRED[] = {"Q4_K_M", "Q8_0", "BF16", "F16", "F32"};

// Whether the path has the type before a ".", a "-" or, as a folder, a "/", in either case, as
// llama-server looks for it, and not behind a letter or digit: "m-BF16.gguf" has BF16, and no F16.
static bool has_type(const char *path, const char *type)
{
    const size_t n = strlen(type), len = strlen(path);
    for (size_t i = 0; n > 0 && i + n < len; i++) {
        if (strncasecmp(path + i, type, n) != 0) continue;
        if (i > 0 && msgl__hub_is_letter(path[i - 1])) continue;
        if (strchr("./-", path[i + n]) != NULL) return true;
    }
    return false;
}

// How good a file is, from 0, the best; -1: it is not what was asked for.
static int rank(const msgl_hub_name *name, const char *path)
{
    if (name->file[0] != '\0') {
        return strcmp(path, name->file) == 0 || msgl__gguf_same_model(path, name->file) ? 0 : -1;
    }
    if (!msgl__gguf_is_model(path)) return -1;
    if (name->type[0] != '\0') return has_type(path, name->type) ? 0 : -1;
    int i = 0;
    while (i < (int)MSGL_COUNT(PREFERRED) && !has_type(path, PREFERRED[i])) i++;
    return i;
}

void msgl__hub_offer(msgl_hub_choice *c, const char *path)
{
    const int r = rank(c->name, path);
    c->models += msgl__gguf_is_model(path);
    if (r < 0) return;
    const bool any = c->file[0] != '\0';
    if (any && (r > c->rank || (r == c->rank && strcmp(path, c->file) > 0))) return;
    c->rank = r;
    (void)snprintf(c->file, sizeof c->file, "%s", path);
}
