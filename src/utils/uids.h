// SPDX-License-Identifier: Apache-2.0
//
// From a uid to what it names, for all who keep requests by uid. Intrusive: an entry is a member of
// what it names, so that putting never fails and takes no memory but for more buckets now and then.
#ifndef MSGL_UTILS_UIDS_H
#define MSGL_UTILS_UIDS_H

#include <stddef.h>
#include <stdint.h>

typedef struct msgl_uid {
    uint64_t id;           // any value; no two entries of a table have the same
    struct msgl_uid *next; // of its bucket
} msgl_uid;

typedef struct msgl_uids {
    msgl_uid **buckets; // [1 << bits]
    int bits;
    size_t count; // entries
} msgl_uids;

int msgl__uids_init(msgl_uids *t);  // 0 or MSGL_ENOMEM
void msgl__uids_free(msgl_uids *t); // not the entries; zero-initialised allowed
// u, with its id set and not in t, stays where it is until it is removed. Amortised O(1); without
// memory for more buckets lookups become slower.
void msgl__uids_put(msgl_uids *t, msgl_uid *u);
msgl_uid *msgl__uids_find(const msgl_uids *t, uint64_t uid); // NULL: none
void msgl__uids_remove(msgl_uids *t, msgl_uid *u);           // u is in t

#endif
