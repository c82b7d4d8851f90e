// SPDX-License-Identifier: Apache-2.0
//
// Which .gguf file of a hub's or a cache's is meant: one that is named, one of a type, or where
// nothing is said the smallest that can be run. Of several as good the first by name, so that a
// cache finds what the hub's list did.
#ifndef MSGL_APPS_HUB_CHOOSE_H
#define MSGL_APPS_HUB_CHOOSE_H

#include <stddef.h>

#include "apps/hub/name.h"

typedef struct msgl_hub_choice {
    const msgl_hub_name *name;
    int rank;      // of file; the least is best
    size_t models; // that were offered
    char
        file[MSGL_HUB_MAX_PATH + 1]; // of a model in parts one of them, the first if it was offered
} msgl_hub_choice;                   // zero-initialised but for the name

void msgl__hub_offer(msgl_hub_choice *c, const char *path);
// The file, or "": none is what was asked for.
const char *msgl__hub_chosen(const msgl_hub_choice *c);

#endif
