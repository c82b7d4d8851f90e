// SPDX-License-Identifier: Apache-2.0
//
// The layout of a hub's cache, which the hub's own tools use, too. Hugging Face's is:
//     ROOT/models--ORG--NAME/blobs/CHECKSUM            content, named by its checksum
//     ROOT/models--ORG--NAME/snapshots/COMMIT/FILE     -> ../../blobs/CHECKSUM
//     ROOT/models--ORG--NAME/refs/REVISION             a commit
//     ROOT/.locks/models--ORG--NAME/CHECKSUM.lock      flock: one process writes a blob
// ModelScope's has models/ORG--NAME/snapshots/REVISION/FILE and no refs. Its own client writes
// files there instead of links, and looks at nothing else; both kinds may be in one snapshot.
#ifndef MSGL_APPS_HUB_CACHE_H
#define MSGL_APPS_HUB_CACHE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "apps/hub/kind.h"

enum { MSGL_HUB_PATH = 2048 };

typedef struct msgl_hub_cache {
    const msgl_hub_kind *kind;
    char root[1024];
    char folder[1024 + 256]; // of the model
    char locks[1024 + 256];
} msgl_hub_cache;

int msgl__hub_cache_init(const char *root, const msgl_hub_kind *kind, const msgl_hub_name *name,
                         msgl_hub_cache *out, msgl_err *err);
// The snapshot that a revision stands for here; false: it is not known here.
bool msgl__hub_cache_commit(const msgl_hub_cache *c, const char *revision,
                            char commit[MSGL_HUB_MAX_REVISION + 1]);
// The snapshot's folder if there is one, and whether all is in it that `name` asks for: the file,
// or every file of weights. name->file becomes the file that is the model, if one is.
bool msgl__hub_cache_snapshot(const msgl_hub_cache *c, const char *commit, char out[MSGL_HUB_PATH]);
bool msgl__hub_cache_complete(const char *snapshot, msgl_hub_name *name);
// A complete copy that an older version of the hub's client has made.
bool msgl__hub_cache_older(const msgl_hub_cache *c, msgl_hub_name *name, char out[MSGL_HUB_PATH]);

// Writes refs/REVISION, by a rename, so that no process reads half of it.
int msgl__hub_cache_set_commit(const msgl_hub_cache *c, const char *revision, const char *commit,
                               msgl_err *err);
// Makes snapshots/COMMIT/FILE a relative link to the blob, by a rename, in the place of what is
// there.
int msgl__hub_cache_link(const msgl_hub_cache *c, const char *commit, const char *file,
                         const char *checksum, msgl_err *err);
// Makes a file that a hub's client has written into the blob that it is, by a second link, if it
// has this size and SHA-256 and is no link itself. False: it is not, and nothing was done.
bool msgl__hub_cache_adopt(const msgl_hub_cache *c, const char *path, const char *checksum,
                           uint64_t size, const volatile sig_atomic_t *interrupted);
// Waits for the blob's lock, which is given back by closing *fd. `waiting`, if it is not NULL, is
// called once when another process has the lock.
int msgl__hub_cache_lock(const msgl_hub_cache *c, const char *checksum,
                         const volatile sig_atomic_t *interrupted, void (*waiting)(void *ctx),
                         void *ctx, int *fd, msgl_err *err);

#endif
