// SPDX-License-Identifier: Apache-2.0
//
// The input is a program for the prefix cache: requests start, extend, go on so that windows slide,
// keep states, end well or badly, prefixes are flushed. A shadow of every page and checkpoint
// remembers which prefix was computed in it last; whatever the cache hands out must be exactly
// that.
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kvcache/cache.h"

enum { MAX_PAGES = 32, MAX_SEQ_PAGES = 12, MAX_PAGE = 4, MAX_SEQS = 4 };

typedef struct seq {
    bool active;
    int32_t ids[MAX_SEQ_PAGES * MAX_PAGE], pages[MSGL_MAX_SPANS][MAX_SEQ_PAGES];
    int32_t len, position;
    uint64_t salt;
    msgl_cache_handle cache_handle;
} seq;

typedef struct machine {
    msgl_cache *cache;
    msgl_cache_layout layout;
    int32_t page_size;
    uint64_t shadow[MSGL_MAX_SPANS][MAX_PAGES]; // hash of the whole prefix that ends with this page
    seq seqs[MAX_SEQS];
    const uint8_t *in, *end;
} machine;

static void require(bool ok)
{
    if (!ok) __builtin_trap();
}

static int next(machine *m)
{
    return m->in < m->end ? *m->in++ : 0;
}

static uint64_t hash_page(uint64_t before, const int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++) before = (before ^ (uint64_t)ids[i]) * 0x100000001b3u + 1;
    return before;
}

static bool is_state(const machine *m, int32_t span)
{
    return m->layout.spans[span].kind == MSGL_SPAN_STATE;
}

// The hash of the first n whole pages.
static uint64_t hash_prefix(const machine *m, const seq *s, int32_t pages)
{
    uint64_t h = s->salt;
    for (int32_t i = 0; i < pages; i++) h = hash_page(h, s->ids + i * m->page_size, m->page_size);
    return h;
}

static uint64_t *shadow_of(machine *m, const seq *s, int32_t span, int32_t i)
{
    const int32_t page = s->pages[span][i];
    require(page >= 0 && page < m->layout.spans[span].num_units);
    return &m->shadow[span][page];
}

// Every whole page that the rows have holds what the row's tokens say.
static void verify_rows(machine *m, const seq *s)
{
    for (int32_t span = 0; span < m->layout.num_spans; span++) {
        for (int32_t i = s->cache_handle.first[span]; i < s->len / m->page_size; i++) {
            if (!is_state(m, span)) {
                require(*shadow_of(m, s, span, i) == hash_prefix(m, s, i + 1));
            }
        }
    }
}

// Computes pages [from, to).
static void compute(machine *m, const seq *s, int32_t from, int32_t to)
{
    for (int32_t span = 0; span < m->layout.num_spans; span++) {
        for (int32_t i = from; i < to && !is_state(m, span); i++) {
            const bool whole = (i + 1) * m->page_size <= s->len;
            *shadow_of(m, s, span, i) = whole ? hash_prefix(m, s, i + 1) : 0;
        }
    }
}

static void start(machine *m, seq *s)
{
    s->len = 1 + next(m) % (MAX_SEQ_PAGES * m->page_size);
    for (int32_t i = 0; i < s->len; i += 4) { // two bits a token, four tokens a byte
        const int byte = next(m);
        for (int32_t k = 0; k < 4 && i + k < s->len; k++) s->ids[i + k] = (byte >> (2 * k)) & 3;
    }
    s->salt = next(m) & 1;
    int32_t pending;
    const msgl_prefix p = msgl__cache_match(m->cache, s->salt, s->ids, s->len, &pending);
    require(p.len >= 0 && pending >= 0 && p.len + pending <= s->len);
    require(p.len % m->page_size == 0 && pending % m->page_size == 0);
    for (int32_t i = 0; i < MSGL_MAX_SPANS; i++) s->cache_handle.pages[i] = s->pages[i];
    msgl__cache_begin(m->cache, p, &s->cache_handle);
    s->position = p.len;
    s->active = true;
    const int32_t last = m->layout.num_spans - 1;
    if (s->cache_handle.loads >= 0) {
        require(m->shadow[last][s->cache_handle.loads] == hash_prefix(m, s, p.len / m->page_size));
    }
    require((s->cache_handle.loads >= 0) == (is_state(m, last) && p.len > 0));
    while (s->cache_handle.num_pages * m->page_size < s->len) {
        if (!msgl__cache_grow(m->cache, &s->cache_handle, s->cache_handle.num_pages + 1)) {
            s->len = s->cache_handle.num_pages * m->page_size;
        }
    }
    compute(m, s, p.len / m->page_size, s->cache_handle.num_pages);
}

static void extend(machine *m, seq *s)
{
    const int32_t before = s->cache_handle.prefix.len;
    msgl__cache_extend(m->cache, &s->cache_handle, s->ids,
                       before + next(m) % (s->len - before + 1));
    require(s->cache_handle.prefix.len >= before && s->cache_handle.prefix.len <= s->len);
    const int32_t pages = 1 + next(m) % MAX_SEQ_PAGES;
    if (pages * m->page_size > s->len) return;
    const int32_t c = msgl__cache_checkpoint(m->cache, &s->cache_handle, pages * m->page_size);
    if (c >= 0) m->shadow[m->layout.num_spans - 1][c] = hash_prefix(m, s, pages);
}

static void slide(machine *m, seq *s)
{
    s->position += next(m) % (s->len - s->position + 1);
    msgl__cache_slide(m->cache, &s->cache_handle, s->position);
    msgl__cache_loaded(m->cache, &s->cache_handle);
}

static void step(machine *m)
{
    const int op = next(m);
    seq *s = &m->seqs[op / 8 % MAX_SEQS];
    if (op % 8 == 0) {
        msgl__cache_flush(m->cache);
    } else if (op % 8 == 1) {
        msgl__cache_next_step(m->cache);
    } else if (!s->active) {
        start(m, s);
    } else if (op % 8 < 4) {
        extend(m, s);
    } else if (op % 8 == 4) {
        slide(m, s);
    } else {
        if (op % 8 == 5) {
            msgl__cache_discard(m->cache, &s->cache_handle);
        } else {
            msgl__cache_release(m->cache, &s->cache_handle, s->ids, next(m) % (s->len + 1));
        }
        s->active = false;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int32_t page_sizes[] = {1, 2, 4, 3};
    machine m = {.in = data, .end = data + size};
    m.page_size = page_sizes[next(&m) % 4];
    m.layout = (msgl_cache_layout){.page_size = m.page_size, .num_spans = 1};
    m.layout.spans[0].num_units = 1 + next(&m) % MAX_PAGES;
    const int kinds = next(&m);
    for (int i = 0, window = 0; i < 2; i++) {
        if ((kinds >> i & 1) == 0) continue;
        window += 1 + next(&m) % 12;
        m.layout.spans[m.layout.num_spans++] = (msgl_cache_span){
            .kind = MSGL_SPAN_WINDOW, .window = window, .num_units = 1 + next(&m) % MAX_PAGES};
    }
    if (kinds & 4) {
        m.layout.spans[m.layout.num_spans++] = (msgl_cache_span){
            .kind = MSGL_SPAN_STATE, .interval = m.page_size, .num_units = next(&m) % MAX_PAGES};
    }
    msgl_err err;
    if (msgl__cache_create(MSGL_CACHE_RADIX, &m.layout, &m.cache, &err) != 0) {
        return 0;
    }
    while (m.in < m.end) {
        step(&m);
        require(msgl__cache_check(m.cache, &err) == 0);
        for (int i = 0; i < MAX_SEQS; i++) {
            if (m.seqs[i].active) verify_rows(&m, &m.seqs[i]);
        }
    }
    for (int i = 0; i < MAX_SEQS; i++) {
        seq *s = &m.seqs[i];
        if (s->active) msgl__cache_release(m.cache, &s->cache_handle, s->ids, s->len);
    }
    msgl__cache_flush(m.cache);
    for (int32_t i = 0; i < m.layout.num_spans; i++) {
        require(msgl__cache_count(m.cache, i).free == m.layout.spans[i].num_units);
    }
    msgl__cache_destroy(m.cache);
    return 0;
}
