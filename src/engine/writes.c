// SPDX-License-Identifier: Apache-2.0
//
// What the scheduler writes between steps: a request's tokens and pages, and its variable part. The
// device copies it in its queue, behind the steps that were submitted before; until then it lies in
// a ring of host memory.
#include <string.h>

#include "engine/internal.h"

// The event of the ring's write `index`, behind those of steps.
static int32_t write_event(const msgl_engine *e, int32_t index)
{
    return e->first_event + MSGL_ENGINE_STEP_SLOTS + index;
}

// Copies a write's ids to the token pool, and the pages that a page table has for them.
static void run_write(void *ctx, int64_t index)
{
    msgl_engine *e = ctx;
    const msgl_token_write *w = &e->writes[index];
    const msgl_device_ops *ops = e->device->ops;
    int32_t *table = e->dev.page_tables[w->span];
    if (w->span == 0) {
        ops->copy_in(e->device, e->dev.token_pool + w->place, w->ids,
                     (size_t)w->count * sizeof *w->ids);
    }
    if (table != NULL) {
        ops->copy_in(e->device, table + w->place / e->info.cache.page_size, w->pages,
                     (size_t)w->num_pages * sizeof *w->pages);
    }
    ops->record(e->device, write_event(e, (int32_t)index));
}

// The next of the ring of writes, when the device has done with it: that blocks only when more was
// written during one step than a step could use.
static int claim_write(msgl_engine *e, msgl_token_write **w)
{
    const int32_t index = e->next_write++ % MSGL_ENGINE_WRITES;
    *w = &e->writes[index];
    return e->device->ops->wait(e->device, write_event(e, index));
}

void msgl__engine_drain(msgl_engine *e)
{
    if (e->writes == NULL) return;
    for (int32_t i = 0; i < MSGL_ENGINE_WRITES; i++) {
        (void)e->device->ops->wait(e->device, write_event(e, i));
    }
    for (int32_t i = 0; i < MSGL_ENGINE_STEP_SLOTS; i++) msgl__trees_wait(e, i);
}

static void queue_write(msgl_engine *e, const msgl_token_write *w,
                        void (*run)(void *ctx, int64_t index))
{
    const int32_t index = (int32_t)(w - e->writes);
    e->device->ops->arm(e->device, write_event(e, index));
    e->device->ops->submit(e->device, run, e, index);
}

// Queues the copy of up to MSGL_WRITE_IDS ids (span 0) and of their pages in a span.
static int write_piece(msgl_engine *e, int32_t span, int32_t table_idx, int32_t pos,
                       const int32_t *ids, int32_t n)
{
    const msgl_page_table *table = &e->page_tables[span];
    // A token that is sampled at the very end has a place in the token pool, but no page.
    int32_t first;
    const int32_t num_pages = msgl__page_table_span(table, pos, pos + n, &first);
    msgl_token_write *w;
    const int code = claim_write(e, &w);
    if (code != 0) return code;
    w->count = n;
    w->span = span;
    w->place = msgl__token_place(e, table_idx, pos);
    if (span == 0) memcpy(w->ids, ids, (size_t)n * sizeof *ids);
    w->num_pages = num_pages;
    memcpy(w->pages, msgl__page_table_row(table, table_idx) + first,
           (size_t)num_pages * sizeof *w->pages);
    queue_write(e, w, run_write);
    return 0;
}

int msgl__engine_write_tokens(void *engine, int32_t table_idx, int32_t pos, const int32_t *ids,
                              int32_t n)
{
    msgl_engine *e = engine;
    if (table_idx < 0 || table_idx >= e->max_running || pos < 0 || n < 0 ||
        n > e->token_stride - pos) {
        return MSGL_EINVAL;
    }
    if (e->place.others != NULL) {
        const int code = msgl__ranks_write_tokens(e->place.others, e->page_tables, e->num_tables,
                                                  table_idx, pos, ids, n);
        if (code != 0) return code;
    }
    for (int32_t i = 0; i < n; i += MSGL_WRITE_IDS) {
        const int32_t count = n - i < MSGL_WRITE_IDS ? n - i : MSGL_WRITE_IDS;
        for (int32_t k = 0; k < e->num_tables; k++) {
            if (k > 0 && e->dev.page_tables[k] == NULL) break; // the CPU
            const int code = write_piece(e, k, table_idx, pos + i, ids + i, count);
            if (code != 0) return code;
        }
    }
    return 0;
}

static void run_write_bias(void *ctx, int64_t index)
{
    msgl_engine *e = ctx;
    const msgl_token_write *w = &e->writes[index];
    e->device->ops->copy_in(e->device, e->dev.bias + w->place, w->bias,
                            (size_t)w->count * sizeof *w->bias);
    e->device->ops->record(e->device, write_event(e, (int32_t)index));
}

static void run_write_words(void *ctx, int64_t index)
{
    msgl_engine *e = ctx;
    const msgl_token_write *w = &e->writes[index];
    e->device->ops->copy_in(e->device, e->dev.breakers + w->place, w->words,
                            (size_t)w->count * sizeof *w->words);
    e->device->ops->record(e->device, write_event(e, (int32_t)index));
}

static int write_bias(msgl_engine *e, int32_t table_idx, const msgl_req_extra *extra)
{
    msgl_token_write *w;
    const int code = claim_write(e, &w);
    if (code != 0) return code;
    w->count = extra->num_bias;
    w->place = table_idx * MSGL_MAX_LOGIT_BIAS;
    memcpy(w->bias, extra->bias, (size_t)w->count * sizeof *w->bias);
    queue_write(e, w, run_write_bias);
    return 0;
}

// The breakers of a row as bits, so many words at a time.
static int write_breakers(msgl_engine *e, int32_t table_idx, const msgl_req_extra *extra)
{
    const int32_t words = msgl__mask_words(e);
    for (int32_t first = 0; first < words; first += MSGL_WRITE_IDS) {
        msgl_token_write *w;
        const int code = claim_write(e, &w);
        if (code != 0) return code;
        w->count = words - first < MSGL_WRITE_IDS ? words - first : MSGL_WRITE_IDS;
        w->place = table_idx * words + first;
        memset(w->words, 0, sizeof w->words);
        for (int32_t i = 0; i < extra->num_breakers; i++) {
            const int32_t token = extra->breakers[i], at = token / 32 - first;
            if (at >= 0 && at < w->count) w->words[at] |= 1u << token % 32;
        }
        queue_write(e, w, run_write_words);
    }
    return 0;
}

int msgl__engine_write_extra(void *engine, int32_t table_idx, const msgl_req_extra *extra)
{
    msgl_engine *e = engine;
    if (table_idx < 0 || table_idx >= e->max_running) return MSGL_EINVAL;
    if (e->place.others != NULL) {
        const int code = msgl__ranks_write_extra(e->place.others, table_idx, extra);
        if (code != 0) return code;
    }
    int code = 0;
    if (extra->num_bias > 0) code = write_bias(e, table_idx, extra);
    if (code == 0 && extra->num_breakers > 0) code = write_breakers(e, table_idx, extra);
    return code;
}
