// SPDX-License-Identifier: Apache-2.0
//
// What a hub says of a model: the commit of a revision, and its files with sizes and checksums.
#ifndef MSGL_HUB_LIST_H
#define MSGL_HUB_LIST_H

#include <stddef.h>
#include <stdint.h>

#include "hub/name.h"

enum { MSGL_HUB_MAX_FILES = 20000, MSGL_HUB_MAX_LIST = 64 << 20 };
#define MSGL_HUB_MAX_BYTES (UINT64_C(1) << 44) // of a file; 16 TiB

typedef struct msgl_hub_file {
    char path[MSGL_HUB_MAX_PATH + 1];
    char checksum[65];
    uint64_t size;
} msgl_hub_file;

typedef struct msgl_hub_list {
    char commit[41];
    msgl_hub_file *files; // that are wanted; [count]
    size_t count;
    uint64_t bytes; // of all of them
} msgl_hub_list;

// From the answer to GET /api/models/ORG/NAME/revision/REVISION?blobs=true. Only what `name` asks
// for is taken; MSGL_EFORMAT: the list is none or has a name that is not allowed, MSGL_ENOENT:
// nothing of it can be run here, and why.
int msgl__hub_list_parse(const char *text, size_t len, const msgl_hub_name *name,
                         msgl_hub_list *out, msgl_err *err);
void msgl__hub_list_free(msgl_hub_list *l);

#endif
