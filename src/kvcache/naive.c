// SPDX-License-Identifier: Apache-2.0
//
// The prefix cache that caches nothing: what radix.c is compared with, and what --cache-type naive
// chooses.
#include "kvcache/internal.h"

static int create(msgl_pages *pages, void **impl, msgl_err *err)
{
    (void)err;
    *impl = pages;
    return 0;
}

static void destroy(void *impl)
{
    (void)impl;
}

static void next_step(void *impl)
{
    (void)impl;
}

static msgl_prefix match(const void *impl, const int32_t *ids, int32_t n, int32_t *pending)
{
    (void)impl, (void)ids, (void)n;
    *pending = 0;
    return (msgl_prefix){.node = MSGL_CACHE_ROOT};
}

static void lock(void *impl, int32_t node)
{
    (void)impl, (void)node;
}

static void slots_of(const void *impl, msgl_prefix p, int32_t *slots)
{
    (void)impl, (void)p, (void)slots;
}

static void extend(void *impl, msgl_prefix *held, const int32_t *ids, const int32_t *slots,
                   int32_t n)
{
    (void)impl, (void)held, (void)ids, (void)slots, (void)n;
}

static void release(void *impl, msgl_prefix held, const int32_t *ids, const int32_t *slots,
                    int32_t keep, int32_t num_pages)
{
    (void)held, (void)ids, (void)keep;
    msgl_pages *pages = impl;
    // Backwards, so that the stack hands them out in order again.
    for (int32_t i = num_pages - 1; i >= 0; i--) {
        msgl__pages_push(pages, msgl__pages_of(pages, slots, i));
    }
}

static void discard(void *impl, msgl_prefix held)
{
    (void)impl, (void)held;
}

static int32_t evict(void *impl, int32_t n)
{
    (void)impl, (void)n;
    return 0;
}

static void count(const void *impl, msgl_cache_counts *n)
{
    (void)impl;
    n->cached = n->evictable = n->locks = 0;
}

static bool holds(const void *impl, int32_t page)
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
    .next_step = next_step,
    .match = match,
    .lock = lock,
    .unlock = lock,
    .slots = slots_of,
    .extend = extend,
    .release = release,
    .discard = discard,
    .evict = evict,
    .count = count,
    .holds = holds,
    .check = check,
};
