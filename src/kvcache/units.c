// SPDX-License-Identifier: Apache-2.0
//
// Pages of windows and checkpoints of states that nodes of the prefix tree have. Each node has one
// of each span at most, and may lose it and stay. Those that no request references form a list in
// order of last use, oldest first to go; its length is what could be evicted.
#include "core/mem.h"
#include "kvcache/internal.h"

int msgl__units_create(msgl_cache_store *s, int32_t span, msgl_err *err)
{
    msgl_units *u = &s->units[span];
    const size_t n = (size_t)s->layout.spans[span].num_units;
    const size_t nodes = (size_t)s->layout.spans[0].num_units;
    u->all = msgl__reallocarray(NULL, n + 1, sizeof *u->all); // there may be no checkpoint at all
    u->of_node = msgl__reallocarray(NULL, nodes, sizeof *u->of_node);
    u->evictable = (msgl_lru){.oldest = -1, .newest = -1};
    u->evictable.links = msgl__reallocarray(NULL, n + 1, sizeof *u->evictable.links);
    if (u->all == NULL || u->of_node == NULL || u->evictable.links == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "prefix cache: no memory for %zu pages or states",
                             n);
    }
    for (size_t i = 0; i < n; i++) u->all[i] = (msgl_unit){.node = -1};
    for (size_t i = 0; i < nodes; i++) u->of_node[i] = -1;
    return 0;
}

void msgl__units_destroy(msgl_cache_store *s, int32_t span)
{
    msgl__free(s->units[span].all);
    msgl__free(s->units[span].of_node);
    msgl__free(s->units[span].evictable.links);
}

// The unit leaves its node and becomes free. Its ref_count is 0.
static void detach(msgl_cache_store *s, int32_t span, int32_t unit)
{
    msgl_units *u = &s->units[span];
    msgl__lru_remove(&u->evictable, unit);
    u->of_node[u->all[unit].node] = -1;
    u->all[unit].node = -1;
    u->num_cached--;
    msgl__free_push(&s->free[span], unit);
}

int32_t msgl__units_evict(msgl_cache_store *s, int32_t span, int32_t n)
{
    const msgl_units *u = &s->units[span];
    int32_t done = 0;
    // What this step gives to a node it has yet to write: nobody else may write there in it.
    while (done < n && u->evictable.oldest >= 0 && u->all[u->evictable.oldest].born != s->step) {
        detach(s, span, u->evictable.oldest);
        done++;
    }
    return done;
}

void msgl__units_attach(msgl_cache_store *s, int32_t span, int32_t node, int32_t unit,
                        bool referenced, uint32_t born)
{
    msgl_units *u = &s->units[span];
    u->of_node[node] = unit;
    u->all[unit] = (msgl_unit){.node = node, .ref_count = referenced, .born = born};
    u->num_cached++;
    if (!referenced) msgl__lru_append(&u->evictable, unit);
}

void msgl__units_ref(msgl_cache_store *s, int32_t span, int32_t unit)
{
    msgl_units *u = &s->units[span];
    if (u->all[unit].ref_count++ == 0) msgl__lru_remove(&u->evictable, unit);
}

void msgl__units_give_back(msgl_cache_store *s, int32_t span, int32_t unit)
{
    msgl_units *u = &s->units[span];
    if (u->all[unit].node < 0) {
        msgl__free_push(&s->free[span], unit);
    } else if (--u->all[unit].ref_count == 0) {
        msgl__lru_append(&u->evictable, unit);
    }
}

void msgl__units_drop(msgl_cache_store *s, int32_t node)
{
    for (int32_t span = 1; span < s->layout.num_spans; span++) {
        const int32_t unit = s->units[span].of_node[node];
        if (unit >= 0) detach(s, span, unit);
    }
}

int msgl__units_check(const msgl_cache_store *s, int32_t span, msgl_err *err)
{
    const msgl_units *u = &s->units[span];
    const int32_t n = s->layout.spans[span].num_units;
    int32_t cached = 0, listed = 0, before = -1;
    for (int32_t i = 0; i < n; i++) {
        const msgl_unit *x = &u->all[i];
        if (x->node < 0) continue;
        cached++;
        if (u->of_node[x->node] != i || x->ref_count < 0) {
            return msgl__err_set(err, MSGL_EINTERNAL, "span %d: unit %d of node %d, ref_count %d",
                                 span, i, x->node, x->ref_count);
        }
    }
    for (int32_t i = u->evictable.oldest; i >= 0; before = i, i = u->evictable.links[i].newer) {
        const msgl_unit *x = &u->all[i];
        if (x->node < 0 || x->ref_count != 0 || u->evictable.links[i].older != before ||
            ++listed > cached) {
            return msgl__err_set(err, MSGL_EINTERNAL, "span %d: unit %d is wrong in the LRU list",
                                 span, i);
        }
    }
    if (cached != u->num_cached || listed != u->evictable.count || before != u->evictable.newest) {
        return msgl__err_set(err, MSGL_EINTERNAL,
                             "span %d: %d units of nodes, %d counted; %d in the LRU list, %d "
                             "counted",
                             span, cached, u->num_cached, listed, u->evictable.count);
    }
    return 0;
}
