// SPDX-License-Identifier: Apache-2.0
//
// Between cache.c (the free list, the calls of cache.h) and the two kinds of prefix cache.
#ifndef MSGL_KVCACHE_INTERNAL_H
#define MSGL_KVCACHE_INTERNAL_H

#include <stdbool.h>

#include "kvcache/cache.h"

typedef struct msgl_pages {
    int32_t *free; // stack of free page numbers [num_pages]
    int32_t num_free, num_pages, page_size;
} msgl_pages;

static inline void msgl__pages_push(msgl_pages *p, int32_t page)
{
    p->free[p->num_free++] = page;
}

// The i-th page of a row of the page table.
static inline int32_t msgl__pages_of(const msgl_pages *p, const int32_t *slots, int32_t i)
{
    return slots[(size_t)i * (size_t)p->page_size] / p->page_size;
}

// Each member does what the function of cache.h with its name says.
typedef struct msgl_cache_ops {
    int (*create)(msgl_pages *pages, void **impl, msgl_err *err);
    void (*destroy)(void *impl);
    void (*next_step)(void *impl);
    msgl_prefix (*match)(const void *impl, const int32_t *ids, int32_t n, int32_t *pending);
    void (*lock)(void *impl, int32_t node);
    void (*unlock)(void *impl, int32_t node);
    void (*slots)(const void *impl, msgl_prefix p, int32_t *slots);
    void (*extend)(void *impl, msgl_prefix *held, const int32_t *ids, const int32_t *slots,
                   int32_t n);
    void (*release)(void *impl, msgl_prefix held, const int32_t *ids, const int32_t *slots,
                    int32_t keep, int32_t num_pages);
    void (*discard)(void *impl, msgl_prefix held); // behind release with keep = 0
    int32_t (*evict)(void *impl, int32_t n);       // up to n pages onto the free stack; how many
    void (*count)(const void *impl, msgl_cache_counts *n); // all but total and free
    bool (*holds)(const void *impl, int32_t page);         // is the page cached
    int (*check)(const void *impl, msgl_err *err);
} msgl_cache_ops;

extern const msgl_cache_ops msgl__cache_radix;
extern const msgl_cache_ops msgl__cache_naive;

#endif
