// SPDX-License-Identifier: Apache-2.0
//
// Prefix cache: a radix tree over token ids whose edges are exactly one page long.
//
// Since the unit of sharing is the page, an edge of one page needs no splitting, and a node needs
// no memory of its own: node number = page number, the key of the edge that leads to it is in
// keys[page], and one slab sized by the pool holds everything. A child is found through a hash
// table over (parent, tokens); candidates are compared token by token, so a hash collision can
// never share a wrong page. Below the root a prefix's salt is part of the key, so that each salt
// has a tree of its own.
//
// A node is pinned while a lock sits on it or below it: pins = locks on it + pinned children. The
// nodes that are not pinned form one list in order of last use. Whenever a path leaves the pinned
// state it enters the list from its end towards the root, so a parent is always more recent than
// its children and the oldest entry of the list is always a leaf: evicting it costs O(1), and the
// length of the list is the number of evictable pages.
//
// What the other spans have of a prefix hangs on its nodes (units.c): a node's page of a window has
// the same tokens as its own page, its checkpoint is the state behind its last token. A prefix can
// be gone on from where its last nodes still have the pages that each window reaches back to, and
// its last node has a checkpoint.
#include <string.h>
#include <sys/random.h>

#include "core/mem.h"
#include "kvcache/internal.h"

enum { ABSENT = -2 }; // parent of a page that is not in the tree

typedef struct node {
    int32_t parent;
    int32_t pins;
    int32_t children;
    int32_t chain; // next node of the same hash bucket, or -1
    uint32_t born; // step that inserted it
    uint32_t hits; // requests that went on from it or from behind it
} node;

typedef struct radix {
    msgl_cache_store *store;
    node *nodes;      // [num_pages]
    int32_t *keys;    // [num_pages, page_size]
    uint64_t *salts;  // [num_pages], of the root's children; else 0
    int32_t *buckets; // [mask + 1]
    uint32_t mask;
    uint64_t seed; // so that no client can prepare prompts that collide
    msgl_lru unpinned;
    int32_t num_cached, num_locks;
} radix;

static void destroy(void *impl)
{
    radix *t = impl;
    msgl__free(t->nodes);
    msgl__free(t->unpinned.links);
    msgl__free(t->keys);
    msgl__free(t->salts);
    msgl__free(t->buckets);
    msgl__free(t);
}

static int create(msgl_cache_store *store, void **impl, msgl_err *err)
{
    radix *t = msgl__calloc(1, sizeof *t);
    if (t == NULL) return msgl__err_set(err, MSGL_ENOMEM, "radix cache: out of memory");
    const size_t n = (size_t)store->layout.spans[0].num_units;
    const size_t page_size = (size_t)store->layout.page_size;
    t->store = store;
    t->mask = 15;
    while (t->mask < n && t->mask < (UINT32_MAX >> 1)) t->mask = t->mask * 2 + 1;
    t->nodes = msgl__reallocarray(NULL, n, sizeof *t->nodes);
    t->unpinned.links = msgl__reallocarray(NULL, n, sizeof *t->unpinned.links);
    t->keys = msgl__reallocarray(NULL, n * page_size, sizeof *t->keys);
    t->salts = msgl__reallocarray(NULL, n, sizeof *t->salts);
    t->buckets = msgl__reallocarray(NULL, (size_t)t->mask + 1, sizeof *t->buckets);
    if (t->nodes == NULL || t->unpinned.links == NULL || t->keys == NULL || t->salts == NULL ||
        t->buckets == NULL) {
        destroy(t);
        return msgl__err_set(err, MSGL_ENOMEM, "radix cache: no memory for %zu pages of %zu tokens",
                             n, page_size);
    }
    for (size_t i = 0; i < n; i++) t->nodes[i].parent = ABSENT;
    for (size_t i = 0; i <= t->mask; i++) t->buckets[i] = -1;
    t->unpinned.oldest = t->unpinned.newest = -1;
    // Without randomness the tree is only easier to slow down, not wrong.
    if (getrandom(&t->seed, sizeof t->seed, GRND_NONBLOCK) < 0) t->seed = 0x5bd1e995;
    *impl = t;
    return 0;
}

static int32_t page_size_of(const radix *t)
{
    return t->store->layout.page_size;
}

static uint64_t salt_below(int32_t parent, uint64_t salt)
{
    return parent == MSGL_CACHE_ROOT ? salt : 0;
}

static int32_t *bucket_of(const radix *t, int32_t parent, uint64_t salt, const int32_t *ids)
{
    uint64_t h = t->seed ^ ((uint64_t)(uint32_t)parent << 32) ^ salt;
    for (int32_t i = 0; i < page_size_of(t); i++) {
        h = (h ^ (uint32_t)ids[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return &t->buckets[(h ^ (h >> 32)) & t->mask];
}

static const int32_t *key_of(const radix *t, int32_t page)
{
    return t->keys + (size_t)page * (size_t)page_size_of(t);
}

// The child of `parent` with the salt whose page holds ids[0, page_size), or -1.
static int32_t find(const radix *t, int32_t parent, uint64_t salt, const int32_t *ids)
{
    const size_t bytes = (size_t)page_size_of(t) * sizeof *ids;
    const uint64_t here = salt_below(parent, salt);
    int32_t n = *bucket_of(t, parent, here, ids);
    while (n >= 0 && (t->nodes[n].parent != parent || t->salts[n] != here ||
                      memcmp(key_of(t, n), ids, bytes) != 0)) {
        n = t->nodes[n].chain;
    }
    return n;
}

static void lock(radix *t, int32_t n)
{
    if (n != MSGL_CACHE_ROOT) t->num_locks++;
    for (; n != MSGL_CACHE_ROOT; n = t->nodes[n].parent) {
        if (t->nodes[n].pins++ > 0) return; // its ancestors are pinned through it already
        msgl__lru_remove(&t->unpinned, n);
    }
}

static void unlock(radix *t, int32_t n)
{
    if (n != MSGL_CACHE_ROOT) t->num_locks--;
    for (; n != MSGL_CACHE_ROOT; n = t->nodes[n].parent) {
        if (--t->nodes[n].pins > 0) return;
        msgl__lru_append(&t->unpinned, n);
    }
}

// Makes `page` the child of `parent` for ids[0, page_size). The caller locks it, or an end below
// it, before anything else happens, which puts it in its place in the list.
static void add(radix *t, int32_t parent, uint64_t salt, const int32_t *ids, int32_t page)
{
    t->salts[page] = salt_below(parent, salt);
    int32_t *bucket = bucket_of(t, parent, t->salts[page], ids);
    const size_t page_size = (size_t)page_size_of(t);
    memcpy(t->keys + (size_t)page * page_size, ids, page_size * sizeof *ids);
    t->nodes[page] = (node){.parent = parent, .chain = *bucket, .born = t->store->step};
    *bucket = page;
    if (parent != MSGL_CACHE_ROOT) t->nodes[parent].children++;
    t->num_cached++;
    msgl__lru_append(&t->unpinned, page);
}

// The page of a leaf without pins becomes free.
static void remove_leaf(radix *t, int32_t page)
{
    node *x = &t->nodes[page];
    msgl__lru_remove(&t->unpinned, page);
    int32_t *link = bucket_of(t, x->parent, t->salts[page], key_of(t, page));
    while (*link != page) link = &t->nodes[*link].chain;
    *link = x->chain;
    if (x->parent != MSGL_CACHE_ROOT) t->nodes[x->parent].children--;
    x->parent = ABSENT;
    t->num_cached--;
    msgl__units_drop(t->store, page);
    msgl__free_push(&t->store->free[0], page);
}

static int32_t evict(void *impl, int32_t n)
{
    radix *t = impl;
    int32_t done = 0;
    for (; done < n && t->unpinned.oldest >= 0; done++) remove_leaf(t, t->unpinned.oldest);
    return done;
}

static void discard(void *impl, msgl_prefix prefix)
{
    radix *t = impl;
    int32_t n = prefix.node;
    while (n != MSGL_CACHE_ROOT && t->nodes[n].pins == 0 && t->nodes[n].children == 0) {
        const int32_t parent = t->nodes[n].parent;
        remove_leaf(t, n);
        n = parent;
    }
}

// Whether a request can go on behind node n, the last of a prefix of `pages` pages. run[span]: how
// many nodes in a row, up to this one, have a page of the window; kept up to date here. What the
// step being built is to write counts if `pending`.
static bool goes_on(const radix *t, int32_t n, int32_t pages, bool pending,
                    int32_t run[MSGL_MAX_SPANS])
{
    const msgl_cache_store *st = t->store;
    bool ok = true;
    for (int32_t s = 1; s < st->layout.num_spans; s++) {
        const int32_t unit = st->units[s].of_node[n];
        const bool has = unit >= 0 && (pending || st->units[s].all[unit].born != st->step);
        run[s] = has ? run[s] + 1 : 0;
        const bool window = st->layout.spans[s].kind == MSGL_SPAN_WINDOW;
        if (run[s] < (window ? msgl__pages_before(st, s, pages) : 1)) ok = false;
    }
    return ok && (pending || t->nodes[n].born != st->step);
}

static msgl_prefix match(const void *impl, uint64_t salt, const int32_t *ids, int32_t n,
                         int32_t *pending)
{
    const radix *t = impl;
    const int32_t page_size = page_size_of(t);
    msgl_prefix p = {.node = MSGL_CACHE_ROOT, .salt = salt};
    int32_t run[MSGL_MAX_SPANS] = {0}, run_pending[MSGL_MAX_SPANS] = {0};
    int32_t at = MSGL_CACHE_ROOT, len = 0, with_pending = 0;
    while (n - len >= page_size && (at = find(t, at, salt, ids + len)) >= 0) {
        len += page_size;
        const int32_t pages = len / page_size;
        if (goes_on(t, at, pages, false, run)) p.node = at, p.len = len;
        if (goes_on(t, at, pages, true, run_pending)) with_pending = len;
    }
    *pending = with_pending - p.len;
    return p;
}

static void begin(void *impl, msgl_cache_handle *h)
{
    radix *t = impl;
    msgl_cache_store *st = t->store;
    lock(t, h->prefix.node);
    const int32_t pages = h->num_pages;
    for (int32_t s = 1; s < st->layout.num_spans; s++) {
        if (st->layout.spans[s].kind != MSGL_SPAN_WINDOW) continue;
        h->first[s] = pages - msgl__pages_before(st, s, pages);
    }
    int32_t i = pages;
    for (int32_t n = h->prefix.node; n != MSGL_CACHE_ROOT; n = t->nodes[n].parent) {
        h->pages[0][--i] = n;
        t->nodes[n].hits++;
        for (int32_t s = 1; s < st->layout.num_spans; s++) {
            if (st->layout.spans[s].kind != MSGL_SPAN_WINDOW || i < h->first[s]) continue;
            const int32_t page = st->units[s].of_node[n];
            msgl__units_ref(st, s, page);
            h->pages[s][i] = page;
        }
    }
}

// Gives node n what it has not got yet of the request's pages i of the windows. The request goes on
// holding them.
static void give_windows(radix *t, const msgl_cache_handle *h, int32_t n, int32_t i, uint32_t born)
{
    msgl_cache_store *st = t->store;
    for (int32_t s = 1; s < st->layout.num_spans; s++) {
        if (st->layout.spans[s].kind != MSGL_SPAN_WINDOW || i < h->first[s]) continue;
        if (st->units[s].of_node[n] >= 0) continue;
        msgl__units_attach(st, s, n, h->pages[s][i], true, born);
    }
}

static void extend(void *impl, msgl_cache_handle *h, const int32_t *ids, int32_t n)
{
    radix *t = impl;
    const int32_t page_size = page_size_of(t);
    msgl_prefix p = h->prefix;
    while (n - p.len >= page_size) {
        const int32_t i = p.len / page_size;
        int32_t next = find(t, p.node, p.salt, ids + p.len);
        if (next < 0) {
            next = h->pages[0][i];
            add(t, p.node, p.salt, ids + p.len, next);
        } else if (t->nodes[next].pins == 0) {
            break;
        }
        give_windows(t, h, next, i, t->store->step);
        p.node = next;
        p.len += page_size;
    }
    lock(t, p.node);
    unlock(t, h->prefix.node);
    h->prefix = p;
}

static void release(void *impl, msgl_cache_handle *h, const int32_t *ids, int32_t keep)
{
    radix *t = impl;
    msgl_cache_store *st = t->store;
    const int32_t page_size = page_size_of(t), shared = h->prefix.len / page_size;
    // What the request computed itself although another one had inserted the same tokens.
    int32_t i = shared;
    for (int32_t n = h->prefix.node; n != MSGL_CACHE_ROOT; n = t->nodes[n].parent) {
        const int32_t page = h->pages[0][--i];
        if (page != n) msgl__free_push(&st->free[0], page);
    }
    msgl_prefix end = h->prefix;
    for (i = shared; i < h->num_pages; i++) {
        const int32_t page = h->pages[0][i];
        if (keep / page_size <= i) {
            msgl__free_push(&st->free[0], page);
            continue;
        }
        const int32_t *key = ids + (size_t)i * (size_t)page_size;
        int32_t next = find(t, end.node, end.salt, key);
        if (next >= 0) {
            msgl__free_push(&st->free[0], page);
        } else {
            add(t, end.node, end.salt, key, page);
            next = page;
        }
        // The steps that wrote these pages have run.
        give_windows(t, h, next, i, st->step - 1);
        end.node = next;
        end.len += page_size;
    }
    lock(t, end.node);
    unlock(t, h->prefix.node);
    unlock(t, end.node);
    h->prefix = end;
}

static int32_t node_at(const void *impl, msgl_prefix p, int32_t len)
{
    const radix *t = impl;
    int32_t n = p.node;
    for (int32_t at = p.len; at > len; at -= page_size_of(t)) n = t->nodes[n].parent;
    return n;
}

// --- its shape, for who watches ---

enum {
    LOOK_MAX = 1 << 18, // pages that are looked at in the order of their memory
    STEP_MAX = 1 << 16, // and one by one along links
};

typedef struct survey {
    const radix *t;
    msgl_cache_run *runs;
    int32_t num, max, steps;
} survey;

static bool is_end(const node *x)
{
    return x->parent != ABSENT && x->children != 1;
}

static bool has_run(const survey *v, int32_t end)
{
    for (int32_t i = v->num; i-- > 0;) {
        if (v->runs[i].end == end) return true;
    }
    return false;
}

// Adds the run that ends in page `end` and those that it goes on from. False: there is no room, and
// nothing was added.
static bool add_runs(survey *v, int32_t end)
{
    const int32_t before = v->num;
    while (end != MSGL_CACHE_ROOT && !has_run(v, end)) {
        msgl_cache_run run = {.end = end, .parent = end, .hits = v->t->nodes[end].hits};
        do {
            const node *x = &v->t->nodes[run.parent];
            if (x->pins > run.pins) run.pins = x->pins;
            run.pages++;
            run.parent = x->parent;
            v->steps++;
        } while (run.parent != MSGL_CACHE_ROOT && v->t->nodes[run.parent].children == 1 &&
                 v->steps < STEP_MAX);
        if (v->num == v->max || v->steps >= STEP_MAX) {
            v->num = before;
            return false;
        }
        v->runs[v->num++] = run;
        end = run.parent;
    }
    return true;
}

static int32_t runs(const void *impl, msgl_cache_run *out, int32_t max, bool *all)
{
    const radix *t = impl;
    survey v = {.t = t, .runs = out, .max = max};
    const int32_t pages = t->store->layout.spans[0].num_units;
    const int32_t look = t->num_locks == 0 ? 0 : pages < LOOK_MAX ? pages : LOOK_MAX;
    bool room = true;
    for (int32_t i = 0; i < look && room; i++) {
        if (is_end(&t->nodes[i]) && t->nodes[i].pins > 0) room = add_runs(&v, i);
    }
    int32_t n = t->unpinned.newest;
    for (; n >= 0 && room && v.steps < STEP_MAX; n = t->unpinned.links[n].older, v.steps++) {
        if (is_end(&t->nodes[n])) room = add_runs(&v, n);
    }
    *all = room && n < 0 && (t->num_locks == 0 || look == pages);
    return v.num;
}

static void count(const void *impl, msgl_cache_counts *n)
{
    const radix *t = impl;
    n->cached = t->num_cached;
    n->evictable = t->unpinned.count;
    n->locks = t->num_locks;
}

static bool is_cached(const void *impl, int32_t page)
{
    return ((const radix *)impl)->nodes[page].parent != ABSENT;
}

// The list holds exactly the nodes without pins, each after all of its children.
static int check_list(const radix *t, msgl_err *err)
{
    int32_t length = 0, before = -1;
    for (int32_t n = t->unpinned.oldest; n >= 0; before = n, n = t->unpinned.links[n].newer) {
        const node *x = &t->nodes[n];
        if (x->parent == ABSENT || x->pins != 0 || t->unpinned.links[n].older != before ||
            ++length > t->num_cached) {
            return msgl__err_set(err, MSGL_EINTERNAL, "radix: page %d is wrong in the LRU list", n);
        }
    }
    if (length != t->unpinned.count || before != t->unpinned.newest) {
        return msgl__err_set(err, MSGL_EINTERNAL, "radix: %d pages in the LRU list, %d counted",
                             length, t->unpinned.count);
    }
    if (t->unpinned.oldest >= 0 && t->nodes[t->unpinned.oldest].children != 0) {
        return msgl__err_set(err, MSGL_EINTERNAL, "radix: the oldest page, %d, has children",
                             t->unpinned.oldest);
    }
    return 0;
}

static int check(const void *impl, msgl_err *err)
{
    const radix *t = impl;
    int32_t cached = 0;
    int64_t children = 0, inner = 0, pins = 0;
    for (int32_t n = 0; n < t->store->layout.spans[0].num_units; n++) {
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
        if (x->pins < 0 || find(t, x->parent, t->salts[n], key_of(t, n)) != n) {
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
    .match = match,
    .begin = begin,
    .extend = extend,
    .release = release,
    .discard = discard,
    .evict = evict,
    .node_at = node_at,
    .count = count,
    .is_cached = is_cached,
    .runs = runs,
    .check = check,
};
