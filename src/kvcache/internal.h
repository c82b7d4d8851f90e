// SPDX-License-Identifier: Apache-2.0
//
// Between cache.c (the calls of cache.h), units.c (what the prefix cache has of spans other than
// the first) and the two kinds of prefix cache.
#ifndef MSGL_KVCACHE_INTERNAL_H
#define MSGL_KVCACHE_INTERNAL_H

#include "kvcache/cache.h"
#include "utils/lru.h"

typedef struct msgl_free_list { // a stack
    int32_t *units;
    int32_t count;
} msgl_free_list;

static inline void msgl__free_push(msgl_free_list *l, int32_t unit)
{
    l->units[l->count++] = unit;
}

// A page or checkpoint of a span behind the first.
typedef struct msgl_unit {
    int32_t node;      // the node of the prefix tree that has it; -1: none
    int32_t ref_count; // SGLang's lock_ref: requests that use it there
    uint32_t born;     // the step that writes it
} msgl_unit;

typedef struct msgl_units {
    msgl_unit *all;     // [num_units]
    int32_t *of_node;   // [pages of span 0] the unit that each node has, or -1
    msgl_lru evictable; // the units of nodes that have ref_count 0, by last use
    int32_t num_cached;
} msgl_units;

// What all parts of a cache share.
typedef struct msgl_cache_store {
    msgl_cache_layout layout;
    uint32_t step;
    msgl_free_list free[MSGL_MAX_SPANS];
    msgl_units units[MSGL_MAX_SPANS]; // none of span 0
} msgl_cache_store;

// Pages of a window behind which a prefix of `pages` pages goes on.
static inline int32_t msgl__pages_before(const msgl_cache_store *s, int32_t span, int32_t pages)
{
    const int32_t need = msgl__window_pages(s->layout.spans[span].window, s->layout.page_size);
    return need < pages ? need : pages;
}

// units.c, for spans behind the first. MSGL_ENOMEM.
int msgl__units_create(msgl_cache_store *s, int32_t span, msgl_err *err);
void msgl__units_destroy(msgl_cache_store *s, int32_t span);
// Frees up to n units, least recently used first, whose ref_count is 0 and that were not given to
// their node in the step being built; returns how many.
int32_t msgl__units_evict(msgl_cache_store *s, int32_t span, int32_t n);
// Gives a unit that a request owns to a node that has none; referenced: by that request, else by
// nobody. born: the step that writes it.
void msgl__units_attach(msgl_cache_store *s, int32_t span, int32_t node, int32_t unit,
                        bool referenced, uint32_t born);
// One more request uses the unit at its node.
void msgl__units_ref(msgl_cache_store *s, int32_t span, int32_t unit);
// A request needs a unit no more: it becomes free if it was its own, else its ref_count falls by
// one.
void msgl__units_give_back(msgl_cache_store *s, int32_t span, int32_t unit);
// The node is no more: what it has becomes free.
void msgl__units_drop(msgl_cache_store *s, int32_t node);
int msgl__units_check(const msgl_cache_store *s, int32_t span, msgl_err *err);

// Each member does what the function of cache.h with its name says, as far as the tree does it.
typedef struct msgl_cache_ops {
    int (*create)(msgl_cache_store *store, void **impl, msgl_err *err);
    void (*destroy)(void *impl);
    msgl_prefix (*match)(const void *impl, uint64_t salt, const int32_t *ids, int32_t n,
                         int32_t *pending);
    void (*begin)(void *impl, msgl_cache_handle *h); // locks h->prefix, writes rows, sets h->first
    void (*extend)(void *impl, msgl_cache_handle *h, const int32_t *ids, int32_t n);
    // All of span 0; of the others, only what the nodes of ids[0, keep) have not got yet becomes
    // theirs, still referenced.
    void (*release)(void *impl, msgl_cache_handle *h, const int32_t *ids, int32_t keep);
    void (*discard)(void *impl, msgl_prefix prefix); // behind release with keep = 0
    int32_t (*evict)(void *impl, int32_t n);         // up to n pages onto the free list; how many
    // The node at which the first len tokens of p end.
    int32_t (*node_at)(const void *impl, msgl_prefix p, int32_t len);
    void (*count)(const void *impl, msgl_cache_counts *n); // of span 0, all but total and free
    bool (*is_cached)(const void *impl, int32_t page);     // is the page of span 0 cached
    int32_t (*runs)(const void *impl, msgl_cache_run *runs, int32_t max, bool *all); // NULL: none
    int (*check)(const void *impl, msgl_err *err);
} msgl_cache_ops;

extern const msgl_cache_ops msgl__cache_radix;
extern const msgl_cache_ops msgl__cache_naive;

#endif
