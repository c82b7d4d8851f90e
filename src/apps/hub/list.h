// SPDX-License-Identifier: Apache-2.0
//
// What a hub says of a model: the commit of a revision, and its files with sizes and checksums.
#ifndef MSGL_APPS_HUB_LIST_H
#define MSGL_APPS_HUB_LIST_H

#include <stddef.h>
#include <stdint.h>

#include "apps/hub/kind.h"

enum { MSGL_HUB_MAX_FILES = 20000, MSGL_HUB_MAX_LIST = 64 << 20 };
#define MSGL_HUB_MAX_BYTES (UINT64_C(1) << 44) // of a file; 16 TiB

typedef struct msgl_hub_file {
    char path[MSGL_HUB_MAX_PATH + 1];
    char checksum[65];
    uint64_t size;
} msgl_hub_file;

typedef struct msgl_hub_list {
    char commit[MSGL_HUB_MAX_REVISION + 1]; // the snapshot: a commit, or a revision (kind.h)
    char file[MSGL_HUB_MAX_PATH + 1];       // the .gguf file that is the model; "": all of them are
    size_t models;        // .gguf models that `file` was chosen from, as the name says none; else 0
    msgl_hub_file *files; // that are wanted; [count]
    size_t count;
    uint64_t bytes; // of all of them
} msgl_hub_list;

// From the hub's answer to list_url. Only what `name` asks for is taken; MSGL_EFORMAT: the list is
// none or has a name that is not allowed, MSGL_ENOENT: nothing of it can be run here, and why.
int msgl__hub_list_parse(const msgl_hub_kind *kind, const char *text, size_t len,
                         const msgl_hub_name *name, msgl_hub_list *out, msgl_err *err);
void msgl__hub_list_free(msgl_hub_list *l);

#endif
