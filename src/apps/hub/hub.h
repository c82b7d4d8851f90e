// SPDX-License-Identifier: Apache-2.0
//
// Finds models by name, in the hub's local cache, into which they are downloaded else. docs/hubs.md
// says what users see of it.
#ifndef MSGL_APPS_HUB_HUB_H
#define MSGL_APPS_HUB_HUB_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "apps/hub/kind.h"

typedef struct msgl_hub {
    const msgl_hub_kind *kind;
    const char *endpoint; // NULL: kind's
    const char *cache;    // the root of its cache
    const char *token;    // NULL: none
    const char *offline; // why there is no network, such as "HF_HUB_OFFLINE is set"; NULL: there is
    bool refresh;        // asks the hub also when all is here
    const volatile sig_atomic_t *interrupted;
    void (*log)(void *ctx, const char *line);
    // done of total bytes of all files are here, of which this process has received some.
    void (*progress)(void *ctx, uint64_t done, uint64_t total, uint64_t received);
    void *ctx;
} msgl_hub;

// The folder of the model, or the named file in it; freed with msgl__free. MSGL_ENOENT: the hub
// does not have it (offline: the cache does not), MSGL_EABORTED: interrupted.
int msgl__hub_find(const msgl_hub *hub, const msgl_hub_name *name, char **out, msgl_err *err);

#endif
