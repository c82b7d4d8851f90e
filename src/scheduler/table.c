// SPDX-License-Identifier: Apache-2.0
//
// Rows of the page table and the pages behind them. Admission promises a request the pages of its
// prompt and of an answer as long as answers have been, not of max_tokens, which most never need:
// free + evictable pages >= s->reserved holds after every call. An answer that outgrows its promise
// takes what is free. When nothing is, the youngest request goes back to the head of the queue; its
// pages stay in the prefix cache as long as nobody needs them, and it continues from its tokens.
// The oldest never leaves, and alone it always fits, so every request ends.
#include <assert.h>

#include "scheduler/internal.h"

// Waiting one step for a prefix that another request is just computing pays when it saves this
// many tokens.
enum { SHARE_MIN = 64 };

// Tokens that an answer is promised at least, however long it already is.
enum { ANSWER_MIN = 32 };

static int32_t *row_of(const msgl_scheduler *s, const msgl_req *r)
{
    return msgl__page_table_row(&s->cfg.tables[0], r->row);
}

// Pages of a request that ends with `len` >= 2 tokens; K and V of the last are never needed.
int32_t msgl__sched_pages_for(const msgl_scheduler *s, int32_t len)
{
    return (len - 2) / s->cfg.cache.page_size + 1;
}

// Pages worth promising to r: for what is known and the rest of an answer of usual length.
static int32_t promise(const msgl_scheduler *s, const msgl_req *r)
{
    const int32_t usual = s->answer_len / 16, rest = usual - (r->num_ids - r->prompt_len);
    const int64_t len = (int64_t)r->num_ids + (rest > ANSWER_MIN ? rest : ANSWER_MIN);
    return msgl__sched_pages_for(s, len < r->max_len ? (int32_t)len : r->max_len);
}

// Pages of r's promise that it does not have yet.
static int32_t owed(const msgl_req *r)
{
    return r->reserved > r->num_pages ? r->reserved - r->num_pages : 0;
}

static int32_t unpromised(const msgl_scheduler *s)
{
    const msgl_cache_counts n = msgl__cache_count(s->cache);
    return n.free + n.evictable - s->reserved;
}

// Gives r a row, its cached prefix and a promise of pages for the rest. False: not now, for want of
// rows or pages, or because the step being built computes tokens that r can share in the next.
bool msgl__sched_admit(msgl_scheduler *s, msgl_req *r)
{
    if (s->num_free_rows == 0 || s->stuck) return false;
    // At least one token stays to be computed, for its logits; prompt_logprobs needs all rows.
    int32_t most = r->num_ids - 1, pending;
    if (r->sampling.prompt_logprobs >= 0 && r->echoed < r->prompt_len - 1) most = r->echoed;
    const msgl_prefix p = msgl__cache_match(s->cache, r->ids, most, &pending);
    if (pending >= SHARE_MIN) return false;
    msgl__cache_lock(s->cache, p); // before counting: what it shares cannot be evicted for it
    const int32_t shared = p.len / s->cfg.cache.page_size;
    const int32_t pages = promise(s, r);
    if (pages - shared > unpromised(s)) {
        msgl__cache_unlock(s->cache, p);
        s->stuck = true;
        return false;
    }
    s->reserved += pages - shared;
    r->reserved = pages;
    r->held = p;
    r->row = s->free_rows[--s->num_free_rows];
    r->num_pages = shared;
    r->fill_len = r->num_ids;
    r->device_len = p.len;
    if (r->cached_tokens < 0) { // what it finds when it comes back is its own
        r->cached_tokens = p.len;
        s->stats.cached_tokens += (uint64_t)p.len;
    }
    msgl__cache_slots(s->cache, p, row_of(s, r));
    return true;
}

// Sends the youngest request back. False when its pages come only with the results of a step in
// flight, or when those of another are on their way already.
static bool make_room(msgl_scheduler *s)
{
    msgl_req *youngest = s->running.head;
    for (msgl_req *r = s->running.head; r != NULL; r = r->next) {
        if (r->state == MSGL_REQ_LEAVING || r->state == MSGL_REQ_DONE) return false;
        if (r->arrival > youngest->arrival) youngest = r;
    }
    youngest->state = MSGL_REQ_LEAVING;
    if (youngest->inflight > 0) return false;
    msgl__sched_leave(s, youngest);
    return true;
}

// Promises r room for `more` pages than it has. An answer longer than usual may well get longer
// still: some room is promised beyond that, if there is any.
static bool outgrow(msgl_scheduler *s, msgl_req *r, int32_t more)
{
    while (more - owed(r) > unpromised(s)) {
        if (!make_room(s) || r->row < 0) return false;
    }
    msgl__sched_seen_answer(s, r->num_ids - r->prompt_len, false);
    const int32_t want = promise(s, r) - r->num_pages;
    const int32_t got = want > more && want - owed(r) <= unpromised(s) ? want : more;
    s->reserved += got - owed(r);
    r->reserved = r->num_pages + got;
    return true;
}

// Pages for positions [0, device_len): new ones from ceil(now / page) to ceil(then / page), each
// expanded to page_size consecutive slots.
bool msgl__sched_grow(msgl_scheduler *s, msgl_req *r, int32_t device_len)
{
    const int32_t page_size = s->cfg.cache.page_size, stride = s->cfg.tables[0].stride;
    const int32_t more = (device_len - 1) / page_size + 1 - r->num_pages;
    int32_t *row = row_of(s, r);
    if (more > owed(r) && !outgrow(s, r, more)) return false;
    while (r->num_pages <= (device_len - 1) / page_size) {
        const int32_t page = msgl__cache_alloc(s->cache);
        assert(page >= 0); // promised
        const int32_t from = r->num_pages * page_size;
        const int32_t n = stride - from < page_size ? stride - from : page_size;
        for (int32_t i = 0; i < n; i++) row[from + i] = page * page_size + i;
        r->num_pages++;
        s->reserved--;
    }
    return true;
}

void msgl__sched_free_row(msgl_scheduler *s, msgl_req *r)
{
    // K and V exist for device_len tokens, the host knows num_ids of them; that of the last known
    // one is left out, since whether it exists depends on overlap.
    const int32_t keep = r->num_ids - 1 < r->device_len ? r->num_ids - 1 : r->device_len;
    s->reserved -= owed(r);
    if (r->keep_kv) {
        msgl__cache_release(s->cache, r->held, r->ids, row_of(s, r), keep, r->num_pages);
    } else {
        msgl__cache_discard(s->cache, r->held, row_of(s, r), r->num_pages);
    }
    s->free_rows[s->num_free_rows++] = r->row;
    r->row = -1;
    s->stuck = false;
}

void msgl__sched_leave(msgl_scheduler *s, msgl_req *r)
{
    msgl__sched_free_row(s, r);
    msgl__req_unlink(&s->running, r);
    r->held = (msgl_prefix){.node = MSGL_CACHE_ROOT};
    r->num_pages = r->reserved = r->device_len = 0;
    r->state = MSGL_REQ_WAITING;
    s->stats.requests_retracted++;
    msgl__req_push_front(&s->waiting, r);
}

// An average over the last 16 or so; one that is still growing can only raise it.
void msgl__sched_seen_answer(msgl_scheduler *s, int32_t tokens, bool ended)
{
    const int32_t now = tokens < INT32_MAX / 32 ? tokens * 16 : INT32_MAX / 2;
    if (ended || now > s->answer_len) s->answer_len += (now - s->answer_len) / 16;
}
