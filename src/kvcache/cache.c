// SPDX-License-Identifier: Apache-2.0
//
// The free list of pages, and the way from the calls of cache.h to the kind of prefix cache.
#include <stddef.h>

#include "core/mem.h"
#include "kvcache/internal.h"

// How much is evicted at once: so many tokens, but no more than one in so many of the pool's pages.
// Kernels read neighbouring slots faster.
enum { EVICTED_TOKENS = 512, EVICTED_SHARE = 64 };

struct msgl_cache {
    const msgl_cache_ops *ops;
    void *impl;
    msgl_pages pages;
};

int msgl__cache_create(msgl_cache_type type, int32_t num_pages, int32_t page_size, msgl_cache **out,
                       msgl_err *err)
{
    *out = NULL;
    if (num_pages < 1 || page_size < 1 || num_pages >= INT32_MAX / page_size) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "KV pool of %d pages of %d tokens; allowed: at least 1 of each and "
                             "fewer than %d tokens in all",
                             num_pages, page_size, INT32_MAX);
    }
    msgl_cache *c = msgl__calloc(1, sizeof *c);
    if (c == NULL) return msgl__err_set(err, MSGL_ENOMEM, "page allocator: out of memory");
    c->ops = type == MSGL_CACHE_NAIVE ? &msgl__cache_naive : &msgl__cache_radix;
    c->pages = (msgl_pages){.num_pages = num_pages, .page_size = page_size};
    c->pages.free = msgl__reallocarray(NULL, (size_t)num_pages, sizeof(int32_t));
    int rc =
        c->pages.free != NULL
            ? 0
            : msgl__err_set(err, MSGL_ENOMEM, "page allocator: no memory for %d pages", num_pages);
    if (rc == 0) rc = c->ops->create(&c->pages, &c->impl, err);
    if (rc != 0) {
        msgl__cache_destroy(c);
        return rc;
    }
    // Lowest page on top: a fresh pool hands out neighbouring pages in order.
    for (int32_t p = num_pages - 1; p >= 0; p--) msgl__pages_push(&c->pages, p);
    *out = c;
    return 0;
}

void msgl__cache_destroy(msgl_cache *c)
{
    if (c == NULL) return;
    if (c->impl != NULL) c->ops->destroy(c->impl);
    msgl__free(c->pages.free);
    msgl__free(c);
}

msgl_cache_counts msgl__cache_count(const msgl_cache *c)
{
    msgl_cache_counts n = {.total = c->pages.num_pages, .free = c->pages.num_free};
    c->ops->count(c->impl, &n);
    return n;
}

int32_t msgl__cache_alloc(msgl_cache *c)
{
    const msgl_pages *p = &c->pages;
    if (p->num_free == 0) {
        // A prefix is evicted from its end, so pages evicted one by one would be handed out in
        // falling order; of some at once the stack makes a rising one.
        int32_t n = EVICTED_TOKENS / p->page_size;
        if (n > p->num_pages / EVICTED_SHARE) n = p->num_pages / EVICTED_SHARE;
        if (c->ops->evict(c->impl, n > 1 ? n : 1) == 0) return -1;
    }
    return c->pages.free[--c->pages.num_free];
}

void msgl__cache_next_step(msgl_cache *c)
{
    c->ops->next_step(c->impl);
}

msgl_prefix msgl__cache_match(const msgl_cache *c, const int32_t *ids, int32_t n, int32_t *pending)
{
    int32_t unused;
    return c->ops->match(c->impl, ids, n, pending != NULL ? pending : &unused);
}

void msgl__cache_lock(msgl_cache *c, msgl_prefix p)
{
    c->ops->lock(c->impl, p.node);
}

void msgl__cache_unlock(msgl_cache *c, msgl_prefix p)
{
    c->ops->unlock(c->impl, p.node);
}

void msgl__cache_slots(const msgl_cache *c, msgl_prefix p, int32_t *slots)
{
    c->ops->slots(c->impl, p, slots);
}

void msgl__cache_extend(msgl_cache *c, msgl_prefix *held, const int32_t *ids, const int32_t *slots,
                        int32_t n)
{
    c->ops->extend(c->impl, held, ids, slots, n);
}

void msgl__cache_release(msgl_cache *c, msgl_prefix held, const int32_t *ids, const int32_t *slots,
                         int32_t keep, int32_t num_pages)
{
    c->ops->release(c->impl, held, ids, slots, keep, num_pages);
}

void msgl__cache_discard(msgl_cache *c, msgl_prefix held, const int32_t *slots, int32_t num_pages)
{
    c->ops->release(c->impl, held, NULL, slots, 0, num_pages);
    c->ops->discard(c->impl, held);
}

int32_t msgl__cache_flush(msgl_cache *c)
{
    return c->ops->evict(c->impl, INT32_MAX);
}

int msgl__cache_check(const msgl_cache *c, msgl_err *err)
{
    const msgl_cache_counts n = msgl__cache_count(c);
    if (n.free < 0 || n.cached < 0 || n.evictable < 0 || n.evictable > n.cached ||
        n.free + n.cached > n.total) {
        return msgl__err_set(err, MSGL_EINTERNAL, "pages: %d free + %d cached (%d evictable) of %d",
                             n.free, n.cached, n.evictable, n.total);
    }
    for (int32_t i = 0; i < n.free; i++) {
        const int32_t page = c->pages.free[i];
        if (page < 0 || page >= n.total || c->ops->holds(c->impl, page)) {
            return msgl__err_set(err, MSGL_EINTERNAL, "free list entry %d is page %d", i, page);
        }
    }
    return c->ops->check(c->impl, err);
}

void msgl__cache_mark(const msgl_cache *c, uint8_t *marks, uint8_t free_mark, uint8_t cached_mark)
{
    for (int32_t i = 0; i < c->pages.num_free; i++) marks[c->pages.free[i]] = free_mark;
    for (int32_t page = 0; page < c->pages.num_pages; page++) {
        if (c->ops->holds(c->impl, page)) marks[page] = cached_mark;
    }
}
