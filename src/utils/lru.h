// SPDX-License-Identifier: Apache-2.0
//
// A list of numbered things in order of last use, over memory of the caller's.
#ifndef MSGL_UTILS_LRU_H
#define MSGL_UTILS_LRU_H

#include <stdint.h>

typedef struct msgl_lru_link {
    int32_t older, newer; // neighbours, or -1
} msgl_lru_link;

typedef struct msgl_lru {
    msgl_lru_link *links; // of each thing, read only while it is in the list
    int32_t oldest, newest, count;
} msgl_lru;

static inline void msgl__lru_append(msgl_lru *l, int32_t n)
{
    l->links[n] = (msgl_lru_link){.older = l->newest, .newer = -1};
    if (l->newest >= 0) {
        l->links[l->newest].newer = n;
    } else {
        l->oldest = n;
    }
    l->newest = n;
    l->count++;
}

static inline void msgl__lru_remove(msgl_lru *l, int32_t n)
{
    const msgl_lru_link x = l->links[n];
    if (x.older >= 0) {
        l->links[x.older].newer = x.newer;
    } else {
        l->oldest = x.newer;
    }
    if (x.newer >= 0) {
        l->links[x.newer].older = x.older;
    } else {
        l->newest = x.older;
    }
    l->count--;
}

#endif
