// SPDX-License-Identifier: Apache-2.0
//
// Random operations on cache and page allocator, compared after each with a model that keeps a
// plain list of all cached prefixes and answers every question by going through it.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "kvcache/cache.h"
#include "utils/random.h"

enum { MAX_PAGES = 48, MAX_SEQ_PAGES = 8, MAX_TOKENS = MAX_SEQ_PAGES * 64, MAX_SEQS = 6 };

// A cached page: the whole prefix that ends with it.
typedef struct entry {
    int32_t ids[MAX_TOKENS], len;
    int32_t page;
    uint64_t used; // when it was last released
    uint64_t step; // that inserted it
} entry;

typedef struct seq {
    bool active;
    int32_t ids[MAX_TOKENS], slots[MAX_TOKENS], len, num_pages;
    msgl_prefix held;
} seq;

typedef struct model {
    msgl_cache *cache;
    int32_t num_pages, page_size, alphabet;
    entry entries[MAX_PAGES];
    int32_t num_entries;
    seq seqs[MAX_SEQS];
    uint64_t clock, step, random;
} model;

static uint32_t rnd(model *m, uint32_t n)
{
    return (uint32_t)msgl__random_below(&m->random, n);
}

static int find(const model *m, const int32_t *ids, int32_t len)
{
    for (int i = 0; i < m->num_entries; i++) {
        const entry *e = &m->entries[i];
        if (e->len == len && memcmp(e->ids, ids, (size_t)len * sizeof *ids) == 0) return i;
    }
    return -1;
}

static bool is_prefix(const entry *e, const int32_t *ids, int32_t len)
{
    return e->len <= len && memcmp(e->ids, ids, (size_t)e->len * sizeof *ids) == 0;
}

static bool is_locked(const model *m, const entry *e)
{
    for (int i = 0; i < MAX_SEQS; i++) {
        const seq *s = &m->seqs[i];
        if (s->active && is_prefix(e, s->ids, s->held.len)) return true;
    }
    return false;
}

static int32_t count_evictable(const model *m)
{
    int32_t n = 0;
    for (int i = 0; i < m->num_entries; i++) n += !is_locked(m, &m->entries[i]);
    return n;
}

static int32_t count_used(const model *m)
{
    int32_t n = 0;
    for (int i = 0; i < MAX_SEQS; i++) {
        const seq *s = &m->seqs[i];
        for (int32_t p = 0; s->active && p < s->num_pages; p++) {
            const int32_t page = s->slots[p * m->page_size] / m->page_size;
            bool cached = false;
            for (int j = 0; j < m->num_entries; j++) cached |= m->entries[j].page == page;
            n += !cached;
        }
    }
    return n;
}

// The page that has to go next: unlocked, not the beginning of another one, longest unused.
static int oldest(const model *m)
{
    int best = -1;
    for (int i = 0; i < m->num_entries; i++) {
        const entry *e = &m->entries[i];
        bool leaf = !is_locked(m, e);
        for (int j = 0; j < m->num_entries; j++) {
            leaf = leaf && (j == i || !is_prefix(e, m->entries[j].ids, m->entries[j].len));
        }
        if (leaf && (best < 0 || e->used < m->entries[best].used)) best = i;
    }
    return best;
}

// What was locked only by a lock that has just gone gets its time of last use, longest first.
static void touch(model *m, const int32_t *ids, int32_t len)
{
    for (; len > 0; len -= m->page_size) {
        const int i = find(m, ids, len);
        assert_true(i >= 0);
        if (!is_locked(m, &m->entries[i])) m->entries[i].used = ++m->clock;
    }
}

static void insert(model *m, const int32_t *ids, int32_t len, int32_t page)
{
    entry *e = &m->entries[m->num_entries++];
    memcpy(e->ids, ids, (size_t)len * sizeof *ids);
    e->len = len;
    e->page = page;
    e->step = m->step;
    e->used = 0;
}

static int32_t alloc(model *m)
{
    const int32_t free = m->num_pages - m->num_entries - count_used(m);
    const int victim = free == 0 ? oldest(m) : -1;
    const int32_t page = msgl__cache_alloc(m->cache);
    if (free == 0) {
        assert_int_equal(page, victim < 0 ? -1 : m->entries[victim].page);
        if (victim >= 0) m->entries[victim] = m->entries[--m->num_entries];
    }
    return page;
}

static void random_ids(model *m, seq *s)
{
    s->len = 1 + (int32_t)rnd(m, (uint32_t)(MAX_SEQ_PAGES * m->page_size));
    for (int32_t i = 0; i < s->len; i++) {
        // Pages mostly differ in their first or last token only.
        const int32_t in = i % m->page_size;
        s->ids[i] = in == 0 || in == m->page_size - 1 ? (int32_t)rnd(m, (uint32_t)m->alphabet) : 0;
    }
}

static void start(model *m, seq *s)
{
    random_ids(m, s);
    int32_t expected = 0, with_pending = 0, pending;
    for (int32_t len = m->page_size; len <= s->len; len += m->page_size) {
        const int i = find(m, s->ids, len);
        if (i < 0) break;
        with_pending = len;
        if (m->entries[i].step != m->step) expected = len;
    }
    s->held = msgl__cache_match(m->cache, s->ids, s->len, &pending);
    assert_int_equal(s->held.len, expected);
    assert_int_equal(pending, with_pending - expected);
    msgl__cache_lock(m->cache, s->held);
    msgl__cache_slots(m->cache, s->held, s->slots);
    for (int32_t len = m->page_size; len <= expected; len += m->page_size) {
        const entry *e = &m->entries[find(m, s->ids, len)];
        for (int32_t i = 0; i < m->page_size; i++) {
            assert_int_equal(s->slots[len - m->page_size + i], e->page * m->page_size + i);
        }
    }
    s->active = true;
    s->num_pages = s->held.len / m->page_size;
    while (s->num_pages * m->page_size < s->len) {
        const int32_t page = alloc(m);
        if (page < 0) { // full: the sequence is only as long as its pages
            s->len = s->num_pages * m->page_size;
            break;
        }
        for (int32_t i = 0; i < m->page_size; i++) {
            s->slots[s->num_pages * m->page_size + i] = page * m->page_size + i;
        }
        s->num_pages++;
    }
}

static void extend(model *m, seq *s)
{
    const int32_t n = s->held.len + (int32_t)rnd(m, (uint32_t)(s->len - s->held.len) + 1);
    int32_t len = s->held.len;
    for (; len + m->page_size <= n; len += m->page_size) {
        const int i = find(m, s->ids, len + m->page_size);
        if (i >= 0 && !is_locked(m, &m->entries[i])) break;
        if (i < 0) insert(m, s->ids, len + m->page_size, s->slots[len] / m->page_size);
    }
    msgl__cache_extend(m->cache, &s->held, s->ids, s->slots, n);
    assert_int_equal(s->held.len, len);
}

static void release(model *m, seq *s)
{
    const int32_t keep = (int32_t)rnd(m, (uint32_t)s->len + 1);
    int32_t len = s->held.len;
    for (; len + m->page_size <= keep; len += m->page_size) {
        if (find(m, s->ids, len + m->page_size) < 0) {
            insert(m, s->ids, len + m->page_size, s->slots[len] / m->page_size);
        }
    }
    msgl__cache_release(m->cache, s->held, s->ids, s->slots, keep, s->num_pages);
    s->active = false;
    touch(m, s->ids, len);
}

static void discard(model *m, seq *s)
{
    msgl__cache_discard(m->cache, s->held, s->slots, s->num_pages);
    s->active = false;
    touch(m, s->ids, s->held.len);
    for (int32_t len = s->held.len; len > 0; len -= m->page_size) {
        const int i = find(m, s->ids, len);
        bool needed = is_locked(m, &m->entries[i]);
        for (int j = 0; j < m->num_entries; j++) {
            needed |= j != i && is_prefix(&m->entries[i], m->entries[j].ids, m->entries[j].len);
        }
        if (needed) break;
        m->entries[i] = m->entries[--m->num_entries];
    }
}

static void flush(model *m)
{
    const int32_t n = msgl__cache_flush(m->cache);
    int32_t expected = 0;
    for (int i = 0; i < m->num_entries;) {
        if (is_locked(m, &m->entries[i])) {
            i++;
        } else {
            m->entries[i] = m->entries[--m->num_entries];
            expected++;
        }
    }
    assert_int_equal(n, expected);
}

static void compare(model *m)
{
    msgl_err err;
    if (msgl__cache_check(m->cache, &err) != 0) fail_msg("%s", err.text);
    const msgl_cache_counts n = msgl__cache_count(m->cache);
    assert_int_equal(n.cached, m->num_entries);
    assert_int_equal(n.evictable, count_evictable(m));
    assert_int_equal(n.free, m->num_pages - m->num_entries - count_used(m));
    uint8_t marks[MAX_PAGES] = {0};
    msgl__cache_mark(m->cache, marks, 1, 2);
    for (int i = 0; i < m->num_entries; i++) assert_int_equal(marks[m->entries[i].page], 2);
    for (int i = 0; i < MAX_SEQS; i++) {
        const seq *s = &m->seqs[i];
        for (int32_t p = 0; s->active && p < s->num_pages; p++) {
            assert_int_not_equal(marks[s->slots[p * m->page_size] / m->page_size], 1);
        }
    }
}

static void run(int32_t page_size, int32_t num_pages, int32_t alphabet, int operations)
{
    model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    *m = (model){.num_pages = num_pages,
                 .page_size = page_size,
                 .alphabet = alphabet,
                 .random = (uint64_t)(page_size * 1000 + num_pages)};
    msgl_err err;
    assert_int_equal(msgl__cache_create(MSGL_CACHE_RADIX, num_pages, page_size, &m->cache, &err),
                     0);
    const uint64_t allocs = msgl__mem_allocs();
    for (int i = 0; i < operations; i++) {
        seq *s = &m->seqs[rnd(m, MAX_SEQS)];
        const uint32_t dice = rnd(m, 100);
        if (dice == 0) {
            flush(m);
        } else if (dice < 20) {
            msgl__cache_next_step(m->cache);
            m->step++;
        } else if (!s->active) {
            start(m, s);
        } else if (dice < 60) {
            extend(m, s);
        } else if (dice < 65) {
            discard(m, s);
        } else {
            release(m, s);
        }
        compare(m);
    }
    assert_int_equal(msgl__mem_allocs(), allocs);
    msgl__cache_destroy(m->cache);
    free(m);
}

static void test_page_1(void **state)
{
    (void)state;
    run(1, 48, 3, 40000);
    run(1, 9, 2, 20000);
}

static void test_page_4(void **state)
{
    (void)state;
    run(4, 40, 2, 30000);
    run(4, 7, 2, 20000);
}

static void test_page_16(void **state)
{
    (void)state;
    run(16, 32, 2, 20000);
}

static void test_page_64(void **state)
{
    (void)state;
    run(64, 12, 2, 10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page_1),
        cmocka_unit_test(test_page_4),
        cmocka_unit_test(test_page_16),
        cmocka_unit_test(test_page_64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
