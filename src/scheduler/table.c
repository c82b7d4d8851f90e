// SPDX-License-Identifier: Apache-2.0
//
// Rows of the page table and the pages behind them. Admission reserves every page that a request
// can still need, so a request that runs never waits for memory and is never thrown out:
// free + evictable pages >= s->reserved holds after every call.
#include <assert.h>

#include "scheduler/internal.h"

// Waiting one step for a prefix that another request is just computing pays when it saves this
// many tokens.
enum { SHARE_MIN = 64 };

static int32_t *row_of(const msgl_scheduler *s, const msgl_req *r)
{
    return msgl__page_table_row(s->cfg.page_table, r->row);
}

// Pages of a request that ends with `len` >= 2 tokens; K and V of the last are never needed.
int32_t msgl__sched_pages_for(const msgl_scheduler *s, int32_t len)
{
    return (len - 2) / s->cfg.page_size + 1;
}

// Gives r a row, its cached prefix and a reservation for the rest. False: not now, for want of
// rows or pages, or because the step being built computes tokens that r can share in the next.
bool msgl__sched_admit(msgl_scheduler *s, msgl_req *r)
{
    if (s->num_free_rows == 0 || s->stuck) return false;
    // At least one token stays to be computed, for its logits; prompt_logprobs needs all rows.
    const int32_t most = r->sampling.prompt_logprobs >= 0 ? 0 : r->prompt_len - 1;
    int32_t pending;
    const msgl_prefix p = msgl__cache_match(s->cache, r->ids, most, &pending);
    if (pending >= SHARE_MIN) return false;
    msgl__cache_lock(s->cache, p); // before counting: what it shares cannot be evicted for it
    const int32_t shared = p.len / s->cfg.page_size;
    const int32_t need = msgl__sched_pages_for(s, r->max_len) - shared;
    const msgl_cache_counts n = msgl__cache_count(s->cache);
    if (need > n.free + n.evictable - s->reserved) {
        msgl__cache_unlock(s->cache, p);
        s->stuck = true;
        return false;
    }
    s->reserved += need;
    r->held = p;
    r->row = s->free_rows[--s->num_free_rows];
    r->num_pages = shared;
    r->device_len = r->cached_tokens = p.len;
    msgl__cache_slots(s->cache, p, row_of(s, r));
    return true;
}

// Pages for positions [0, device_len): new ones from ceil(now / page) to ceil(then / page), each
// expanded to page_size consecutive slots.
void msgl__sched_grow(msgl_scheduler *s, msgl_req *r, int32_t device_len)
{
    const int32_t page_size = s->cfg.page_size, stride = s->cfg.page_table->stride;
    int32_t *row = row_of(s, r);
    while (r->num_pages <= (device_len - 1) / page_size) {
        const int32_t page = msgl__cache_alloc(s->cache);
        assert(page >= 0); // reserved at admission
        const int32_t from = r->num_pages * page_size;
        const int32_t n = stride - from < page_size ? stride - from : page_size;
        for (int32_t i = 0; i < n; i++) row[from + i] = page * page_size + i;
        r->num_pages++;
        s->reserved--;
    }
}

void msgl__sched_free_row(msgl_scheduler *s, msgl_req *r)
{
    // K and V exist for device_len tokens, the host knows num_ids of them; that of the last known
    // one is left out, since whether it exists depends on overlap.
    const int32_t keep = r->num_ids - 1 < r->device_len ? r->num_ids - 1 : r->device_len;
    s->reserved -= msgl__sched_pages_for(s, r->max_len) - r->num_pages;
    if (r->keep_kv) {
        msgl__cache_release(s->cache, r->held, r->ids, row_of(s, r), keep, r->num_pages);
    } else {
        msgl__cache_discard(s->cache, r->held, row_of(s, r), r->num_pages);
    }
    s->free_rows[s->num_free_rows++] = r->row;
    r->row = -1;
    s->stuck = false;
}
