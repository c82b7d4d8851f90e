// SPDX-License-Identifier: Apache-2.0
//
// Who may use which page and which checkpoint: the free lists of all spans (layout.h) and the
// prefix cache behind one interface. A page, or checkpoint, is free, cached (owned by the prefix
// cache, shared by the requests that hold it) or in use (owned by one request). Used by the
// scheduler's thread only. All memory is taken at creation; afterwards nothing here calls the heap,
// and no cost grows with anything but the tokens that the caller names.
//
// A cached prefix ends in a page of span 0. Of the other spans it has what a request that goes on
// from it reads: the pages of the windows in front of its end, and a state. Where one of these has
// been evicted, a match ends earlier; a page of span 0 stays cached without them.
//
// A request's pages are its rows of the page tables (pages[s][i] is its i-th page in span s), so
// this module keeps no lists per request.
#ifndef MSGL_KVCACHE_CACHE_H
#define MSGL_KVCACHE_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "kvcache/layout.h"

typedef enum msgl_cache_type { MSGL_CACHE_RADIX, MSGL_CACHE_NAIVE } msgl_cache_type;

#define MSGL_CACHE_ROOT (-1)

// A cached prefix: its last page, and its length in tokens (a multiple of the page size). Prefixes
// with different salts have nothing in common, whatever their tokens.
typedef struct msgl_prefix {
    int32_t node; // MSGL_CACHE_ROOT: the empty prefix
    int32_t len;
    uint64_t salt;
} msgl_prefix;

// What a running request has, between msgl__cache_begin and msgl__cache_release or _discard.
typedef struct msgl_cache_handle {
    // Of each span with pages, the request's row of its page table; the caller's memory, written
    // by grow and begin, not before a window's first page.
    int32_t *pages[MSGL_MAX_SPANS];
    msgl_prefix prefix;            // locked; grows with extend
    int32_t num_pages;             // that its rows have
    int32_t first[MSGL_MAX_SPANS]; // pages before it were given back; 0 but for windows
    int32_t loads;            // checkpoint that its state begins with, until msgl__cache_loaded; -1
    int32_t saved, saved_len; // checkpoint of its answer, owned until it ends; -1
} msgl_cache_handle;

typedef struct msgl_cache_counts {
    int32_t total, free, cached;
    int32_t evictable; // of the cached ones, those that nobody holds
    int32_t locks;     // on prefixes that are not empty; span 0 only
    uint64_t evicted;  // so far, for want of room
} msgl_cache_counts;

typedef struct msgl_cache msgl_cache;

// The naive cache shares nothing: every match is empty and what is released becomes free.
int msgl__cache_create(msgl_cache_type type, const msgl_cache_layout *layout, msgl_cache **out,
                       msgl_err *err);
void msgl__cache_destroy(msgl_cache *c);
msgl_cache_counts msgl__cache_count(const msgl_cache *c, int32_t span);

// The scheduler begins to build a step. Pages that are inserted until the next call are computed by
// that step, so another request of the same step cannot read them, and match does not return them.
void msgl__cache_next_step(msgl_cache *c);

// The longest cached prefix with this salt of ids[0, n) from which a request can go on. *pending
// (may be NULL): how many more tokens would match if the step being built had run.
msgl_prefix msgl__cache_match(const msgl_cache *c, uint64_t salt, const int32_t *ids, int32_t n,
                              int32_t *pending);

// Begins a request that goes on from p, just matched: what it reads of p is not evicted. h->pages
// is set; the rest is set here, and the rows get p's pages.
void msgl__cache_begin(msgl_cache *c, msgl_prefix p, msgl_cache_handle *h);

// Pages in every span, up to num_pages in all. Where nothing is free, the least recently used
// cached ones that nobody holds are evicted (few of a large pool at once). False: some span has too
// few; nothing has changed.
bool msgl__cache_grow(msgl_cache *c, msgl_cache_handle *h, int32_t num_pages);
// How many pages grow could add at most.
int32_t msgl__cache_room(const msgl_cache *c);

// The request's next token is at `position`: gives back pages that no window reaches from there. A
// step that reads them must have been submitted.
void msgl__cache_slide(msgl_cache *c, msgl_cache_handle *h, int32_t position);

// The request gives its pages of ids[prefix.len, n) to the cache, whole pages only, and locks what
// it now shares. A page whose tokens are cached already stays with the request (the row still
// points to it). Stops at a cached page that nobody has locked: locking it would take an evictable
// page away from what admission counted on.
void msgl__cache_extend(msgl_cache *c, msgl_cache_handle *h, const int32_t *ids, int32_t n);

// A checkpoint for the request's state behind token len, a multiple of the page size, that the step
// being built shall save: up to prefix.len it is cached there, beyond it is the request's own until
// it ends (of several the last). -1: there is one there already, or none to be had.
int32_t msgl__cache_checkpoint(msgl_cache *c, msgl_cache_handle *h, int32_t len);
// The step that loads h->loads has been submitted.
void msgl__cache_loaded(msgl_cache *c, msgl_cache_handle *h);

// The request ends: what it has of ids[0, keep) and is not cached yet becomes cached (whole pages
// only), all else that it owns becomes free, and it holds nothing any more.
void msgl__cache_release(msgl_cache *c, msgl_cache_handle *h, const int32_t *ids, int32_t keep);

// The request ends, and what it computed is worth nothing: all that it owns becomes free, and so do
// the cached pages of its prefix, from the end on, as far as no other request holds them and no
// other prefix goes on from them. (extend may have cached its pages while it ran; who shares one of
// them holds it, and discards it in turn.)
void msgl__cache_discard(msgl_cache *c, msgl_cache_handle *h);

// Frees all cached pages of span 0 that are not locked, with what the other spans have of them;
// returns how many.
int32_t msgl__cache_flush(msgl_cache *c);

// A run of cached pages of span 0 that branches nowhere before its end.
typedef struct msgl_cache_run {
    int32_t end;    // its last page
    int32_t parent; // the last page of the run that it goes on from, or MSGL_CACHE_ROOT
    int32_t pages;
    int32_t pins; // requests whose prefix ends in it and runs held behind it; 0: none of it is held
    uint32_t
        hits; // requests that went on from its end or from behind it, of those that match found
} msgl_cache_run;

// The shape of the prefix tree: up to `max` runs into runs[], with each all those that it goes on
// from; how many. Held ones come first, then the most recently used. *all: whether that is all of
// it. Looks at a bounded number of pages, however large the pool is.
int32_t msgl__cache_runs(const msgl_cache *c, msgl_cache_run *runs, int32_t max, bool *all);

// Debugging: the structure's own invariants; 0 or MSGL_EINTERNAL.
int msgl__cache_check(const msgl_cache *c, msgl_err *err);
// Debugging: marks[unit] = free_mark or cached_mark for the span's units that are; others stay.
void msgl__cache_mark(const msgl_cache *c, int32_t span, uint8_t *marks, uint8_t free_mark,
                      uint8_t cached_mark);

#endif
