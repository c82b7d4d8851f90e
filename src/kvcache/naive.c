// SPDX-License-Identifier: Apache-2.0
//
// The prefix cache that caches nothing: what radix.c is compared with, and what --cache-type naive
// chooses.
#include "kvcache/internal.h"

static int create(msgl_cache_store *store, void **impl, msgl_err *err)
{
    (void)err;
    *impl = store;
    return 0;
}

static void destroy(void *impl)
{
    (void)impl;
}

static msgl_prefix match(const void *impl, uint64_t salt, const int32_t *ids, int32_t n,
                         int32_t *pending)
{
    (void)impl, (void)salt, (void)ids, (void)n;
    *pending = 0;
    return (msgl_prefix){.node = MSGL_CACHE_ROOT};
}

static void begin(void *impl, msgl_cache_handle *h)
{
    (void)impl, (void)h;
}

static void extend(void *impl, msgl_cache_handle *h, const int32_t *ids, int32_t n)
{
    (void)impl, (void)h, (void)ids, (void)n;
}

static void release(void *impl, msgl_cache_handle *h, const int32_t *ids, int32_t keep)
{
    (void)ids, (void)keep;
    msgl_cache_store *s = impl;
    // Backwards, so that the stack hands them out in order again.
    for (int32_t i = h->num_pages - 1; i >= 0; i--) {
        msgl__free_push(&s->free[0], h->pages[0][i]);
    }
}

static void discard(void *impl, msgl_prefix prefix)
{
    (void)impl, (void)prefix;
}

static int32_t evict(void *impl, int32_t n)
{
    (void)impl, (void)n;
    return 0;
}

static int32_t node_at(const void *impl, msgl_prefix p, int32_t len)
{
    (void)impl, (void)p, (void)len;
    return MSGL_CACHE_ROOT;
}

static void count(const void *impl, msgl_cache_counts *n)
{
    (void)impl;
    n->cached = n->evictable = n->locks = 0;
}

static bool is_cached(const void *impl, int32_t page)
{
    (void)impl, (void)page;
    return false;
}

static int check(const void *impl, msgl_err *err)
{
    (void)impl, (void)err;
    return 0;
}

const msgl_cache_ops msgl__cache_naive = {
    .create = create,
    .destroy = destroy,
    .match = match,
    .begin = begin,
    .extend = extend,
    .release = release,
    .discard = discard,
    .evict = evict,
    .node_at = node_at,
    .count = count,
    .is_cached = is_cached,
    .check = check,
};
