// SPDX-License-Identifier: Apache-2.0
//
// Invariants of the scheduler as a whole: the tests check them after every operation, debug builds
// after every step.
#include <string.h>

#include "scheduler/internal.h"

enum { MARK_FREE = 1, MARK_CACHED, MARK_USED };

// Marks the units of a span that r's row has; `used` counts those that r owns.
static int check_unit(const msgl_scheduler *s, const msgl_req *r, int32_t span, int32_t unit,
                      int32_t *used, msgl_err *err)
{
    if (unit < 0 || unit >= s->cfg.cache.spans[span].num_units || s->marks[unit] == MARK_FREE ||
        s->marks[unit] == MARK_USED) {
        return msgl__err_set(err, MSGL_EINTERNAL,
                             "unit %d of span %d, row %d, is free, or another request's", unit,
                             span, r->row);
    }
    if (s->marks[unit] == 0) {
        s->marks[unit] = MARK_USED;
        ++*used;
    }
    return 0;
}

static int check_row(const msgl_scheduler *s, const msgl_req *r, int32_t span, int32_t *used,
                     msgl_err *err)
{
    if (s->cfg.cache.spans[span].kind == MSGL_SPAN_STATE) {
        return r->cache_handle.saved >= 0 ? check_unit(s, r, span, r->cache_handle.saved, used, err)
                                          : 0;
    }
    const int32_t *row = msgl__page_table_row(&s->cfg.tables[span], r->row);
    for (int32_t i = r->cache_handle.first[span]; i < r->cache_handle.num_pages; i++) {
        const int rc = check_unit(s, r, span, row[i], used, err);
        if (rc != 0) return rc;
    }
    return 0;
}

// The span's units are free, cached or some request's, no two of these, and none is lost.
static int check_span(const msgl_scheduler *s, int32_t span, msgl_err *err)
{
    const msgl_cache_counts n = msgl__cache_count(s->cache, span);
    int32_t used = 0;
    memset(s->marks, 0, (size_t)n.total);
    msgl__cache_mark(s->cache, span, s->marks, MARK_FREE, MARK_CACHED);
    for (const msgl_req *r = s->running.head; r != NULL; r = r->next) {
        const int rc = check_row(s, r, span, &used, err);
        if (rc != 0) return rc;
    }
    if (n.free + n.cached + used == n.total) return 0;
    return msgl__err_set(err, MSGL_EINTERNAL,
                         "span %d: %d free + %d cached (%d evictable) + %d used of %d", span,
                         n.free, n.cached, n.evictable, used, n.total);
}

static int check_request(const msgl_scheduler *s, const msgl_req *r, msgl_err *err)
{
    const int32_t have = r->cache_handle.num_pages * s->cfg.cache.page_size;
    const bool lengths = r->num_ids >= r->prompt_len && r->num_ids <= r->max_len &&
                         r->device_len >= 0 && r->device_len < r->max_len &&
                         r->device_len <= have && r->cache_handle.prefix.len <= have;
    const bool state = r->state == MSGL_REQ_PREFILL  ? r->device_len < r->fill_len
                       : r->state == MSGL_REQ_DECODE ? r->device_len >= r->fill_len
                                                     : r->inflight > 0;
    if (!lengths || !state || r->row < 0 || r->row >= s->options.max_running) {
        return msgl__err_set(err, MSGL_EINTERNAL,
                             "request %llu: state %d, row %d, prompt %d, ids %d, device %d of %d",
                             (unsigned long long)r->uid.id, (int)r->state, r->row, r->prompt_len,
                             r->num_ids, r->device_len, r->max_len);
    }
    return 0;
}

// In the order of arrival, without rows.
static int check_waiting(const msgl_scheduler *s, msgl_err *err)
{
    for (const msgl_req *r = s->waiting.head; r != NULL; r = r->next) {
        const bool order = r->next == NULL || r->next->arrival > r->arrival;
        if (!order || r->row >= 0 || r->state != MSGL_REQ_WAITING || r->inflight != 0) {
            return msgl__err_set(err, MSGL_EINTERNAL, "request %llu waits: state %d, row %d%s",
                                 (unsigned long long)r->uid.id, (int)r->state, r->row,
                                 order ? "" : ", before an older one");
        }
    }
    return 0;
}

int msgl__scheduler_check(const msgl_scheduler *s, msgl_err *err)
{
    int rc = msgl__cache_check(s->cache, err);
    if (rc == 0) rc = check_waiting(s, err);
    if (rc == 0) rc = msgl__sched_check_draft_states(s, err);
    if (rc != 0) return rc;
    for (int32_t i = 0; i < s->cfg.cache.num_spans && rc == 0; i++) rc = check_span(s, i, err);
    if (rc != 0) return rc;
    const msgl_cache_counts n = msgl__cache_count(s->cache, 0);
    int32_t reserved = 0, locks = 0, running = 0;
    for (const msgl_req *r = s->running.head; r != NULL; r = r->next, running++) {
        rc = check_request(s, r, err);
        if (rc != 0) return rc;
        if (r->reserved > r->cache_handle.num_pages)
            reserved += r->reserved - r->cache_handle.num_pages;
        locks += r->cache_handle.prefix.node != MSGL_CACHE_ROOT;
    }
    if (reserved != s->reserved || reserved > n.free + n.evictable || locks != n.locks) {
        return msgl__err_set(err, MSGL_EINTERNAL,
                             "%d pages reserved (%d counted), %d free, %d evictable; %d locks (%d "
                             "counted)",
                             reserved, s->reserved, n.free, n.evictable, locks, n.locks);
    }
    if (running != s->running.count || running + s->num_free_rows != s->options.max_running) {
        return msgl__err_set(err, MSGL_EINTERNAL, "%d running, %d free rows of %d", running,
                             s->num_free_rows, s->options.max_running);
    }
    return 0;
}
