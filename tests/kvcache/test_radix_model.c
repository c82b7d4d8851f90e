// SPDX-License-Identifier: Apache-2.0
//
// Random operations on cache and allocators, compared after each with a model that keeps a plain
// list of all cached prefixes, and of what each has in the other spans, and answers every question
// by going through it.
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

// What an entry has of a span behind the first.
typedef struct extra {
    int32_t unit;  // -1: nothing
    uint64_t used; // when somebody held it last
    uint64_t step; // that writes it
} extra;

// A cached page: the whole prefix that ends with it.
typedef struct entry {
    int32_t ids[MAX_TOKENS], len;
    int32_t page;
    uint64_t used; // when it was last released
    uint64_t step; // that inserted it
    extra extras[MSGL_MAX_SPANS];
} entry;

typedef struct seq {
    bool active;
    int32_t ids[MAX_TOKENS], pages[MSGL_MAX_SPANS][MAX_TOKENS], len, position;
    msgl_cache_handle cache_handle;
} seq;

typedef struct model {
    msgl_cache *cache;
    msgl_cache_layout layout;
    int32_t page_size, alphabet;
    entry entries[MAX_PAGES];
    int32_t num_entries;
    seq seqs[MAX_SEQS];
    uint64_t clock, step, random;
} model;

static uint32_t rnd(model *m, uint32_t n)
{
    return (uint32_t)msgl__random_below(&m->random, n);
}

static bool is_state(const model *m, int32_t span)
{
    return m->layout.spans[span].kind == MSGL_SPAN_STATE;
}

// Span of states, 0: none.
static int32_t states(const model *m)
{
    const int32_t last = m->layout.num_spans - 1;
    return is_state(m, last) ? last : 0;
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
        if (s->active && is_prefix(e, s->ids, s->cache_handle.prefix.len)) return true;
    }
    return false;
}

// Who has a unit of a span behind the first in its row, or loads it.
static int holders(const model *m, int32_t span, int32_t unit)
{
    int n = 0;
    for (int i = 0; i < MAX_SEQS; i++) {
        const seq *s = &m->seqs[i];
        if (!s->active) continue;
        if (is_state(m, span)) {
            n += s->cache_handle.loads == unit;
            continue;
        }
        for (int32_t p = s->cache_handle.first[span]; p < s->cache_handle.num_pages; p++) {
            n += s->pages[span][p] == unit;
        }
    }
    return n;
}

static bool is_cached(const model *m, int32_t span, int32_t unit)
{
    for (int j = 0; j < m->num_entries; j++) {
        const entry *e = &m->entries[j];
        if ((span == 0 ? e->page : e->extras[span].unit) == unit) return true;
    }
    return false;
}

static msgl_cache_counts count(const model *m, int32_t span)
{
    msgl_cache_counts n = {.total = m->layout.spans[span].num_units};
    int32_t used = 0;
    for (int i = 0; i < m->num_entries; i++) {
        const entry *e = &m->entries[i];
        if (span == 0) {
            n.cached++;
            n.evictable += !is_locked(m, e);
        } else if (e->extras[span].unit >= 0) {
            n.cached++;
            n.evictable += holders(m, span, e->extras[span].unit) == 0;
        }
    }
    for (int i = 0; i < MAX_SEQS; i++) {
        const seq *s = &m->seqs[i];
        if (s->active && is_state(m, span)) used += s->cache_handle.saved >= 0;
        if (!s->active || is_state(m, span)) continue;
        for (int32_t p = s->cache_handle.first[span]; p < s->cache_handle.num_pages; p++) {
            used += !is_cached(m, span, s->pages[span][p]);
        }
    }
    n.free = n.total - n.cached - used;
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

// The entry whose page, or checkpoint, of the span has to go next: held by nobody, longest unused,
// unless the step being built is to write it.
static int oldest_extra(const model *m, int32_t span)
{
    int best = -1;
    for (int i = 0; i < m->num_entries; i++) {
        const extra *x = &m->entries[i].extras[span];
        if (x->unit < 0 || holders(m, span, x->unit) > 0) continue;
        if (best < 0 || x->used < m->entries[best].extras[span].used) best = i;
    }
    return best >= 0 && m->entries[best].extras[span].step == m->step ? -1 : best;
}

static bool evict(model *m, int32_t span)
{
    const int victim = span == 0 ? oldest(m) : oldest_extra(m, span);
    if (victim < 0) return false;
    if (span > 0) {
        m->entries[victim].extras[span].unit = -1;
    } else {
        m->entries[victim] = m->entries[--m->num_entries];
    }
    return true;
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

static entry *insert(model *m, const int32_t *ids, int32_t len, int32_t page)
{
    assert_true(m->num_entries < MAX_PAGES);
    entry *e = &m->entries[m->num_entries++];
    memcpy(e->ids, ids, (size_t)len * sizeof *ids);
    e->len = len;
    e->page = page;
    e->step = m->step;
    e->used = 0;
    for (int32_t s = 0; s < MSGL_MAX_SPANS; s++) e->extras[s].unit = -1;
    return e;
}

// The entry takes what it has not got of the sequence's pages.
static void take_windows(const model *m, entry *e, const seq *s, int32_t i, uint64_t step)
{
    for (int32_t span = 1; span < m->layout.num_spans; span++) {
        if (is_state(m, span) || i < s->cache_handle.first[span] || e->extras[span].unit >= 0)
            continue;
        e->extras[span] = (extra){.unit = s->pages[span][i], .step = step};
    }
}

// Pages [first, end) of a window are given back, last ones first. The cache has done so.
static void gave_back(model *m, seq *s, int32_t span, int32_t first, int32_t end)
{
    for (int32_t i = end - 1; i >= first; i--) {
        const int32_t page = s->pages[span][i];
        for (int j = 0; j < m->num_entries; j++) {
            extra *x = &m->entries[j].extras[span];
            if (x->unit == page && holders(m, span, page) == 0) x->used = ++m->clock;
        }
    }
}

static bool goes_on(const model *m, const int32_t *ids, int32_t len, bool pending)
{
    const entry *end = &m->entries[find(m, ids, len)];
    if (!pending && end->step == m->step) return false;
    for (int32_t s = 1; s < m->layout.num_spans; s++) {
        const int32_t reach = is_state(m, s) ? 1 : m->layout.spans[s].window;
        for (int32_t l = len; l > 0 && len - l < reach; l -= m->page_size) {
            const extra *x = &m->entries[find(m, ids, l)].extras[s];
            if (x->unit < 0 || (!pending && x->step == m->step)) return false;
        }
    }
    return true;
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

// What a sequence that has just begun finds in its rows.
static void check_rows(const model *m, const seq *s)
{
    for (int32_t span = 0; span < m->layout.num_spans; span++) {
        for (int32_t i = s->cache_handle.first[span];
             !is_state(m, span) && i < s->cache_handle.num_pages; i++) {
            if ((i + 1) * m->page_size > s->cache_handle.prefix.len) continue;
            const entry *e = &m->entries[find(m, s->ids, (i + 1) * m->page_size)];
            assert_int_equal(s->pages[span][i], span == 0 ? e->page : e->extras[span].unit);
        }
    }
}

// Pages as far as there are some.
static void grow(model *m, seq *s)
{
    while (s->cache_handle.num_pages * m->page_size < s->len) {
        bool room = true;
        for (int32_t span = 0; room && span < m->layout.num_spans; span++) {
            if (!is_state(m, span) && count(m, span).free == 0) room = evict(m, span);
        }
        const bool grown =
            msgl__cache_grow(m->cache, &s->cache_handle, s->cache_handle.num_pages + 1);
        assert_int_equal(grown, room);
        if (!grown) s->len = s->cache_handle.num_pages * m->page_size;
    }
}

static void start(model *m, seq *s)
{
    random_ids(m, s);
    int32_t expected = 0, with_pending = 0, pending;
    for (int32_t len = m->page_size; len <= s->len; len += m->page_size) {
        if (find(m, s->ids, len) < 0) break;
        if (goes_on(m, s->ids, len, true)) with_pending = len;
        if (goes_on(m, s->ids, len, false)) expected = len;
    }
    const msgl_prefix p = msgl__cache_match(m->cache, 0, s->ids, s->len, &pending);
    assert_int_equal(p.len, expected);
    assert_int_equal(pending, with_pending - expected);
    for (int32_t i = 0; i < MSGL_MAX_SPANS; i++) s->cache_handle.pages[i] = s->pages[i];
    msgl__cache_begin(m->cache, p, &s->cache_handle);
    for (int32_t i = 1; i < m->layout.num_spans; i++) {
        int32_t first = 0;
        while ((first + 1) * m->page_size <= p.len - m->layout.spans[i].window) first++;
        if (!is_state(m, i)) assert_int_equal(s->cache_handle.first[i], first);
    }
    s->position = p.len;
    s->active = true;
    check_rows(m, s);
    if (states(m) > 0 && p.len > 0) {
        assert_int_equal(s->cache_handle.loads,
                         m->entries[find(m, s->ids, p.len)].extras[states(m)].unit);
    }
    grow(m, s);
}

static void extend(model *m, seq *s)
{
    const int32_t held = s->cache_handle.prefix.len;
    const int32_t n = held + (int32_t)rnd(m, (uint32_t)(s->len - held) + 1);
    int32_t len = held;
    for (; len + m->page_size <= n; len += m->page_size) {
        const int32_t end = len + m->page_size;
        int i = find(m, s->ids, end);
        if (i >= 0 && !is_locked(m, &m->entries[i])) break;
        if (i < 0) i = (int)(insert(m, s->ids, end, s->pages[0][len / m->page_size]) - m->entries);
        take_windows(m, &m->entries[i], s, len / m->page_size, m->step);
    }
    msgl__cache_extend(m->cache, &s->cache_handle, s->ids, n);
    assert_int_equal(s->cache_handle.prefix.len, len);
}

static void slide(model *m, seq *s)
{
    s->position += (int32_t)rnd(m, (uint32_t)(s->len - s->position) + 1);
    int32_t before[MSGL_MAX_SPANS];
    memcpy(before, s->cache_handle.first, sizeof before);
    msgl__cache_slide(m->cache, &s->cache_handle, s->position);
    for (int32_t i = 1; i < m->layout.num_spans; i++) {
        if (is_state(m, i)) continue;
        int32_t first = before[i]; // the first page with a token that the window reaches
        while ((first + 1) * m->page_size <= s->position - m->layout.spans[i].window) first++;
        assert_int_equal(s->cache_handle.first[i], first);
        gave_back(m, s, i, before[i], first);
    }
    // The step that loads has been submitted.
    const int32_t span = states(m), loads = s->cache_handle.loads;
    msgl__cache_loaded(m->cache, &s->cache_handle);
    assert_int_equal(s->cache_handle.loads, -1);
    for (int j = 0; loads >= 0 && j < m->num_entries; j++) {
        extra *x = &m->entries[j].extras[span];
        if (x->unit == loads && holders(m, span, loads) == 0) x->used = ++m->clock;
    }
}

// A checkpoint to be had, as the model sees it.
static bool can_take(model *m)
{
    return count(m, states(m)).free > 0 || evict(m, states(m));
}

static void checkpoint(model *m, seq *s)
{
    const int32_t pages = s->cache_handle.num_pages;
    if (pages == 0) return;
    const int32_t len = (1 + (int32_t)rnd(m, (uint32_t)pages)) * m->page_size;
    if (len > s->cache_handle.prefix.len) {
        const int32_t had = s->cache_handle.saved;
        const bool some = had >= 0 || can_take(m);
        const int32_t got = msgl__cache_checkpoint(m->cache, &s->cache_handle, len);
        assert_int_equal(got >= 0, some);
        assert_int_equal(got, s->cache_handle.saved);
        if (had >= 0) assert_int_equal(got, had);
        return;
    }
    entry *e = &m->entries[find(m, s->ids, len)];
    if (e->extras[states(m)].unit >= 0) {
        assert_int_equal(msgl__cache_checkpoint(m->cache, &s->cache_handle, len), -1);
        return;
    }
    const bool some = can_take(m);
    const int32_t got = msgl__cache_checkpoint(m->cache, &s->cache_handle, len);
    assert_int_equal(got >= 0, some);
    if (some) assert_int_equal(is_cached(m, states(m), got), false);
    e->extras[states(m)] = (extra){.unit = got, .step = m->step, .used = ++m->clock};
}

// Behind the end of s, whose cache_handle was `had`: what it held is given back.
static void ended(model *m, seq *s, const msgl_cache_handle *had, int32_t cached_len)
{
    s->active = false;
    for (int32_t i = 1; i < m->layout.num_spans; i++) {
        if (!is_state(m, i)) gave_back(m, s, i, had->first[i], had->num_pages);
    }
    const int32_t span = states(m);
    for (int j = 0; had->loads >= 0 && j < m->num_entries; j++) {
        extra *x = &m->entries[j].extras[span];
        if (x->unit == had->loads && holders(m, span, x->unit) == 0) x->used = ++m->clock;
    }
    if (had->saved < 0 || had->saved_len > cached_len) return;
    extra *x = &m->entries[find(m, s->ids, had->saved_len)].extras[span];
    if (x->unit < 0) *x = (extra){.unit = had->saved, .step = m->step - 1, .used = ++m->clock};
}

static void release(model *m, seq *s)
{
    const int32_t keep = (int32_t)rnd(m, (uint32_t)s->len + 1);
    const msgl_cache_handle had = s->cache_handle;
    int32_t len = had.prefix.len;
    for (; len + m->page_size <= keep; len += m->page_size) {
        int i = find(m, s->ids, len + m->page_size);
        if (i < 0) {
            const int32_t page = s->pages[0][len / m->page_size];
            i = (int)(insert(m, s->ids, len + m->page_size, page) - m->entries);
        }
        take_windows(m, &m->entries[i], s, len / m->page_size, m->step - 1);
    }
    msgl__cache_release(m->cache, &s->cache_handle, s->ids, keep);
    ended(m, s, &had, len);
    touch(m, s->ids, len);
}

static void discard(model *m, seq *s)
{
    const msgl_cache_handle had = s->cache_handle;
    msgl__cache_discard(m->cache, &s->cache_handle);
    ended(m, s, &had, 0);
    touch(m, s->ids, had.prefix.len);
    for (int32_t len = had.prefix.len; len > 0; len -= m->page_size) {
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

static int find_run(const msgl_cache_run *runs, int n, int32_t end)
{
    int i = 0;
    while (i < n && runs[i].end != end) i++;
    return i;
}

// The shape of the tree: runs that are as long as they can be, each page in one of them; where
// there is no room for all, each with those that it goes on from.
static void compare_runs(const model *m)
{
    msgl_cache_run runs[MAX_PAGES];
    const int32_t max = m->clock % 2 == 0 ? MAX_PAGES : (int32_t)(m->clock % 7);
    bool all;
    const int32_t n = msgl__cache_runs(m->cache, runs, max, &all);
    int32_t pages = 0, children[MAX_PAGES] = {0};
    assert_in_range(n, 0, max);
    for (int i = 0; i < n; i++) {
        pages += runs[i].pages;
        assert_true(find_run(runs, n, runs[i].end) == i);
        if (runs[i].parent == MSGL_CACHE_ROOT) continue;
        const int up = find_run(runs, n, runs[i].parent);
        assert_in_range(up, 0, n - 1);
        children[up]++;
        assert_true(runs[up].hits >= runs[i].hits);
        assert_true(runs[up].pins > 0 || runs[i].pins == 0);
    }
    assert_true(all == (pages == m->num_entries));
    for (int i = 0; i < n && all; i++) assert_int_not_equal(children[i], 1);
}

static void compare(model *m)
{
    msgl_err err;
    if (msgl__cache_check(m->cache, &err) != 0) fail_msg("%s", err.text);
    int32_t room = INT32_MAX;
    for (int32_t s = 0; s < m->layout.num_spans; s++) {
        const msgl_cache_counts n = msgl__cache_count(m->cache, s), expected = count(m, s);
        assert_int_equal(n.cached, expected.cached);
        assert_int_equal(n.evictable, expected.evictable);
        assert_int_equal(n.free, expected.free);
        if (!is_state(m, s) && n.free + n.evictable < room) room = n.free + n.evictable;
        uint8_t marks[MAX_PAGES] = {0};
        msgl__cache_mark(m->cache, s, marks, 1, 2);
        for (int i = 0; i < m->num_entries; i++) {
            const entry *e = &m->entries[i];
            const int32_t unit = s == 0 ? e->page : e->extras[s].unit;
            if (unit >= 0) assert_int_equal(marks[unit], 2);
        }
        for (int i = 0; i < MAX_SEQS; i++) {
            const seq *q = &m->seqs[i];
            if (!q->active || is_state(m, s)) continue;
            for (int32_t p = q->cache_handle.first[s]; p < q->cache_handle.num_pages; p++) {
                assert_int_not_equal(marks[q->pages[s][p]], 1);
            }
        }
    }
    assert_int_equal(msgl__cache_room(m->cache), room);
    compare_runs(m);
}

static void operate(model *m)
{
    seq *s = &m->seqs[rnd(m, MAX_SEQS)];
    const uint32_t dice = rnd(m, 100);
    if (dice == 0) {
        flush(m);
    } else if (dice < 20) {
        msgl__cache_next_step(m->cache);
        m->step++;
    } else if (!s->active) {
        start(m, s);
    } else if (dice < 35 && m->layout.num_spans > 1) {
        slide(m, s);
    } else if (dice < 45 && states(m) > 0) {
        checkpoint(m, s);
    } else if (dice < 65) {
        extend(m, s);
    } else if (dice < 70) {
        discard(m, s);
    } else {
        release(m, s);
    }
}

// windows: 0, one or two; checkpoints: -1, no states.
static void run_spans(int32_t page_size, int32_t num_pages, int32_t alphabet, int operations,
                      const int32_t windows[2], int32_t window_pages, int32_t checkpoints)
{
    model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    *m = (model){.page_size = page_size,
                 .alphabet = alphabet,
                 .step = 1,
                 .random = (uint64_t)(page_size * 1000 + num_pages + window_pages)};
    msgl_cache_layout *l = &m->layout;
    *l = (msgl_cache_layout){.page_size = page_size, .num_spans = 1};
    l->spans[0] = (msgl_cache_span){.kind = MSGL_SPAN_ALL, .num_units = num_pages};
    for (int i = 0; i < 2 && windows[i] > 0; i++) {
        l->spans[l->num_spans++] = (msgl_cache_span){
            .kind = MSGL_SPAN_WINDOW, .window = windows[i], .num_units = window_pages + 3 * i};
    }
    if (checkpoints >= 0) {
        l->spans[l->num_spans++] = (msgl_cache_span){
            .kind = MSGL_SPAN_STATE, .interval = page_size, .num_units = checkpoints};
    }
    msgl_err err;
    assert_int_equal(msgl__cache_create(MSGL_CACHE_RADIX, l, &m->cache, &err), 0);
    msgl__cache_next_step(m->cache);
    const uint64_t allocs = msgl__mem_allocs();
    for (int i = 0; i < operations; i++) {
        operate(m);
        compare(m);
    }
    assert_int_equal(msgl__mem_allocs(), allocs);
    msgl__cache_destroy(m->cache);
    free(m);
}

static void run(int32_t page_size, int32_t num_pages, int32_t alphabet, int operations)
{
    static const int32_t none[2] = {0, 0};
    run_spans(page_size, num_pages, alphabet, operations, none, 0, -1);
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

static void test_windows(void **state)
{
    (void)state;
    static const int32_t windows[][2] = {{1, 0}, {2, 0}, {5, 0}, {3, 7}, {4, 11}, {8, 40}};
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        run_spans(1, 40, 2, 10000, windows[i], 24, -1);
        run_spans(4, 30, 2, 10000, windows[i], 20, -1);
        run_spans(4, 36, 2, 10000, windows[i], 9, -1);
    }
}

static void test_states(void **state)
{
    (void)state;
    static const int32_t none[2] = {0, 0};
    run_spans(1, 40, 2, 15000, none, 0, 12);
    run_spans(4, 30, 2, 15000, none, 0, 3);
    run_spans(4, 30, 2, 15000, none, 0, 40);
    run_spans(4, 30, 2, 5000, none, 0, 0);
}

static void test_all(void **state)
{
    (void)state;
    static const int32_t windows[2] = {5, 11};
    run_spans(1, 44, 2, 20000, windows, 24, 12);
    run_spans(4, 32, 2, 20000, windows, 20, 6);
    run_spans(4, 32, 2, 20000, (const int32_t[2]){6, 0}, 30, 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page_1),  cmocka_unit_test(test_page_4),
        cmocka_unit_test(test_page_16), cmocka_unit_test(test_page_64),
        cmocka_unit_test(test_windows), cmocka_unit_test(test_states),
        cmocka_unit_test(test_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
