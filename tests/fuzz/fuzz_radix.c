// SPDX-License-Identifier: Apache-2.0
//
// The input is a program for the prefix cache: requests start, extend, end well or
// badly, prefixes are flushed. A shadow of every page remembers which prefix was computed in it
// last; whatever the cache hands out must be exactly that.
// Build with -fsanitize=fuzzer,address and link msgl_kvcache.
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kvcache/cache.h"

enum { MAX_PAGES = 32, MAX_SEQ_PAGES = 12, MAX_PAGE = 4, MAX_SEQS = 4 };

typedef struct seq {
    bool active;
    int32_t ids[MAX_SEQ_PAGES * MAX_PAGE], slots[MAX_SEQ_PAGES * MAX_PAGE], len, num_pages;
    msgl_prefix held;
} seq;

typedef struct machine {
    msgl_cache *cache;
    int32_t num_pages, page_size;
    uint64_t shadow[MAX_PAGES]; // hash of the whole prefix that ends with this page
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

// Every page of the row holds what the row's tokens say.
static void verify_row(const machine *m, const seq *s)
{
    uint64_t h = 0;
    for (int32_t i = 0; i < s->len / m->page_size; i++) {
        const int32_t at = i * m->page_size, page = s->slots[at] / m->page_size;
        h = hash_page(h, s->ids + at, m->page_size);
        require(page >= 0 && page < m->num_pages && m->shadow[page] == h);
    }
}

static void start(machine *m, seq *s)
{
    s->len = 1 + next(m) % (MAX_SEQ_PAGES * m->page_size);
    for (int32_t i = 0; i < s->len; i += 4) { // two bits a token, four tokens a byte
        const int byte = next(m);
        for (int32_t k = 0; k < 4 && i + k < s->len; k++) s->ids[i + k] = (byte >> (2 * k)) & 3;
    }
    int32_t pending;
    s->held = msgl__cache_match(m->cache, s->ids, s->len, &pending);
    require(s->held.len >= 0 && s->held.len + pending <= s->len);
    require(s->held.len % m->page_size == 0 && pending % m->page_size == 0);
    msgl__cache_lock(m->cache, s->held);
    msgl__cache_slots(m->cache, s->held, s->slots);
    s->num_pages = s->held.len / m->page_size;
    s->active = true;
    while (s->num_pages * m->page_size < s->len) {
        const int32_t page = msgl__cache_alloc(m->cache), at = s->num_pages * m->page_size;
        if (page < 0) {
            s->len = at;
            break;
        }
        require(page < m->num_pages);
        for (int32_t i = 0; i < m->page_size; i++) s->slots[at + i] = page * m->page_size + i;
        s->num_pages++;
        m->shadow[page] = 0;
    }
    uint64_t h = 0;
    for (int32_t at = 0; at + m->page_size <= s->len; at += m->page_size) {
        h = hash_page(h, s->ids + at, m->page_size);
        if (at >= s->held.len) m->shadow[s->slots[at] / m->page_size] = h;
    }
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
    } else if (op % 8 < 5) {
        const int32_t before = s->held.len;
        msgl__cache_extend(m->cache, &s->held, s->ids, s->slots,
                           before + next(m) % (s->len - before + 1));
        require(s->held.len >= before && s->held.len <= s->len);
    } else if (op % 8 == 5) {
        msgl__cache_discard(m->cache, s->held, s->slots, s->num_pages);
        s->active = false;
    } else {
        msgl__cache_release(m->cache, s->held, s->ids, s->slots, next(m) % (s->len + 1),
                            s->num_pages);
        s->active = false;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int32_t page_sizes[] = {1, 2, 4, 3};
    machine m = {.in = data, .end = data + size};
    m.page_size = page_sizes[next(&m) % 4];
    m.num_pages = 1 + next(&m) % MAX_PAGES;
    msgl_err err;
    if (msgl__cache_create(MSGL_CACHE_RADIX, m.num_pages, m.page_size, &m.cache, &err) != 0) {
        return 0;
    }
    while (m.in < m.end) {
        step(&m);
        require(msgl__cache_check(m.cache, &err) == 0);
        for (int i = 0; i < MAX_SEQS; i++) {
            if (m.seqs[i].active) verify_row(&m, &m.seqs[i]);
        }
    }
    for (int i = 0; i < MAX_SEQS; i++) {
        seq *s = &m.seqs[i];
        if (s->active) {
            msgl__cache_release(m.cache, s->held, s->ids, s->slots, s->len, s->num_pages);
        }
    }
    msgl__cache_flush(m.cache);
    require(msgl__cache_count(m.cache).free == m.num_pages);
    msgl__cache_destroy(m.cache);
    return 0;
}
