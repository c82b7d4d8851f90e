// SPDX-License-Identifier: Apache-2.0
//
// Rows of the page tables and the pages behind them. Admission promises a request the pages of its
// prompt and of an answer as long as answers have been, not of max_tokens, which most never need:
// free + evictable pages of span 0 >= s->reserved holds after every call. An answer that outgrows
// its promise takes what is free. When nothing is, the youngest request goes back to the queue; its
// pages stay in the prefix cache as long as nobody needs them, and it continues from its tokens.
// The oldest never leaves, and alone it always fits, so every request ends.
//
// Clients have a share each. A request leaves for another client's, too, when its own has at least
// two rows more, or as many pages without it as the other would have: then the other has no reason
// to leave for it. And for want of pages the youngest of the client that has most leaves, unless
// every client has only one. With one client nothing of this happens.
//
// A request has pages of a window only as far as the window reaches, so what requests need of such
// a span comes and goes, and what one gives back another may still hold. Admission leaves room for
// what those that run will need at most, without a promise; when it was not enough, that is again a
// matter for the youngest request. States need no room: each row has one, and checkpoints are kept
// as far as there are some.
#include <assert.h>

#include "scheduler/internal.h"

// Waiting one step for a prefix that another request is just computing pays when it saves this
// many tokens.
enum { MIN_SHARED_TOKENS = 64 };

// Tokens that an answer is promised at least, however long it already is.
enum { ANSWER_MIN = 32 };

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
    const int32_t has = r->cache_handle.num_pages;
    return r->reserved > has ? r->reserved - has : 0;
}

static int32_t available(const msgl_scheduler *s, int32_t span)
{
    const msgl_cache_counts n = msgl__cache_count(s->cache, span);
    return n.free + n.evictable;
}

static int32_t unpromised(const msgl_scheduler *s)
{
    return available(s, 0) - s->reserved;
}

// Pages of a window that r, `pages` long in the end, has at most from now on. While its tokens are
// filled in it has no more than lie between the first page that it still has and the last of these,
// however they are cut into chunks: of a window of 127 tokens and pages of one, a request of 128
// tokens without a prefix has 128, and 129 when it answers, not the 256 of a later chunk of 128.
static int32_t window_most(const msgl_scheduler *s, const msgl_req *r, int32_t span, int32_t pages)
{
    const int32_t window = s->cfg.cache.spans[span].window, size = s->cfg.cache.page_size;
    int32_t chunk = r->fill_len - r->device_len;
    if (chunk > s->options.max_prefill_tokens) chunk = s->options.max_prefill_tokens;
    if (chunk < 1) chunk = 1;
    int32_t most = msgl__sched_pages_for(s, r->fill_len) - r->cache_handle.first[span];
    const int32_t of_chunk = msgl__window_pages_most(window, chunk, size);
    const int32_t of_answer = msgl__window_pages_most(window, 1, size);
    if (most > of_chunk) most = of_chunk;
    if (most < of_answer) most = of_answer;
    return most < pages ? most : pages;
}

// Pages of a window that r needs beyond those that it has.
static int32_t window_lacks(const msgl_scheduler *s, const msgl_req *r, int32_t span, int32_t pages)
{
    const int32_t has = r->cache_handle.num_pages - r->cache_handle.first[span];
    const int32_t most = window_most(s, r, span, pages);
    return most > has ? most - has : 0;
}

// Whether all windows have room for a request that lacks so many pages, beside those that run.
static bool windows_fit(const msgl_scheduler *s, const int32_t lacks[MSGL_MAX_SPANS])
{
    for (int32_t span = 1; span < s->cfg.cache.num_spans; span++) {
        if (s->cfg.cache.spans[span].kind != MSGL_SPAN_WINDOW) continue;
        int64_t lacking = lacks[span];
        for (const msgl_req *q = s->running.head; q != NULL; q = q->next) {
            if (q->state == MSGL_REQ_PREFILL || q->state == MSGL_REQ_DECODE) {
                lacking += window_lacks(s, q, span, q->reserved);
            }
        }
        if (lacking > available(s, span)) return false;
    }
    return true;
}

// Whether there is room for r, which has its prefix only; remembers what it waits for.
static bool fits(msgl_scheduler *s, const msgl_req *r, int32_t pages)
{
    for (int32_t span = 1; span < s->cfg.cache.num_spans; span++) {
        const bool window = s->cfg.cache.spans[span].kind == MSGL_SPAN_WINDOW;
        s->lacks[span] = window ? window_lacks(s, r, span, pages) : 0;
    }
    s->stuck = pages - r->cache_handle.num_pages > unpromised(s);
    s->stuck_in_windows = !s->stuck && !windows_fit(s, s->lacks);
    if (s->stuck_in_windows) s->stuck = true;
    return !s->stuck;
}

// What r, whose adapter is in memory, shares prefixes by: not with those of other weights.
static uint64_t salt_of(const msgl_scheduler *s, const msgl_req *r)
{
    return r->salt + s->weights * UINT64_C(0x9e3779b97f4a7c15) +
           msgl__sched_adapter_digest(s, r->adapter);
}

// Gives r a row, its cached prefix and a promise of pages for the rest. False: not now, for want of
// rows or pages, or because the step being built computes tokens that r can share in the next.
bool msgl__sched_admit(msgl_scheduler *s, msgl_req *r)
{
    if (s->num_free_rows == 0 || s->stuck) return false;
    // At least one token stays to be computed, for its logits; prompt_logprobs needs all rows.
    int32_t most = r->num_ids - 1, pending;
    if (r->sampling.prompt_logprobs >= 0 && r->echoed < r->prompt_len - 1) most = r->echoed;
    if (r->private_kv) most = 0;
    const msgl_prefix p = msgl__cache_match(s->cache, salt_of(s, r), r->ids, most, &pending);
    if (pending >= MIN_SHARED_TOKENS) return false;
    const int32_t row = s->free_rows[s->num_free_rows - 1];
    for (int32_t i = 0; i < s->cfg.cache.num_spans; i++) {
        const bool state = s->cfg.cache.spans[i].kind == MSGL_SPAN_STATE;
        r->cache_handle.pages[i] = state ? NULL : msgl__page_table_row(&s->cfg.tables[i], row);
    }
    msgl__cache_begin(s->cache, p, &r->cache_handle); // before counting: p cannot be evicted for r
    r->fill_len = r->num_ids;
    r->device_len = r->begin_len = p.len;
    const int32_t pages = promise(s, r);
    if (!fits(s, r, pages)) {
        msgl__cache_release(s->cache, &r->cache_handle, NULL, 0);
        r->device_len = 0;
        return false;
    }
    s->reserved += pages - r->cache_handle.num_pages;
    r->reserved = pages;
    r->row = row;
    r->client->rows++;
    s->num_free_rows--;
    if (r->cached_tokens < 0) { // what it finds when it comes back is its own
        r->cached_tokens = p.len;
        s->stats.cached_tokens += (uint64_t)p.len;
        s->stats.prompt_tokens += (uint64_t)r->prompt_len;
    }
    return true;
}

// Sends a running request back. False: its pages come only with the results of a step in flight.
static bool send_back(msgl_scheduler *s, msgl_req *r)
{
    r->state = MSGL_REQ_LEAVING;
    if (r->inflight > 0) return false;
    msgl__sched_leave(s, r);
    return true;
}

// Counts what clients with running requests have been promised. False: some of it is on its way
// back already.
static bool count_pages(msgl_scheduler *s)
{
    for (msgl_req *r = s->running.head; r != NULL; r = r->next) {
        if (r->state == MSGL_REQ_LEAVING || r->state == MSGL_REQ_DONE) return false;
        r->client->pages = 0;
    }
    for (msgl_req *r = s->running.head; r != NULL; r = r->next) r->client->pages += r->reserved;
    return true;
}

// The youngest request that runs; of: of this client only, if not NULL.
static msgl_req *youngest(const msgl_scheduler *s, const msgl_client *of)
{
    msgl_req *found = NULL;
    for (msgl_req *r = s->running.head; r != NULL; r = r->next) {
        if (of != NULL && r->client != of) continue;
        if (found == NULL || r->arrival > found->arrival) found = r;
    }
    return found;
}

// False when the pages come only with the results of a step in flight.
static bool make_room(msgl_scheduler *s)
{
    if (!count_pages(s)) return false;
    const msgl_client *most = NULL;
    for (const msgl_req *r = s->running.head; r != NULL; r = r->next) {
        const msgl_client *c = r->client;
        if (c->rows > 1 && (most == NULL || c->pages > most->pages)) most = c;
    }
    return send_back(s, youngest(s, most));
}

bool msgl__sched_give_way(msgl_scheduler *s, const msgl_req *r)
{
    const bool rows = s->num_free_rows == 0;
    // Without either it waits for what another request is just computing.
    if (s->clients.count == 1 || (!rows && !s->stuck)) return false;
    r->client->pages = 0; // it may have none that run
    if (!count_pages(s)) return false;
    const msgl_client *most = NULL;
    for (const msgl_req *q = s->running.head; q != NULL; q = q->next) {
        const msgl_client *c = q->client;
        if (most == NULL || (rows ? c->rows > most->rows : c->pages > most->pages)) most = c;
    }
    if (most == NULL) return false;
    msgl_req *q = youngest(s, most);
    const bool more = rows ? most->rows >= r->client->rows + 2
                           : most->pages - q->reserved >= r->client->pages + promise(s, r);
    return more && send_back(s, q);
}

// Promises r room for `more` pages than it has. An answer longer than usual may well get longer
// still: some room is promised beyond that, if there is any.
static bool outgrow(msgl_scheduler *s, msgl_req *r, int32_t more)
{
    while (more - owed(r) > unpromised(s)) {
        if (!make_room(s) || r->row < 0) return false;
    }
    msgl__sched_seen_answer(s, r->num_ids - r->prompt_len, false);
    const int32_t want = promise(s, r) - r->cache_handle.num_pages;
    const int32_t got = want > more && want - owed(r) <= unpromised(s) ? want : more;
    s->reserved += got - owed(r);
    r->reserved = r->cache_handle.num_pages + got;
    return true;
}

// Pages for positions [0, device_len), begun ones counted.
bool msgl__sched_grow(msgl_scheduler *s, msgl_req *r, int32_t device_len)
{
    const int32_t pages = (device_len - 1) / s->cfg.cache.page_size + 1;
    const int32_t more = pages - r->cache_handle.num_pages;
    if (more <= 0) return true;
    if (more > owed(r) && !outgrow(s, r, more)) return false;
    while (more > msgl__cache_room(s->cache)) { // of a window: span 0's are promised
        if (!make_room(s) || r->row < 0) return false;
    }
    const bool grown = msgl__cache_grow(s->cache, &r->cache_handle, pages);
    assert(grown); // promised
    s->reserved -= more;
    return grown;
}

bool msgl__sched_has_room(const msgl_scheduler *s, const msgl_req *r, int32_t device_len)
{
    const int32_t pages = (device_len - 1) / s->cfg.cache.page_size + 1;
    const int32_t more = pages - r->cache_handle.num_pages;
    if (more <= 0) return true;
    return more - owed(r) <= unpromised(s) && more <= msgl__cache_room(s->cache);
}

void msgl__sched_slide(msgl_scheduler *s)
{
    if (s->cfg.cache.num_spans == 1) return;
    for (msgl_req *r = s->running.head; r != NULL; r = r->next) {
        if (r->state != MSGL_REQ_PREFILL && r->state != MSGL_REQ_DECODE) continue;
        msgl__cache_slide(s->cache, &r->cache_handle, r->device_len);
        if (r->device_len > r->begin_len) msgl__cache_loaded(s->cache, &r->cache_handle);
    }
    if (s->stuck_in_windows && windows_fit(s, s->lacks)) s->stuck = s->stuck_in_windows = false;
}

void msgl__sched_free_row(msgl_scheduler *s, msgl_req *r)
{
    // K and V exist for device_len tokens, the host knows num_ids of them; that of the last known
    // one is left out, since whether it exists depends on overlap.
    const int32_t keep = r->num_ids - 1 < r->device_len ? r->num_ids - 1 : r->device_len;
    s->reserved -= owed(r);
    msgl__sched_drop_draft_state(s, r);
    if (r->keep_kv) {
        msgl__cache_release(s->cache, &r->cache_handle, r->ids, keep);
    } else {
        msgl__cache_discard(s->cache, &r->cache_handle);
    }
    msgl__sched_give_adapter(s, r);
    s->free_rows[s->num_free_rows++] = r->row;
    r->row = -1;
    r->client->rows--;
    s->stuck = false;
}

void msgl__sched_leave(msgl_scheduler *s, msgl_req *r)
{
    msgl__sched_free_row(s, r);
    if (s->cursor == r) s->cursor = r->next;
    msgl__req_unlink(&s->running, r);
    r->reserved = r->device_len = 0;
    r->state = MSGL_REQ_WAITING;
    s->stats.requests_retracted++;
    msgl__req_push_by_age(&s->waiting, r);
}

// An average over the last 16 or so; one that is still growing can only raise it.
void msgl__sched_seen_answer(msgl_scheduler *s, int32_t tokens, bool ended)
{
    const int32_t now = tokens < INT32_MAX / 32 ? tokens * 16 : INT32_MAX / 2;
    if (ended || now > s->answer_len) s->answer_len += (now - s->answer_len) / 16;
}
