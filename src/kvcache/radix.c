// SPDX-License-Identifier: Apache-2.0
//
// Prefix cache: a radix tree over token ids whose edges are exactly one page long.
//
// Since the unit of sharing is the page, an edge of one page needs no splitting, and a node needs
// no memory of its own: node number = page number, the key of the edge that leads to it is in
// keys[page], and one slab sized by the pool holds everything. A child is found through a hash
// table over (parent, tokens); candidates are compared token by token, so a hash collision can
// never share a wrong page.
//
// A node is pinned while a lock sits on it or below it: pins = locks on it + pinned children. The
// nodes that are not pinned form one list in order of last use. Whenever a path leaves the pinned
// state it enters the list from its end towards the root, so a parent is always more recent than
// its children and the oldest entry of the list is always a leaf: evicting it costs O(1), and the
// length of the list is the number of evictable pages.
#include <string.h>
#include <sys/random.h>

#include "core/mem.h"
#include "kvcache/internal.h"

enum { ABSENT = -2 }; // parent of a page that is not in the tree

typedef struct node {
    int32_t parent;
    int32_t pins;
    int32_t children;
    int32_t chain;        // next node of the same hash bucket, or -1
    int32_t older, newer; // neighbours among the nodes that are not pinned, or -1
    uint32_t born;        // step that inserted it
} node;

typedef struct radix {
    msgl_pages *pages;
    node *nodes;      // [num_pages]
    int32_t *keys;    // [num_pages, page_size]
    int32_t *buckets; // [mask + 1]
    uint32_t mask;
    uint64_t seed; // so that no client can prepare prompts that collide
    uint32_t step;
    int32_t oldest, newest;
    int32_t num_cached, num_evictable, num_locks;
} radix;

static void destroy(void *impl)
{
    radix *t = impl;
    msgl__free(t->nodes);
    msgl__free(t->keys);
    msgl__free(t->buckets);
    msgl__free(t);
}

static int create(msgl_pages *pages, void **impl, msgl_err *err)
{
    radix *t = msgl__calloc(1, sizeof *t);
    if (t == NULL) return msgl__err_set(err, MSGL_ENOMEM, "radix cache: out of memory");
    const size_t n = (size_t)pages->num_pages;
    t->pages = pages;
    t->mask = 15;
    while (t->mask < n && t->mask < (UINT32_MAX >> 1)) t->mask = t->mask * 2 + 1;
    t->nodes = msgl__reallocarray(NULL, n, sizeof *t->nodes);
    t->keys = msgl__reallocarray(NULL, n * (size_t)pages->page_size, sizeof *t->keys);
    t->buckets = msgl__reallocarray(NULL, (size_t)t->mask + 1, sizeof *t->buckets);
    if (t->nodes == NULL || t->keys == NULL || t->buckets == NULL) {
        destroy(t);
        return msgl__err_set(err, MSGL_ENOMEM, "radix cache: no memory for %d pages of %d tokens",
                             pages->num_pages, pages->page_size);
    }
    for (size_t i = 0; i < n; i++) t->nodes[i].parent = ABSENT;
    for (size_t i = 0; i <= t->mask; i++) t->buckets[i] = -1;
    t->oldest = t->newest = -1;
    // Without randomness the tree is only easier to slow down, not wrong.
    if (getrandom(&t->seed, sizeof t->seed, GRND_NONBLOCK) < 0) t->seed = 0x5bd1e995;
    *impl = t;
    return 0;
}

static void next_step(void *impl)
{
    ((radix *)impl)->step++;
}

static int32_t *bucket_of(const radix *t, int32_t parent, const int32_t *ids)
{
    uint64_t h = t->seed ^ ((uint64_t)(uint32_t)parent << 32);
    for (int32_t i = 0; i < t->pages->page_size; i++) {
        h = (h ^ (uint32_t)ids[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return &t->buckets[(h ^ (h >> 32)) & t->mask];
}

static const int32_t *key_of(const radix *t, int32_t page)
{
    return t->keys + (size_t)page * (size_t)t->pages->page_size;
}

// The child of `parent` whose page holds ids[0, page_size), or -1.
static int32_t find(const radix *t, int32_t parent, const int32_t *ids)
{
    const size_t bytes = (size_t)t->pages->page_size * sizeof *ids;
    int32_t n = *bucket_of(t, parent, ids);
    while (n >= 0 && (t->nodes[n].parent != parent || memcmp(key_of(t, n), ids, bytes) != 0)) {
        n = t->nodes[n].chain;
    }
    return n;
}

static void lru_append(radix *t, int32_t n)
{
    t->nodes[n].older = t->newest;
    t->nodes[n].newer = -1;
    if (t->newest >= 0) {
        t->nodes[t->newest].newer = n;
    } else {
        t->oldest = n;
    }
    t->newest = n;
    t->num_evictable++;
}

static void lru_remove(radix *t, int32_t n)
{
    const int32_t older = t->nodes[n].older, newer = t->nodes[n].newer;
    if (older >= 0) {
        t->nodes[older].newer = newer;
    } else {
        t->oldest = newer;
    }
    if (newer >= 0) {
        t->nodes[newer].older = older;
    } else {
        t->newest = older;
    }
    t->num_evictable--;
}

static void lock(void *impl, int32_t n)
{
    radix *t = impl;
    if (n != MSGL_CACHE_ROOT) t->num_locks++;
    for (; n != MSGL_CACHE_ROOT; n = t->nodes[n].parent) {
        if (t->nodes[n].pins++ > 0) return; // its ancestors are pinned through it already
        lru_remove(t, n);
    }
}

static void unlock(void *impl, int32_t n)
{
    radix *t = impl;
    if (n != MSGL_CACHE_ROOT) t->num_locks--;
    for (; n != MSGL_CACHE_ROOT; n = t->nodes[n].parent) {
        if (--t->nodes[n].pins > 0) return;
        lru_append(t, n);
    }
}

// Makes `page` the child of `parent` for ids[0, page_size). The caller locks it, or an end below
// it, before anything else happens, which puts it in its place in the list.
static void add(radix *t, int32_t parent, const int32_t *ids, int32_t page)
{
    int32_t *bucket = bucket_of(t, parent, ids);
    const size_t page_size = (size_t)t->pages->page_size;
    memcpy(t->keys + (size_t)page * page_size, ids, page_size * sizeof *ids);
    t->nodes[page] = (node){.parent = parent, .chain = *bucket, .born = t->step};
    *bucket = page;
    if (parent != MSGL_CACHE_ROOT) t->nodes[parent].children++;
    t->num_cached++;
    lru_append(t, page);
}

// The page of a leaf without pins becomes free.
static void remove_leaf(radix *t, int32_t page)
{
    node *x = &t->nodes[page];
    lru_remove(t, page);
    int32_t *link = bucket_of(t, x->parent, key_of(t, page));
    while (*link != page) link = &t->nodes[*link].chain;
    *link = x->chain;
    if (x->parent != MSGL_CACHE_ROOT) t->nodes[x->parent].children--;
    x->parent = ABSENT;
    t->num_cached--;
    msgl__pages_push(t->pages, page);
}

static int32_t evict(void *impl, int32_t n)
{
    radix *t = impl;
    int32_t done = 0;
    for (; done < n && t->oldest >= 0; done++) remove_leaf(t, t->oldest);
    return done;
}

static void discard(void *impl, msgl_prefix held)
{
    radix *t = impl;
    int32_t n = held.node;
    while (n != MSGL_CACHE_ROOT && t->nodes[n].pins == 0 && t->nodes[n].children == 0) {
        const int32_t parent = t->nodes[n].parent;
        remove_leaf(t, n);
        n = parent;
    }
}

static msgl_prefix match(const void *impl, const int32_t *ids, int32_t n, int32_t *pending)
{
    const radix *t = impl;
    const int32_t page_size = t->pages->page_size;
    msgl_prefix p = {.node = MSGL_CACHE_ROOT};
    int32_t at = MSGL_CACHE_ROOT, len = 0;
    while (n - len >= page_size && (at = find(t, at, ids + len)) >= 0) {
        len += page_size;
        if (t->nodes[at].born != t->step) p = (msgl_prefix){.node = at, .len = len};
    }
    *pending = len - p.len;
    return p;
}

static void slots_of(const void *impl, msgl_prefix p, int32_t *slots)
{
    const radix *t = impl;
    const int32_t page_size = t->pages->page_size;
    int32_t end = p.len;
    for (int32_t n = p.node; n != MSGL_CACHE_ROOT; n = t->nodes[n].parent) {
        end -= page_size;
        for (int32_t i = 0; i < page_size; i++) slots[end + i] = n * page_size + i;
    }
}

static void extend(void *impl, msgl_prefix *held, const int32_t *ids, const int32_t *slots,
                   int32_t n)
{
    radix *t = impl;
    const int32_t page_size = t->pages->page_size;
    msgl_prefix p = *held;
    while (n - p.len >= page_size) {
        int32_t next = find(t, p.node, ids + p.len);
        if (next < 0) {
            next = slots[p.len] / page_size;
            add(t, p.node, ids + p.len, next);
        } else if (t->nodes[next].pins == 0) {
            break;
        }
        p = (msgl_prefix){.node = next, .len = p.len + page_size};
    }
    lock(t, p.node);
    unlock(t, held->node);
    *held = p;
}

static void release(void *impl, msgl_prefix held, const int32_t *ids, const int32_t *slots,
                    int32_t keep, int32_t num_pages)
{
    radix *t = impl;
    const int32_t page_size = t->pages->page_size;
    // What the request computed itself although another one had inserted the same tokens.
    int32_t i = held.len / page_size;
    for (int32_t n = held.node; n != MSGL_CACHE_ROOT; n = t->nodes[n].parent) {
        const int32_t page = msgl__pages_of(t->pages, slots, --i);
        if (page != n) msgl__pages_push(t->pages, page);
    }
    int32_t end = held.node;
    for (i = held.len / page_size; i < num_pages; i++) {
        const int32_t page = msgl__pages_of(t->pages, slots, i);
        if (keep / page_size <= i) {
            msgl__pages_push(t->pages, page);
            continue;
        }
        const int32_t *key = ids + (size_t)i * (size_t)page_size;
        const int32_t next = find(t, end, key);
        if (next >= 0) {
            msgl__pages_push(t->pages, page);
        } else {
            add(t, end, key, page);
        }
        end = next >= 0 ? next : page;
    }
    lock(t, end);
    unlock(t, held.node);
    unlock(t, end);
}

static void count(const void *impl, msgl_cache_counts *n)
{
    const radix *t = impl;
    n->cached = t->num_cached;
    n->evictable = t->num_evictable;
    n->locks = t->num_locks;
}

static bool holds(const void *impl, int32_t page)
{
    return ((const radix *)impl)->nodes[page].parent != ABSENT;
}

// The list holds exactly the nodes without pins, each after all of its children.
static int check_list(const radix *t, msgl_err *err)
{
    int32_t length = 0, before = -1;
    for (int32_t n = t->oldest; n >= 0; before = n, n = t->nodes[n].newer) {
        const node *x = &t->nodes[n];
        if (x->parent == ABSENT || x->pins != 0 || x->older != before || ++length > t->num_cached) {
            return msgl__err_set(err, MSGL_EINTERNAL, "radix: page %d is wrong in the LRU list", n);
        }
    }
    if (length != t->num_evictable || before != t->newest) {
        return msgl__err_set(err, MSGL_EINTERNAL, "radix: %d pages in the LRU list, %d counted",
                             length, t->num_evictable);
    }
    if (t->oldest >= 0 && t->nodes[t->oldest].children != 0) {
        return msgl__err_set(err, MSGL_EINTERNAL, "radix: the oldest page, %d, has children",
                             t->oldest);
    }
    return 0;
}

static int check(const void *impl, msgl_err *err)
{
    const radix *t = impl;
    int32_t cached = 0;
    int64_t children = 0, inner = 0, pins = 0;
    for (int32_t n = 0; n < t->pages->num_pages; n++) {
        const node *x = &t->nodes[n];
        if (x->parent == ABSENT) continue;
        cached++;
        children += x->children;
        pins += x->pins - (x->pins > 0 && x->parent != MSGL_CACHE_ROOT);
        if (x->parent != MSGL_CACHE_ROOT) {
            inner++;
            const node *up = &t->nodes[x->parent];
            if (up->parent == ABSENT || up->children < 1 || (x->pins > 0 && up->pins < 1)) {
                return msgl__err_set(err, MSGL_EINTERNAL, "radix: page %d under page %d", n,
                                     x->parent);
            }
        }
        if (x->pins < 0 || find(t, x->parent, key_of(t, n)) != n) {
            return msgl__err_set(err, MSGL_EINTERNAL, "radix: page %d has %d pins or is not found",
                                 n, x->pins);
        }
    }
    // Every pin that does not come from a pinned child is a lock.
    if (cached != t->num_cached || children != inner || pins != t->num_locks) {
        return msgl__err_set(err, MSGL_EINTERNAL,
                             "radix: %d pages in the tree, %d counted; %lld locks, %d counted",
                             cached, t->num_cached, (long long)pins, t->num_locks);
    }
    return check_list(t, err);
}

const msgl_cache_ops msgl__cache_radix = {
    .create = create,
    .destroy = destroy,
    .next_step = next_step,
    .match = match,
    .lock = lock,
    .unlock = unlock,
    .slots = slots_of,
    .extend = extend,
    .release = release,
    .discard = discard,
    .evict = evict,
    .count = count,
    .holds = holds,
    .check = check,
};
