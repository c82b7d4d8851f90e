// SPDX-License-Identifier: Apache-2.0
//
// Who may use which page: the free list and the prefix cache behind one interface. A page is free,
// cached (owned by the prefix cache, shared by the requests that hold it) or in use (owned by one
// request). Used by the scheduler's thread only. All memory is taken at creation; afterwards
// nothing here calls the heap, and no cost grows with anything but the tokens that the caller
// names.
//
// A request's pages are described by its row of the page table (`slots`: slots[i * page_size] /
// page_size is its i-th page), so this module keeps no lists per request.
#ifndef MSGL_KVCACHE_CACHE_H
#define MSGL_KVCACHE_CACHE_H

#include <stdint.h>

#include "core/err.h"

typedef enum msgl_cache_type { MSGL_CACHE_RADIX, MSGL_CACHE_NAIVE } msgl_cache_type;

#define MSGL_CACHE_ROOT (-1)

// A cached prefix: its last page, and its length in tokens (a multiple of the page size).
typedef struct msgl_prefix {
    int32_t node; // MSGL_CACHE_ROOT: the empty prefix
    int32_t len;
} msgl_prefix;

typedef struct msgl_cache_counts {
    int32_t total, free, cached;
    int32_t evictable; // of the cached pages, those that no lock protects
    int32_t locks;     // on prefixes that are not empty
} msgl_cache_counts;

typedef struct msgl_cache msgl_cache;

// The naive cache shares nothing: every match is empty and released pages become free.
int msgl__cache_create(msgl_cache_type type, int32_t num_pages, int32_t page_size, msgl_cache **out,
                       msgl_err *err);
void msgl__cache_destroy(msgl_cache *c);
msgl_cache_counts msgl__cache_count(const msgl_cache *c);

// A free page, which the caller then owns, evicting the least recently used cached pages (few of a
// large pool at once) if there is no free one; -1 when all pages are in use or locked.
int32_t msgl__cache_alloc(msgl_cache *c);

// Pages inserted from now on belong to the step that is being built: their K and V are not
// computed when another request of the same step runs, so match does not return them.
void msgl__cache_next_step(msgl_cache *c);

// The longest cached prefix of ids[0, n), not locked. *pending (may be NULL): how many more tokens
// would match if the step being built had run.
msgl_prefix msgl__cache_match(const msgl_cache *c, const int32_t *ids, int32_t n, int32_t *pending);
// A locked prefix is not evicted. Locks count.
void msgl__cache_lock(msgl_cache *c, msgl_prefix p);
void msgl__cache_unlock(msgl_cache *c, msgl_prefix p);
// Writes the slots of the prefix's tokens to slots[0, p.len).
void msgl__cache_slots(const msgl_cache *c, msgl_prefix p, int32_t *slots);

// A request that holds a lock on *held gives its pages of ids[held->len, n) to the cache, whole
// pages only, and moves its lock to the end of what it now shares. A page whose tokens are cached
// already stays with the request (the row still points to it). Stops at a cached page that nobody
// has locked: locking it would take an evictable page away from what admission counted on.
void msgl__cache_extend(msgl_cache *c, msgl_prefix *held, const int32_t *ids, const int32_t *slots,
                        int32_t n);

// The request ends: of its num_pages pages, those of ids[0, keep) that are not cached yet become
// cached (whole pages only), all others that it owns become free, and its lock on `held` goes.
void msgl__cache_release(msgl_cache *c, msgl_prefix held, const int32_t *ids, const int32_t *slots,
                         int32_t keep, int32_t num_pages);

// The request ends, and what it computed is worth nothing: all pages that it owns become free, its
// lock on `held` goes, and so do the cached pages of `held`, from its end on, as far as no other
// request holds them and no other prefix goes on from them. (extend may have cached its pages while
// it ran; who shares one of them holds it, and discards it in turn.)
void msgl__cache_discard(msgl_cache *c, msgl_prefix held, const int32_t *slots, int32_t num_pages);

// Frees all cached pages that are not locked; returns how many.
int32_t msgl__cache_flush(msgl_cache *c);

// Debugging: the structure's own invariants; 0 or MSGL_EINTERNAL.
int msgl__cache_check(const msgl_cache *c, msgl_err *err);
// Debugging: marks[page] = free_mark or cached_mark for the pages that are; others stay.
void msgl__cache_mark(const msgl_cache *c, uint8_t *marks, uint8_t free_mark, uint8_t cached_mark);

#endif
