// SPDX-License-Identifier: Apache-2.0
//
// The free lists, and the way from the calls of cache.h to the kind of prefix cache.
#include <assert.h>
#include <stddef.h>

#include "core/mem.h"
#include "kvcache/internal.h"

// How much is evicted at once: so many tokens, but no more than one in so many of the span's pages.
// Kernels read neighbouring slots faster.
enum { EVICTED_TOKENS = 512, EVICTED_DIVISOR = 64 };

struct msgl_cache {
    const msgl_cache_ops *ops;
    void *impl;
    msgl_cache_store store;
    int32_t states; // span of those that are kept, 0: none
    uint64_t evicted[MSGL_MAX_SPANS];
};

static int check_layout(const msgl_cache_layout *l, msgl_err *err)
{
    bool ok = l->num_spans >= 1 && l->num_spans <= MSGL_MAX_SPANS && l->page_size >= 1 &&
              l->spans[0].kind == MSGL_SPAN_ALL;
    for (int32_t s = 0; ok && s < l->num_spans; s++) {
        const msgl_cache_span *span = &l->spans[s];
        const bool state = span->kind == MSGL_SPAN_STATE;
        const int32_t before = s > 1 ? l->spans[s - 1].window : -1;
        ok = (s > 0) == (span->kind != MSGL_SPAN_ALL) && (!state || s == l->num_spans - 1) &&
             (span->kind != MSGL_SPAN_WINDOW || span->window > before) &&
             (!state || (span->interval > 0 && span->interval % l->page_size == 0));
        if (ok && (span->num_units < (state ? 0 : 1) ||
                   span->num_units >= INT32_MAX / (state ? 1 : l->page_size))) {
            return msgl__err_set(err, MSGL_EINVAL,
                                 "KV pool of %d pages of %d tokens; allowed: at least 1 of each "
                                 "and fewer than %d tokens in all",
                                 span->num_units, l->page_size, INT32_MAX);
        }
    }
    if (ok) return 0;
    return msgl__err_set(err, MSGL_EINVAL,
                         "KV pool of %d spans, pages of %d tokens; allowed: 1 to %d spans, that of "
                         "all tokens first, then ascending windows, then states at multiples of "
                         "the page size",
                         l->num_spans, l->page_size, (int)MSGL_MAX_SPANS);
}

static bool has_pages(const msgl_cache *c, int32_t span)
{
    return c->store.layout.spans[span].kind != MSGL_SPAN_STATE;
}

static int create_lists(msgl_cache *c, msgl_err *err)
{
    msgl_cache_store *st = &c->store;
    for (int32_t s = 0; s < st->layout.num_spans; s++) {
        const int32_t n = st->layout.spans[s].num_units;
        st->free[s].units = msgl__reallocarray(NULL, (size_t)n + 1, sizeof(int32_t));
        if (st->free[s].units == NULL) {
            return msgl__err_set(err, MSGL_ENOMEM, "page allocator: no memory for %d pages", n);
        }
        // Lowest on top: a fresh pool hands out neighbouring pages in order.
        for (int32_t p = n - 1; p >= 0; p--) msgl__free_push(&st->free[s], p);
        const int rc = s > 0 ? msgl__units_create(st, s, err) : 0;
        if (rc != 0) return rc;
        // The naive cache has no use for checkpoints.
        if (!has_pages(c, s) && c->ops == &msgl__cache_radix) c->states = s;
    }
    return 0;
}

int msgl__cache_create(msgl_cache_type type, const msgl_cache_layout *layout, msgl_cache **out,
                       msgl_err *err)
{
    *out = NULL;
    int rc = check_layout(layout, err);
    if (rc != 0) return rc;
    msgl_cache *c = msgl__calloc(1, sizeof *c);
    if (c == NULL) return msgl__err_set(err, MSGL_ENOMEM, "page allocator: out of memory");
    c->ops = type == MSGL_CACHE_NAIVE ? &msgl__cache_naive : &msgl__cache_radix;
    c->store.layout = *layout;
    rc = create_lists(c, err);
    if (rc == 0) rc = c->ops->create(&c->store, &c->impl, err);
    if (rc != 0) {
        msgl__cache_destroy(c);
        return rc;
    }
    *out = c;
    return 0;
}

void msgl__cache_destroy(msgl_cache *c)
{
    if (c == NULL) return;
    if (c->impl != NULL) c->ops->destroy(c->impl);
    for (int32_t s = 0; s < MSGL_MAX_SPANS; s++) {
        msgl__free(c->store.free[s].units);
        msgl__units_destroy(&c->store, s);
    }
    msgl__free(c);
}

msgl_cache_counts msgl__cache_count(const msgl_cache *c, int32_t span)
{
    const msgl_units *u = &c->store.units[span];
    msgl_cache_counts n = {.total = c->store.layout.spans[span].num_units,
                           .free = c->store.free[span].count,
                           .cached = u->num_cached,
                           .evictable = u->evictable.count,
                           .evicted = c->evicted[span]};
    if (span == 0) c->ops->count(c->impl, &n);
    return n;
}

void msgl__cache_next_step(msgl_cache *c)
{
    c->store.step++;
}

msgl_prefix msgl__cache_match(const msgl_cache *c, uint64_t salt, const int32_t *ids, int32_t n,
                              int32_t *pending)
{
    int32_t unused;
    return c->ops->match(c->impl, salt, ids, n, pending != NULL ? pending : &unused);
}

void msgl__cache_begin(msgl_cache *c, msgl_prefix p, msgl_cache_handle *h)
{
    h->prefix = p;
    h->num_pages = p.len / c->store.layout.page_size;
    h->loads = h->saved = -1;
    h->saved_len = 0;
    for (int32_t s = 0; s < MSGL_MAX_SPANS; s++) h->first[s] = 0;
    c->ops->begin(c->impl, h);
    if (c->states == 0 || p.node == MSGL_CACHE_ROOT) return;
    h->loads = c->store.units[c->states].of_node[p.node];
    msgl__units_ref(&c->store, c->states, h->loads);
}

void msgl__cache_loaded(msgl_cache *c, msgl_cache_handle *h)
{
    if (h->loads >= 0) msgl__units_give_back(&c->store, c->states, h->loads);
    h->loads = -1;
}

static int32_t evict(msgl_cache *c, int32_t span, int32_t n)
{
    const int32_t done =
        span == 0 ? c->ops->evict(c->impl, n) : msgl__units_evict(&c->store, span, n);
    c->evicted[span] += (uint64_t)done;
    return done;
}

// At least n free units in a span; false: there are not as many to be had.
static bool make_free(msgl_cache *c, int32_t span, int32_t n)
{
    const msgl_cache_layout *l = &c->store.layout;
    while (c->store.free[span].count < n) {
        // A prefix is evicted from its end, so pages evicted one by one would be handed out in
        // falling order; of some at once the stack makes a rising one.
        int32_t some = EVICTED_TOKENS / l->page_size;
        const int32_t most = l->spans[span].num_units / EVICTED_DIVISOR;
        if (some > most) some = most;
        const int32_t lacking = n - c->store.free[span].count;
        if (some < lacking) some = lacking;
        if (evict(c, span, some) == 0) return false;
    }
    return true;
}

bool msgl__cache_grow(msgl_cache *c, msgl_cache_handle *h, int32_t num_pages)
{
    msgl_cache_store *st = &c->store;
    const int32_t more = num_pages - h->num_pages;
    if (more <= 0) return true;
    for (int32_t s = 0; s < st->layout.num_spans; s++) {
        if (has_pages(c, s) && !make_free(c, s, more)) return false;
    }
    for (int32_t s = 0; s < st->layout.num_spans; s++) {
        if (!has_pages(c, s)) continue;
        for (int32_t i = h->num_pages; i < num_pages; i++) {
            h->pages[s][i] = st->free[s].units[--st->free[s].count];
        }
    }
    h->num_pages = num_pages;
    return true;
}

int32_t msgl__cache_room(const msgl_cache *c)
{
    int32_t least = INT32_MAX;
    for (int32_t s = 0; s < c->store.layout.num_spans; s++) {
        const msgl_cache_counts n = msgl__cache_count(c, s);
        if (has_pages(c, s) && n.free + n.evictable < least) least = n.free + n.evictable;
    }
    return least;
}

// Gives back pages [h->first, end) of a window, last ones first: a prefix whose end is evicted
// still has an end.
static void give_back(msgl_cache *c, int32_t span, msgl_cache_handle *h, int32_t end)
{
    for (int32_t i = end - 1; i >= h->first[span]; i--) {
        const int32_t page = h->pages[span][i];
        msgl__units_give_back(&c->store, span, page);
    }
    if (end > h->first[span]) h->first[span] = end;
}

void msgl__cache_slide(msgl_cache *c, msgl_cache_handle *h, int32_t position)
{
    const msgl_cache_layout *l = &c->store.layout;
    for (int32_t s = 1; s < l->num_spans; s++) {
        if (!has_pages(c, s) || position <= l->spans[s].window) continue;
        give_back(c, s, h, (position - l->spans[s].window) / l->page_size);
    }
}

void msgl__cache_extend(msgl_cache *c, msgl_cache_handle *h, const int32_t *ids, int32_t n)
{
    c->ops->extend(c->impl, h, ids, n);
}

// A free checkpoint, which the caller then owns; -1.
static int32_t take_checkpoint(msgl_cache *c)
{
    msgl_free_list *l = &c->store.free[c->states];
    if (l->count == 0 && evict(c, c->states, 1) == 0) return -1;
    return l->units[--l->count];
}

int32_t msgl__cache_checkpoint(msgl_cache *c, msgl_cache_handle *h, int32_t len)
{
    if (c->states == 0) return -1;
    if (len > h->prefix.len) {
        if (h->saved < 0) h->saved = take_checkpoint(c);
        h->saved_len = len;
        return h->saved;
    }
    const int32_t node = c->ops->node_at(c->impl, h->prefix, len);
    if (node == MSGL_CACHE_ROOT || c->store.units[c->states].of_node[node] >= 0) return -1;
    const int32_t unit = take_checkpoint(c);
    if (unit >= 0) msgl__units_attach(&c->store, c->states, node, unit, false, c->store.step);
    return unit;
}

// The answer's own checkpoint goes to the prefix that ends with its state, or becomes free. Behind
// the tree's release, which leaves in h->prefix what of the request is cached.
static void give_back_saved(msgl_cache *c, msgl_cache_handle *h)
{
    if (h->saved < 0) return;
    int32_t node = MSGL_CACHE_ROOT;
    if (h->saved_len <= h->prefix.len) node = c->ops->node_at(c->impl, h->prefix, h->saved_len);
    if (node != MSGL_CACHE_ROOT && c->store.units[c->states].of_node[node] < 0) {
        msgl__units_attach(&c->store, c->states, node, h->saved, false, c->store.step - 1);
    } else {
        msgl__free_push(&c->store.free[c->states], h->saved);
    }
    h->saved = -1;
}

void msgl__cache_release(msgl_cache *c, msgl_cache_handle *h, const int32_t *ids, int32_t keep)
{
    c->ops->release(c->impl, h, ids, keep);
    for (int32_t s = 1; s < c->store.layout.num_spans; s++) {
        if (has_pages(c, s)) give_back(c, s, h, h->num_pages);
    }
    if (c->states == 0) return;
    msgl__cache_loaded(c, h);
    give_back_saved(c, h);
}

void msgl__cache_discard(msgl_cache *c, msgl_cache_handle *h)
{
    const msgl_prefix prefix = h->prefix;
    h->saved_len = INT32_MAX; // nobody's
    msgl__cache_release(c, h, NULL, 0);
    c->ops->discard(c->impl, prefix);
}

int32_t msgl__cache_runs(const msgl_cache *c, msgl_cache_run *runs, int32_t max, bool *all)
{
    *all = true;
    return c->ops->runs == NULL ? 0 : c->ops->runs(c->impl, runs, max, all);
}

int32_t msgl__cache_flush(msgl_cache *c)
{
    return c->ops->evict(c->impl, INT32_MAX);
}

static int check_free(const msgl_cache *c, int32_t span, msgl_err *err)
{
    const msgl_cache_counts n = msgl__cache_count(c, span);
    if (n.free < 0 || n.cached < 0 || n.evictable < 0 || n.evictable > n.cached ||
        n.free + n.cached > n.total) {
        return msgl__err_set(err, MSGL_EINTERNAL,
                             "span %d: %d free + %d cached (%d evictable) of %d", span, n.free,
                             n.cached, n.evictable, n.total);
    }
    for (int32_t i = 0; i < n.free; i++) {
        const int32_t unit = c->store.free[span].units[i];
        if (unit < 0 || unit >= n.total ||
            (span == 0 ? c->ops->is_cached(c->impl, unit)
                       : c->store.units[span].all[unit].node >= 0)) {
            return msgl__err_set(err, MSGL_EINTERNAL, "span %d: free list entry %d is %d", span, i,
                                 unit);
        }
    }
    return span > 0 ? msgl__units_check(&c->store, span, err) : 0;
}

int msgl__cache_check(const msgl_cache *c, msgl_err *err)
{
    int rc = 0;
    for (int32_t s = 0; s < c->store.layout.num_spans && rc == 0; s++) rc = check_free(c, s, err);
    return rc == 0 ? c->ops->check(c->impl, err) : rc;
}

void msgl__cache_mark(const msgl_cache *c, int32_t span, uint8_t *marks, uint8_t free_mark,
                      uint8_t cached_mark)
{
    const msgl_free_list *l = &c->store.free[span];
    for (int32_t i = 0; i < l->count; i++) marks[l->units[i]] = free_mark;
    for (int32_t u = 0; u < c->store.layout.spans[span].num_units; u++) {
        const bool cached =
            span == 0 ? c->ops->is_cached(c->impl, u) : c->store.units[span].all[u].node >= 0;
        if (cached) marks[u] = cached_mark;
    }
}
