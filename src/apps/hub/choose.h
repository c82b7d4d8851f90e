// SPDX-License-Identifier: Apache-2.0
//
// Decides which .gguf file of a hub's or a cache's is meant: one that is named, one of a type, or,
// if nothing is said, one of the type that most people take. Of several that are as good it is the
// first by name, so that the same file is found in a cache as in the hub's list.
#ifndef MSGL_APPS_HUB_CHOOSE_H
#define MSGL_APPS_HUB_CHOOSE_H

#include <stddef.h>

#include "apps/hub/name.h"

typedef struct msgl_hub_choice {
    const msgl_hub_name *name;
    int rank;      // of file; the least is best
    size_t models; // that were offered
    // The best so far, "": none is what was asked for. Of a model in parts it is one of them, the
    // first if that was offered.
    char file[MSGL_HUB_MAX_PATH + 1];
} msgl_hub_choice; // zero-initialised but for the name

// Looks at one more file of the model's, and keeps it if it is better than those before.
void msgl__hub_offer(msgl_hub_choice *c, const char *path);

#endif
